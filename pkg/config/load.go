package config

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"
	strictjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Load returns the configuration of a manager: the defaults, overridden by the file that --config names, overridden by
// the other flags in args. An error holds every mistake, each with its flag or field path, unless a flag is unknown.
// conditions compiles those of approval rules.
func Load(args []string, conditions NewConditions) (*Configuration, error) {
	c := Default()
	flags := NewFlags(c)
	file, given := "", []givenFlag{}
	if err := flags.ParseAll(args, func(flag *pflag.Flag, text string) error {
		if given = append(given, givenFlag{flag.Name, text}); flag.Name == configFlag {
			file = text
		}
		return nil
	}); err != nil {
		return nil, err
	}
	unreadable := c.read(file)
	errs := apply(flags.FlagSet, given)
	if unreadable != nil {
		return nil, errors.Join(append(errs, unreadable)...)
	}
	for _, mistake := range c.validate(true, conditions) {
		errs = append(errs, flags.name(mistake))
	}
	return c, errors.Join(errs...)
}

// LoadFile returns the configuration in a file, for a command that needs no CA. conditions compiles those of approval rules.
func LoadFile(file string, conditions NewConditions) (*Configuration, error) {
	c := Default()
	if err := c.read(file); err != nil {
		return nil, err
	}
	return c, c.validate(false, conditions).ToAggregate()
}

// givenFlag is a flag of the command line.
type givenFlag struct{ name, text string }

// apply sets the flags. It returns every mistake in them, and in the other arguments.
func apply(set *pflag.FlagSet, given []givenFlag) (mistakes []error) {
	for _, one := range given {
		value := set.Lookup(one.name).Value
		before := value.String()
		if err := set.Set(one.name, one.text); err != nil {
			mistakes = append(mistakes, err)
			_ = value.Set(before) // pflag has set it to zero, which would be a second mistake
		}
	}
	for _, arg := range set.Args() {
		mistakes = append(mistakes, fmt.Errorf("unexpected argument %q", arg))
	}
	return mistakes
}

// name returns an error that names the flag that set the field, if one did, or else the field.
func (f *Flags) name(mistake *field.Error) error {
	where := mistake.Field
	f.Visit(func(flag *pflag.Flag) {
		if f.fields[flag.Name] == mistake.Field {
			where = "--" + flag.Name
		}
	})
	return fmt.Errorf("%s: %s", where, mistake.ErrorBody())
}

// removedFields lists the fields that an earlier version had, with what an administrator does instead.
var removedFields = []struct{ object, field, instead string }{
	{"cleaning", "supersededAfter", "requests are deleted after cleaning.retention.pending; delete this field"},
	{"signing", "apiServers", "the signer reads which CAs the API servers trust from the ConfigMaps " +
		"extension-apiserver-authentication and kube-root-ca.crt in kube-system; delete this field"},
}

// read overrides c by the fields in a file, if there is one.
func (c *Configuration) read(file string) error {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	if err := errors.Join(removed(data)...); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	if err := c.parse(data); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	return nil
}

// removed returns an error for each removed field in data. Whatever else is wrong with data, the strict decoder reports.
func removed(data []byte) (errs []error) {
	var file map[string]any
	if yaml.Unmarshal(data, &file) != nil {
		return nil
	}
	for _, removed := range removedFields {
		object, _ := file[removed.object].(map[string]any)
		if _, found := object[removed.field]; found {
			errs = append(errs, fmt.Errorf("%s.%s was removed: %s", removed.object, removed.field, removed.instead))
		}
	}
	return errs
}

// parse overrides c by the fields in data.
func (c *Configuration) parse(data []byte) error {
	c.APIVersion, c.Kind = "", ""
	// JSON decodes a list into existing elements. The first source would then have the fields of two sources.
	sources := c.Approval.Inventory.Sources
	c.Approval.Inventory.Sources = nil
	text, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return err
	}
	strict, err := strictjson.UnmarshalStrict(text, c)
	err = errors.Join(append(strict, err)...)
	switch {
	case err != nil && strings.HasSuffix(err.Error(), "of type string"):
		return fmt.Errorf("%w: write it in quotes", err)
	case err != nil:
		return err
	}
	if c.Approval.Inventory.Sources == nil {
		c.Approval.Inventory.Sources = sources
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return fmt.Errorf("want apiVersion %s and kind %s, found %q and %q", APIVersion, Kind, c.APIVersion, c.Kind)
	}
	return nil
}
