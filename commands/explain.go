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

const (
	// explainTimeout bounds all calls to the API server together, except for the calls of --watch.
	explainTimeout = 30 * time.Second
	// watchTimeout is the default of --timeout: a kubelet waits for about as long.
	watchTimeout = 5 * time.Minute
)

// explainOptions are the flags of explain.
type explainOptions struct {
	file    string
	format  *string
	watch   bool
	timeout time.Duration
}

// NewExplainCommand returns the command that explains one request, or the requests in a file.
func NewExplainCommand(source Source) *cobra.Command {
	o := &explainOptions{}
	cmd := &cobra.Command{
		Use:   "explain {NAME | -f FILE}",
		Short: "Explain a request: the next step, the decision and its reason, the timeline",
		Long: `explain explains a CertificateSigningRequest: the next step, the decision and its reason, what has happened
to the request, and the details. It changes nothing. It needs the manager's configuration: without one it uses the
defaults.`,
		Args: MaxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args); err != nil {
				return usageError(cmd, err)
			}
			if o.file != "" {
				return o.explainFile(cmd, source)
			}
			return o.explainName(cmd, source, args[0])
		},
	}
	cmd.Flags().StringVarP(&o.file, "f", "f", "", "`file` with requests, as from kubectl get csr NAME -o yaml; - is "+
		"standard input. The API server is not asked")
	cmd.Flags().BoolVarP(&o.watch, "watch", "w", false, "wait until the request is issued, denied or failed")
	cmd.Flags().DurationVar(&o.timeout, "timeout", watchTimeout, "how long --watch waits at most")
	o.format = outputFlag(cmd, "text")
	source.Bind(cmd, Configuration)
	return cmd
}

// check returns what is wrong with the flags and arguments.
func (o *explainOptions) check(args []string) error {
	err := checkOutput(*o.format)
	switch {
	case o.file != "" && len(args) > 0:
		err = errors.Join(err, errors.New("give a NAME or -f FILE, not both"))
	case o.file == "" && len(args) == 0:
		err = errors.Join(err, errors.New("give the NAME of a request, or -f FILE"))
	case o.file != "" && o.watch:
		err = errors.Join(err, errors.New("--watch needs the NAME of a request, because a file does not change"))
	}
	if o.watch && o.timeout <= 0 {
		err = errors.Join(err, errors.New("--timeout must be positive"))
	}
	return err
}

func (o *explainOptions) explainName(cmd *cobra.Command, source Source, name string) error {
	bound := explainTimeout
	if o.watch {
		bound += o.timeout
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), bound)
	defer cancel()
	e, server, _, err := newExplainer(ctx, cmd, source)
	if err != nil {
		return err
	}
	defer e.Close()
	if o.watch {
		report, err := e.Watch(ctx, server.api, name, o.timeout, cmd.ErrOrStderr())
		if report != nil {
			err = errors.Join(explain.Write(cmd.OutOrStdout(), *o.format, report), err)
		}
		return err
	}
	obj, err := explain.Get(ctx, server.api, name)
	if err != nil {
		return err
	}
	return explain.Write(cmd.OutOrStdout(), *o.format, e.Report(ctx, obj))
}

// newExplainer returns an Explainer with the configuration of source, and the API server that it asks.
func newExplainer(ctx context.Context, cmd *cobra.Command, source Source) (*explain.Explainer, server, *Setup, error) {
	server, err := connect(ctx, source, cmd)
	if err != nil {
		return nil, server, nil, err
	}
	setup, err := source.Setup(ctx, cmd)
	if err != nil {
		return nil, server, nil, err
	}
	api := explain.Server{Client: server.api, Config: server.config, Program: programName(cmd)}
	e, err := explain.New(ctx, setup.Configuration, api, server.clock)
	return e, server, setup, err
}

// programName returns how the user calls the program of cmd: csr-controller-manager or kubectl csr.
func programName(cmd *cobra.Command) string { return cmd.Root().CommandPath() }

func (o *explainOptions) explainFile(cmd *cobra.Command, source Source) error {
	setup, err := source.Setup(cmd.Context(), cmd)
	if err != nil {
		return err
	}
	in := os.Stdin
	if o.file != "-" {
		opened, err := os.Open(o.file)
		if err != nil {
			return fmt.Errorf("-f: %w", err)
		}
		defer func() { _ = opened.Close() }()
		in = opened
	}
	reports, err := explain.All(cmd.Context(), setup.Configuration, in, clock.RealClock{})
	return errors.Join(explain.Write(cmd.OutOrStdout(), *o.format, reports...), err)
}
