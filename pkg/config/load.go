package config

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"sigs.k8s.io/yaml"
)

// ErrHelp and ErrVersion are returned by Load if the flags ask for that.
var (
	ErrHelp    = pflag.ErrHelp
	ErrVersion = errors.New("version requested")
)

// Command is what a command takes beside the manager's flags.
type Command struct {
	Flags   *pflag.FlagSet
	MaxArgs int
}

// Load returns the configuration: the defaults, overridden by the file that --config names, overridden by the other
// flags in args. It also returns the other arguments that command, which is nil for the manager, takes. Only the
// manager needs a CA. An error holds every mistake, each with its flag or field path.
func Load(args []string, command *Command) (*Configuration, []string, error) {
	manager := command == nil
	if manager {
		command = &Command{}
	}
	scout := NewFlags(Default())
	rest, errs := parse(scout.together(command.Flags), args)
	switch {
	case scout.help:
		return nil, nil, ErrHelp
	case scout.version:
		return nil, nil, ErrVersion
	}
	rest, surplus := rest[:min(len(rest), command.MaxArgs)], rest[min(len(rest), command.MaxArgs):]
	for _, arg := range surplus {
		errs = append(errs, fmt.Errorf("unexpected argument %q", arg))
	}
	configuration := Default()
	if scout.file != "" {
		if err := configuration.read(scout.file); err != nil {
			return nil, rest, errors.Join(append(errs, err)...)
		}
	}
	// The same flags again, with the same mistakes: now they override the file.
	flags := NewFlags(configuration)
	set := flags.together(command.Flags)
	_, _ = parse(set, args)
	for _, mistake := range configuration.validate(manager) {
		errs = append(errs, flags.name(set, mistake))
	}
	return configuration, rest, errors.Join(errs...)
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
		return fmt.Errorf("--config: %s: want apiVersion %s and kind %s, found %q and %q",
			file, APIVersion, Kind, c.APIVersion, c.Kind)
	}
	return nil
}
