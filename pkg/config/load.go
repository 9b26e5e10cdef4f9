package config

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// Command is a subcommand: what it takes beside the manager's flags.
type Command struct {
	// Usage is what follows the program's name in the help, and About a sentence.
	Usage, About string
	// Flags defines its own flags. It is called more than once.
	Flags func(*flag.FlagSet)
	// Args are the arguments without a dash, at most MaxArgs.
	Args    []string
	MaxArgs int
}

// meta are the flags that are not configuration.
type meta struct {
	command *Command // nil for the manager
	file    string
	version bool
	help    bool
}

// ErrHelp and ErrVersion are returned by Load when that is what the flags ask for.
var (
	ErrHelp    = flag.ErrHelp
	ErrVersion = errors.New("version requested")
)

// Load returns the configuration: the defaults, overridden by the file that --config names, overridden by the other
// flags in args. An error holds every mistake, each with its flag or field path. With --help it writes the help to out.
func Load(args []string, out io.Writer) (*Configuration, error) {
	return load(meta{}, args, out)
}

// LoadCommand is Load for a subcommand. It fills in command.Args, and does not insist on a CA.
func LoadCommand(command *Command, args []string, out io.Writer) (*Configuration, error) {
	return load(meta{command: command}, args, out)
}

func load(meta meta, args []string, out io.Writer) (*Configuration, error) {
	scout := newFlags(Default(), &meta)
	errs := scout.parse(args)
	switch {
	case meta.help:
		scout.help(out)
		return nil, ErrHelp
	case meta.version:
		return nil, ErrVersion
	}
	configuration := Default()
	if meta.file != "" {
		if err := configuration.read(meta.file); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
	}
	bound := newFlags(configuration, &meta)
	bound.set.VisitAll(func(each *flag.Flag) { each.Value = careful{each.Value} })
	_ = bound.parse(args) // the same mistakes as the first time
	for _, mistake := range configuration.validate(meta.command == nil) {
		errs = append(errs, bound.name(mistake))
	}
	return configuration, errors.Join(errs...)
}

// parse parses args to the end and returns every mistake.
func (f *flags) parse(args []string) []error {
	var errs []error
	var rest []string
	for {
		err := f.set.Parse(args)
		switch args = f.set.Args(); {
		case errors.Is(err, flag.ErrHelp): // -h
			_ = f.set.Set("help", "true")
		case err != nil:
			errs = append(errs, err)
		case len(args) > 0 && f.command != nil && len(rest) < f.command.MaxArgs:
			rest, args = append(rest, args[0]), args[1:]
		case len(args) > 0:
			errs = append(errs, fmt.Errorf("unexpected argument %q", args[0]))
			args = args[1:]
		default:
			if f.command != nil {
				f.command.Args = rest
			}
			return errs
		}
	}
}

// careful keeps what was there when a text can't be parsed. Package flag puts a zero in its place, which would be
// reported as a second mistake.
type careful struct{ flag.Value }

func (c careful) Set(text string) error {
	before := c.String()
	err := c.Value.Set(text)
	if err != nil {
		_ = c.Value.Set(before)
	}
	return err
}

// IsBoolFlag is how package flag asks whether a flag can stand without a value.
func (c careful) IsBoolFlag() bool {
	boolean, ok := c.Value.(interface{ IsBoolFlag() bool })
	return ok && boolean.IsBoolFlag()
}

func (c *Configuration) read(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("--config: %w", err)
	}
	c.APIVersion, c.Kind = "", ""
	// encoding/json reads a list into the elements that are there: the first source would be two.
	sources := c.Approval.Inventory.Sources
	c.Approval.Inventory.Sources = nil
	if err := yaml.UnmarshalStrict(data, c); err != nil {
		return fmt.Errorf("--config: %s: %w", file, err)
	}
	if c.Approval.Inventory.Sources == nil {
		c.Approval.Inventory.Sources = sources
	}
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return fmt.Errorf("--config: %s: want apiVersion %s and kind %s, found %q and %q", file, APIVersion, Kind, c.APIVersion, c.Kind)
	}
	return nil
}

// name turns a mistake into an error that names the flag that set the field, if one did, or else the field.
func (f *flags) name(mistake *field.Error) error {
	where := mistake.Field
	f.set.Visit(func(set *flag.Flag) {
		if f.fields[set.Name] == mistake.Field {
			where = "--" + set.Name
		}
	})
	return fmt.Errorf("%s: %s", where, mistake.ErrorBody())
}
