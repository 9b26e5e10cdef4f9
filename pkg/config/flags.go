package config

import (
	"cmp"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// perSignerFlags lists the signers with flags of their own, by the middle part of kube-controller-manager's
// --cluster-signing-<middle>-{cert,key}-file.
var perSignerFlags = []struct{ middle, signer string }{
	{"kubelet-serving", certificatesv1.KubeletServingSignerName},
	{"kubelet-client", certificatesv1.KubeAPIServerClientKubeletSignerName},
	{"kube-apiserver-client", certificatesv1.KubeAPIServerClientSignerName},
}

// retiredFlags lists kube-controller-manager's flags for kubernetes.io/legacy-unknown. certificates/v1 refuses that
// signer, so no request can name it. The flags are accepted because existing command lines may have them.
var retiredFlags = []string{"cluster-signing-legacy-unknown-cert-file", "cluster-signing-legacy-unknown-key-file"}

// configFlag names the configuration file.
const configFlag = "config"

// Flags holds the command line flags of a Configuration, in the order of its fields.
type Flags struct {
	*pflag.FlagSet

	fields map[string]string // flag name → field path
}

// NewFlags returns flags that set c. The values of c are their defaults. Each field with the tag flag has one.
func NewFlags(c *Configuration) *Flags {
	f := &Flags{FlagSet: pflag.NewFlagSet("", pflag.ContinueOnError), fields: map[string]string{}}
	f.SortFlags = false
	f.define("", configFlag, "file", new(string), "Reads the configuration from this file. Flags override it.")
	all := slices.DeleteFunc(fieldsOf(reflect.ValueOf(c).Elem(), ""), func(one fieldAt) bool { return one.Tag.Get("flag") == "" })
	flags := map[string]string{} // by the path of the field
	for _, each := range all {
		flags[each.path] = "--" + each.Tag.Get("flag")
	}
	for _, each := range all {
		sibling := func(name string) string { return flags[each.path[:strings.LastIndex(each.path, ".")+1]+name] }
		usage := plain(description(comments(), each.owner.Name(), each.Name), sibling)
		f.define(each.path, each.Tag.Get("flag"), each.Tag.Get("form"), each.value.Addr().Interface(), usage)
	}
	onlyLeases := func(kind string) error {
		if kind != "leases" {
			return errors.New("want leases")
		}
		return nil
	}
	f.define("", "leader-elect-resource-lock", "kind", onlyLeases, "The kind of lock: only leases, the default.")
	for _, one := range perSignerFlags {
		usage := "The CA of " + one.signer + ". Signers without files are then not served."
		setCert := func(file string) error { c.Signing.signer(one.signer).CertFile = file; return nil }
		setKey := func(file string) error { c.Signing.signer(one.signer).KeyFile = file; return nil }
		flag, field := "cluster-signing-"+one.middle, fmt.Sprintf("signing.signers[%s]", one.signer)
		f.define(field+".certFile", flag+"-cert-file", "file", setCert, usage)
		f.define(field+".keyFile", flag+"-key-file", "file", setKey, usage)
	}
	for _, name := range retiredFlags {
		note := func(string) error { c.Retired = append(c.Retired, "--"+name); return nil }
		f.define("", name, "file", note, "No effect: since Kubernetes 1.22 no request can name kubernetes.io/legacy-unknown.")
	}
	f.define("", "version", "", new(bool), "Prints the version and exits.")
	f.BoolP("help", "h", false, "Prints this help and exits.")
	return f
}

// define adds a flag. It sets target, whose value is the default. path is the field that it belongs to, if there is one.
// form stands for the value in the help.
func (f *Flags) define(path, name, form string, target any, usage string) {
	f.fields[name] = path
	short := ""
	if len(name) == 1 {
		short = name
	}
	switch target := target.(type) {
	case *string:
		f.StringVarP(target, name, short, *target, usage)
	case *int:
		f.IntVarP(target, name, short, *target, usage)
	case *float64:
		f.Float64VarP(target, name, short, *target, usage)
	case *bool:
		f.BoolVarP(target, name, short, *target, usage)
	case *metav1.Duration:
		f.DurationVarP(&target.Duration, name, short, target.Duration, usage)
	case *[]string:
		f.StringSliceVarP(target, name, short, *target, usage)
	case func(string) error:
		f.FuncP(name, short, usage, target)
	}
	if form != "" {
		flag := f.Lookup(name)
		flag.Value = formed{flag.Value, form}
	}
}

// formed is a value whose type the help shows as form.
type formed struct {
	pflag.Value
	form string
}

func (f formed) Type() string { return f.form }

// signer returns the settings of the signer with that name. It adds them if there are none.
func (s *Signing) signer(name string) *Signer {
	for i := range s.Signers {
		if s.Signers[i].Name == name {
			return &s.Signers[i]
		}
	}
	s.Signers = append(s.Signers, Signer{Name: name})
	return &s.Signers[len(s.Signers)-1]
}

// source is the code of the fields, whose comments describe them and their flags.
//
//go:embed config.go approval.go signing.go
var source embed.FS

// comments returns the comments in source.
var comments = sync.OnceValue(func() map[string]string { return readComments(source) })

// readComments returns the comments of the structs in formatted Go files, and of their fields, by "Type" and "Type.Field".
func readComments(files fs.FS) map[string]string {
	found := map[string]string{}
	names, _ := fs.Glob(files, "*.go") // the pattern is valid
	for _, name := range names {
		code, _ := fs.ReadFile(files, name)
		owner, comment := "", ""
		for line := range strings.Lines(string(code)) {
			words := strings.Fields(line)
			switch {
			case len(words) > 0 && words[0] == "//":
				comment += strings.Join(words[1:], " ") + " "
				continue
			case len(words) > 2 && words[0] == "type" && strings.HasPrefix(words[2], "struct"):
				owner = words[1]
				found[owner] = comment
			case len(words) > 1 && owner != "":
				found[owner+"."+words[0]] = comment
			case strings.HasPrefix(line, "}"):
				owner = ""
			}
			comment = ""
		}
	}
	return found
}

// description returns the comment of a field for a place where its name stands already.
func description(comments map[string]string, owner, field string) string {
	return withoutName(comments[owner+"."+field], field)
}

// withoutName returns a comment without the name at its beginning, and without the verb is.
func withoutName(comment, name string) string {
	text := strings.TrimPrefix(strings.TrimPrefix(strings.TrimSpace(comment), name+" "), "is ")
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// marked matches code and links of Markdown.
var marked = regexp.MustCompile("`([^`]*)`|\\[([^]]*)\\]\\([^)]*\\)")

// plain returns text without the marks of Markdown, and with the flags of the fields that it names.
func plain(text string, flag func(field string) string) string {
	return marked.ReplaceAllStringFunc(text, func(mark string) string {
		found := marked.FindStringSubmatch(mark)
		return cmp.Or(flag(found[1]), found[1], found[2])
	})
}
