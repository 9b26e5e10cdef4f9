package commands

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/spf13/cobra"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
)

// explainTimeout bounds all calls to the API server together.
const explainTimeout = 30 * time.Second

// NewExplainCommand returns the command that explains one request, or those in a file.
func NewExplainCommand(source Source) *cobra.Command {
	file := ""
	cmd := &cobra.Command{
		Use:   "explain {NAME | -f FILE}",
		Short: "Say what becomes of a request, and why",
		Long: `explain says what a CertificateSigningRequest asks for, what becomes of it, why, and what to do. It changes
nothing. Give it the manager's configuration (--config, --signing-secret, ...), or it can only say what the defaults
would do.`,
		Args: MaxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case file != "" && len(args) > 0:
				return errors.New("explain: give a NAME or -f FILE, not both")
			case file != "":
				return explainFile(cmd, source, file)
			case len(args) == 0:
				return errors.New("explain: which request? Give its NAME, or -f FILE")
			}
			return explainName(cmd, source, args[0])
		},
	}
	cmd.Flags().StringVarP(&file, "f", "f", "", "`file` with requests, as from kubectl get csr NAME -o yaml; - is standard "+
		"input. Nothing is asked of the API server")
	source.Bind(cmd, Configuration)
	return cmd
}

func explainName(cmd *cobra.Command, source Source, name string) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), explainTimeout)
	defer cancel()
	server, err := connect(ctx, source, cmd)
	if err != nil {
		return err
	}
	setup, err := source.Setup(ctx, cmd)
	if err != nil {
		return err
	}
	api := explain.Server{Client: server.api, Config: server.config}
	return explain.Name(ctx, setup.Configuration, api, name, server.clock, cmd.OutOrStdout())
}

func explainFile(cmd *cobra.Command, source Source, file string) error {
	setup, err := source.Setup(cmd.Context(), cmd)
	if err != nil {
		return err
	}
	in := os.Stdin
	if file != "-" {
		opened, err := os.Open(file)
		if err != nil {
			return fmt.Errorf("-f: %w", err)
		}
		defer func() { _ = opened.Close() }()
		in = opened
	}
	return explain.All(cmd.Context(), setup.Configuration, in, clock.RealClock{}, cmd.OutOrStdout())
}
