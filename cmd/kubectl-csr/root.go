package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/commands"
)

// execute runs the command that args name. Its result goes to out, and all else to aside.
func execute(ctx context.Context, args []string, out, aside io.Writer) error {
	root := newRoot(&kubectl{flags: genericclioptions.NewConfigFlags(true)})
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(aside)
	return root.ExecuteContext(ctx)
}

// newRoot returns the command kubectl csr.
func newRoot(source *kubectl) *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-csr",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl csr"},
		Short:       "Explain and approve CertificateSigningRequests, check their manager, rotate CAs",
		Long: `kubectl csr works with a csr-controller-manager that runs in the cluster. It acts with your rights. It reads
the manager's configuration from the ConfigMaps that the manager publishes in its namespace (-n).`,
		Version:       commands.VersionOrBuild(),
		SilenceErrors: true, // main prints errors
		SilenceUsage:  true,
	}
	root.SetVersionTemplate("kubectl-csr {{.Version}}\n")
	source.flags.AddFlags(root.PersistentFlags())
	namespace := root.PersistentFlags().Lookup("namespace")
	namespace.Usage = "`namespace` of the manager (default " + commands.DefaultNamespace + ", then kube-system)"
	root.AddCommand(
		commands.NewExplainCommand(source), commands.NewCheckCommand(source), commands.NewPendingCommand(source),
		commands.NewApproveCommand(source), commands.NewRotationCommand(source),
	)
	return root
}

// kubectl is the Source of the plugin: kubectl's flags, and what the managers publish.
type kubectl struct {
	flags *genericclioptions.ConfigFlags
	file  string // of --config
}

var _ commands.Source = &kubectl{}

// Bind adds --config to a command that needs a configuration, and -v to one that can show more.
func (k *kubectl) Bind(cmd *cobra.Command, needs commands.Needs) {
	if needs == commands.Configuration {
		cmd.Flags().StringVar(&k.file, "config", "",
			"`file` with the manager's configuration, instead of what the manager publishes")
	}
	if all := cmd.Flags().Lookup("all"); all != nil {
		verbose := cmd.Flags().VarPF(all.Value, "verbose", "v", "the same as --all")
		verbose.NoOptDefVal = all.NoOptDefVal
	}
}

// REST returns how kubectl's flags and kubeconfig reach the API server.
func (k *kubectl) REST(*cobra.Command) (*rest.Config, error) {
	cluster, err := k.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", err)
	}
	cluster.UserAgent = "kubectl-csr/" + commands.VersionOrBuild()
	cluster.QPS = -1 // the API server's priority and fairness limits us
	return cluster, nil
}

// Setup returns the configuration in the file of --config, else what the managers publish.
func (k *kubectl) Setup(ctx context.Context, cmd *cobra.Command) (*commands.Setup, error) {
	if k.file != "" {
		return commands.ReadFile(k.file)
	}
	cluster, err := k.REST(cmd)
	if err != nil {
		return nil, err
	}
	api, err := commands.NewClient(cluster)
	if err != nil {
		return nil, err
	}
	return commands.ReadPublished(ctx, api, *k.flags.Namespace, cmd.ErrOrStderr()), nil
}
