package commands

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// explainTimeout bounds all calls to the API server together.
const explainTimeout = 30 * time.Second

// explainCommand returns the command that explains one request, or those in a file.
func (p *program) explainCommand() *cobra.Command {
	own, file := pflag.NewFlagSet("explain", pflag.ContinueOnError), ""
	own.StringVarP(&file, "f", "f", "", "`file` with requests, as from kubectl get csr NAME -o yaml; - is standard "+
		"input. Nothing is asked of the API server")
	cmd := &cobra.Command{
		Use:   "explain {NAME | -f FILE}",
		Short: "Say what becomes of a request, and why",
		Long: `explain says what a CertificateSigningRequest asks for, what becomes of it, why, and what to do. It changes
nothing. Give it the manager's configuration (--config, --signing-secret, ...), or it can only say what the defaults
would do.`,
	}
	command := &config.Command{Flags: own, MaxArgs: 1}
	return p.configured(cmd, command, func(cmd *cobra.Command, configuration *config.Configuration, args []string) error {
		switch {
		case file != "" && len(args) > 0:
			return errors.New("explain: give a NAME or -f FILE, not both")
		case file != "":
			return explainFile(cmd.Context(), configuration, file, cmd.OutOrStdout())
		case len(args) == 0:
			return errors.New("explain: which request? Give its NAME, or -f FILE")
		}
		return explainName(cmd.Context(), configuration, args[0], cmd.OutOrStdout())
	})
}

func explainName(ctx context.Context, configuration *config.Configuration, name string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	server, err := connect(ctx, configuration)
	if err != nil {
		return err
	}
	api := explain.Server{Client: server.api, Config: server.config}
	return explain.Name(ctx, configuration, api, name, server.clock, out)
}

func explainFile(ctx context.Context, configuration *config.Configuration, file string, out io.Writer) error {
	in := os.Stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("-f: %w", err)
		}
		defer func() { _ = opened.Close() }()
		in = opened
	}
	return explain.All(ctx, configuration, in, clock.RealClock{}, out)
}
