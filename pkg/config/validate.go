package config

import (
	"fmt"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// mistakes collects what is wrong with a Configuration.
type mistakes struct{ all field.ErrorList }

// unless adds a mistake about an invalid value, unless ok.
func (m *mistakes) unless(ok bool, path *field.Path, value any, why string) {
	if ok {
		return
	}
	if text, is := value.(fmt.Stringer); is {
		value = text.String()
	}
	m.all = append(m.all, field.Invalid(path, value, why))
}

// check adds a mistake about value if err is not nil.
func (m *mistakes) check(err error, path *field.Path, value any) {
	if err != nil {
		m.unless(false, path, value, err.Error())
	}
}

// require adds a mistake about a missing value, unless ok.
func (m *mistakes) require(ok bool, path *field.Path, why string) {
	if !ok {
		m.all = append(m.all, field.Required(path, why))
	}
}

// forbid adds a mistake if a value is set that must not be set.
func (m *mistakes) forbid(given bool, path *field.Path, why string) {
	if given {
		m.all = append(m.all, field.Forbidden(path, why))
	}
}

// unique adds a mistake if seen has name, the key of the entry at path, and adds name to seen.
func (m *mistakes) unique(seen map[string]bool, path *field.Path, name string) {
	if seen[name] {
		m.all = append(m.all, field.Duplicate(path, name))
	}
	seen[name] = true
}

// oneOf adds a mistake unless value is one of known.
func oneOf[T ~string](m *mistakes, path *field.Path, value T, known ...T) {
	if !slices.Contains(known, value) {
		m.all = append(m.all, field.NotSupported(path, value, known))
	}
}

// tags adds the mistakes that the tags min and form find in v, a pointer to a struct at path.
func (m *mistakes) tags(v any, path string) {
	for _, each := range fieldsOf(reflect.ValueOf(v).Elem(), path) {
		at := field.NewPath(each.path)
		if least, err := strconv.Atoi(each.Tag.Get("min")); err == nil {
			m.unless(each.value.Int() >= int64(least), at, each.value.Int(), fmt.Sprintf("must be %d or more", least))
		}
		switch each.Tag.Get("form") {
		case "host:port":
			_, _, err := net.SplitHostPort(each.value.String())
			m.unless(err == nil || each.value.String() == "0", at, each.value.String(), "want host:port, or 0 to switch it off")
		case "namespace/name":
			_, name := splitName(each.value.String())
			m.unless(each.value.Len() == 0 || name != "", at, each.value.String(), "want namespace/name")
		}
	}
}

// splitName splits text into a namespace and a name. Both are empty for anything but namespace/name.
func splitName(text string) (namespace, name string) {
	namespace, name, _ = strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", ""
	}
	return namespace, name
}

// fieldAt is a field of the configuration, or of a part of it.
type fieldAt struct {
	reflect.StructField
	owner reflect.Type
	value reflect.Value
	path  string // in the file
}

// fieldsOf returns the fields of v, a struct at path, and of the structs in it, but not of those in lists.
func fieldsOf(v reflect.Value, path string) []fieldAt {
	var all []fieldAt
	for i := range v.NumField() {
		one := fieldAt{StructField: v.Type().Field(i), owner: v.Type(), value: v.Field(i), path: path}
		if name, _, _ := strings.Cut(one.Tag.Get("json"), ","); name != "" {
			one.path = strings.TrimPrefix(path+"."+name, ".")
		}
		all = append(all, one)
		if one.value.Kind() == reflect.Struct {
			all = append(all, fieldsOf(one.value, one.path)...)
		}
	}
	return all
}
