package commands

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// Source gives a command its API server and the configuration of the running manager. The manager's own commands take
// both from the manager's flags. The kubectl plugin takes them from kubectl's flags and from the ConfigMaps that the
// managers publish.
type Source interface {
	// Bind adds the flags of the source to cmd. A constructor calls it last, when cmd has its own flags and RunE.
	Bind(cmd *cobra.Command, needs Needs)
	// REST returns how to reach the API server. It is called in RunE, with the command that runs.
	REST(cmd *cobra.Command) (*rest.Config, error)
	// Setup returns the configuration of the running manager. It is called in RunE, with the command that runs.
	Setup(ctx context.Context, cmd *cobra.Command) (*Setup, error)
}

// Needs says what a command needs of its Source.
type Needs int

const (
	// APIServer is for a command that needs only the API server.
	APIServer Needs = iota
	// Configuration is for a command that also needs the configuration of the manager.
	Configuration
)

// managerSource is the Source of the manager's own commands.
type managerSource struct {
	*program
	// loaded is the configuration of the command that runs.
	loaded *config.Configuration
}

// Bind adds the manager's flags to cmd, or only --kubeconfig if cmd needs no configuration.
func (s *managerSource) Bind(cmd *cobra.Command, needs Needs) {
	if needs == APIServer {
		cmd.PersistentFlags().String("kubeconfig", "",
			"`file` to reach the API server with (default as kubectl: $KUBECONFIG, ~/.kube/config)")
		return
	}
	own := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	own.AddFlagSet(cmd.Flags())
	run := cmd.RunE
	s.configured(cmd, &config.Command{Flags: own}, func(
		cmd *cobra.Command, configuration *config.Configuration, args []string,
	) error {
		s.loaded = configuration
		return run(cmd, args)
	})
}

// REST returns how to reach the API server that the manager's flags name.
func (s *managerSource) REST(cmd *cobra.Command) (*rest.Config, error) {
	if s.loaded != nil {
		return RESTConfig(s.loaded)
	}
	c := config.Default()
	var err error
	if c.Kubeconfig, err = cmd.Flags().GetString("kubeconfig"); err != nil {
		return nil, err
	}
	return RESTConfig(c)
}

// Setup returns the configuration that the manager's flags describe.
func (s *managerSource) Setup(context.Context, *cobra.Command) (*Setup, error) {
	if s.loaded == nil {
		return nil, errors.New("the command has no flags for a configuration")
	}
	return &Setup{Configuration: s.loaded, AsManager: true}, nil
}

// MaxArgs returns a check that a command has at most that many arguments.
func MaxArgs(most int) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error { return atMost(most, args) }
}

// shortPath returns the names of cmd and of its parents, without the program's name.
func shortPath(cmd *cobra.Command) string {
	return strings.TrimSpace(strings.TrimPrefix(cmd.CommandPath(), cmd.Root().CommandPath()))
}

// usageError returns an error about a command line with problems, or nil if there are none.
func usageError(cmd *cobra.Command, problems ...error) error {
	if err := errors.Join(problems...); err != nil {
		return fmt.Errorf("%s (--help lists the flags): %w", shortPath(cmd), err)
	}
	return nil
}

// atMost returns an error about the first of args that is too many.
func atMost(most int, args []string) error {
	if len(args) <= most {
		return nil
	}
	return fmt.Errorf("unexpected argument %q", args[most])
}
