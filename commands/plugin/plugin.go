// Package plugin holds the commands of kubectl csr. They show what the objects in a cluster say, and judge requests of
// kubelets by the same functions as the manager. Events are quoted, and nothing follows from them: other users can write
// them too. The commands read no key and issue nothing.
package plugin

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/serving"
)

// defaultNamespace is the namespace of the manager in the manifests and the chart.
const defaultNamespace = "csr-controller-manager-system"

// callTimeout bounds each call to the API server.
const callTimeout = time.Minute

// cluster is the API server of a command.
type cluster struct {
	kubernetes.Interface
	authorities rest.Interface // for SigningAuthorities, which Interface does not know
	config      *rest.Config
	host        string
	// namespace is that of the manager, if the user names it.
	namespace string
	clock     clock.PassiveClock
	// ahead is how far clock is ahead of the API server's, in nanoseconds. The pager of client-go lists the next page, whose
	// answer changes it, while a command reads the time.
	ahead atomic.Int64
	// shown is the serving certificate in the last answer of the API server.
	shown atomic.Pointer[x509.Certificate]
	// objects say to which nodes names and addresses belong, once they are read.
	objects *serving.Cluster
	// answers holds the answers of once.
	answers map[string]bool
}

// now returns the time of the API server, which sets the times in objects.
func (c *cluster) now() time.Time { return c.clock.Now().Add(-time.Duration(c.ahead.Load())) }

// Execute runs the command that args name. It writes the result to out, and all else to aside.
func Execute(ctx context.Context, version string, args []string, in io.Reader, out, aside io.Writer) error {
	rules, overrides := clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}
	root := newRoot(version, func() (*cluster, error) { return connectTo(version, rules, overrides) })
	flags := root.PersistentFlags()
	flags.StringVar(&rules.ExplicitPath, "kubeconfig", "", "`file` to reach the API server with")
	clientcmd.BindOverrideFlags(overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	flags.Lookup("namespace").Usage = "namespace of the manager (default " + defaultNamespace + ", and kube-system)"
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(aside)
	return root.ExecuteContext(ctx)
}

// connector returns the API server that the flags name.
type connector func() (*cluster, error)

// newRoot returns the command kubectl csr.
func newRoot(version string, connect connector) *cobra.Command {
	root := &cobra.Command{
		Use:         "kubectl-csr",
		Annotations: map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl csr"},
		Short:       "Show and approve CertificateSigningRequests, check their manager, rotate CAs, block credentials",
		Long: `kubectl csr shows what the objects of a cluster say about CertificateSigningRequests, and what
csr-controller-manager says about them. It acts with your rights, and reads no key.`,
		Version:       version,
		SilenceErrors: true, // main prints errors
		SilenceUsage:  true,
	}
	// No template of cobra is set: with text/template, the linker keeps every method of client-go, which doubles the program.
	root.AddCommand(
		pendingCommand(connect), explainCommand(connect), approveCommand(connect), checkCommand(connect),
		rotationCommand(connect), renewCommand(connect), blockCommand(connect, "block", "Make API servers refuse a node, a user or a certificate"),
		blockCommand(connect, "unblock", "Let a node, a user or a certificate in again"),
	)
	for _, cmd := range root.Commands() {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	return root
}

func connectTo(version string, rules *clientcmd.ClientConfigLoadingRules, overrides *clientcmd.ConfigOverrides) (*cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the API server: %w", ascii.WithoutKeys(err))
	}
	c := &cluster{config: config, host: config.Host, namespace: overrides.Context.Namespace, clock: clock.RealClock{}, answers: map[string]bool{}}
	config.UserAgent = "kubectl-csr/" + version
	config.QPS = -1 // the API server's priority and fairness limits us
	if config.Timeout == 0 {
		config.Timeout = callTimeout
	}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return dated{next, c} })
	if c.Interface, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("reach the API server: %w", err)
	}
	c.authorities = c.CertificatesV1().RESTClient()
	return c, nil
}

// dated notes the time in each answer, so that a wrong clock of this machine changes no age. It also notes the certificate of
// the API server, whose names no node gets.
type dated struct {
	next    http.RoundTripper
	cluster *cluster
}

// RoundTrip implements http.RoundTripper.
func (d dated) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := d.next.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if at, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		ahead := d.cluster.clock.Now().Sub(at)
		if ahead.Abs() < 2*time.Second { // a Date has whole seconds
			ahead = 0
		}
		d.cluster.ahead.Store(int64(ahead))
	}
	if response.TLS != nil && len(response.TLS.PeerCertificates) > 0 {
		d.cluster.shown.Store(response.TLS.PeerCertificates[0])
	}
	return response, nil
}

// jsonFlag adds -o to cmd and returns whether it is given.
func jsonFlag(cmd *cobra.Command) *bool {
	asJSON := new(bool)
	cmd.Flags().FuncP("output", "o", "output `format`: json", func(text string) error {
		if *asJSON = text == "json"; !*asJSON {
			return errors.New("unknown output format; use json")
		}
		return nil
	})
	return asJSON
}

// run returns the RunE of a command: it connects and calls do.
func run(connect connector, do func(cmd *cobra.Command, c *cluster, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := connect()
		if err != nil {
			return err
		}
		return do(cmd, c, args)
	}
}

// namesOr returns a check that a command line has either names of requests, at most that many, or --node.
func namesOr(node *string, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if (len(args) > 0) == (*node != "") {
			return errors.New("give the NAME of a request, or --node NODE")
		}
		return cobra.MaximumNArgs(most)(cmd, args)
	}
}
