// Package commands holds the subcommands: questions to a cluster that a person asks, with the manager's flags.
package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// Command runs with the arguments after its name and writes its answer to out. An error is for the person; the exit code
// is then 1.
type Command func(ctx context.Context, args []string, out io.Writer) error

// ByName are the subcommands.
var ByName = map[string]Command{
	"bootstrap-token": BootstrapToken,
	"check":           Check,
	"explain":         Explain,
	"rotation":        Rotation,
	"write-trust":     WriteTrust,
}

// Version is set by main.
var Version string

// VersionOrBuild is Version, or what the build has noted.
func VersionOrBuild() string {
	if Version != "" {
		return Version
	}
	if build, ok := debug.ReadBuildInfo(); ok {
		return build.Main.Version
	}
	return "unknown"
}

// load returns the configuration of the subcommand called name, or nil when it was asked for help or the version only,
// which it then has given.
func load(name string, command *config.Command, args []string, out io.Writer) (*config.Configuration, error) {
	configuration, err := config.LoadCommand(command, args, out)
	switch {
	case errors.Is(err, config.ErrHelp):
		return nil, nil
	case errors.Is(err, config.ErrVersion):
		_, err = fmt.Fprintln(out, "csr-controller-manager", VersionOrBuild())
		return nil, err
	case err != nil:
		return nil, fmt.Errorf("bad configuration (%s --help lists the flags):\n%w", name, err)
	}
	return configuration, nil
}
