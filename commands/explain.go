package commands

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// explainTimeout bounds all calls to the API server together.
const explainTimeout = 30 * time.Second

// Explain says what becomes of one request, or of those in a file, and why.
func Explain(ctx context.Context, args []string, out io.Writer) error {
	var file string
	command := &config.Command{
		Usage: "explain [flags] NAME\n       csr-controller-manager explain [flags] -f FILE",
		About: "explain says what a CertificateSigningRequest asks for, what becomes of it, why, and what to do. It changes nothing.\n" +
			"Give it the manager's configuration (--config, --signing-secret, ...), or it can only say what the defaults would do.",
		MaxArgs: 1,
		Flags: func(set *flag.FlagSet) {
			set.StringVar(&file, "f", "", "`file` with requests, as from kubectl get csr NAME -o yaml; - is standard input. Nothing is asked of the API server")
		},
	}
	configuration, err := load("explain", command, args, out)
	switch {
	case configuration == nil:
		return err
	case file != "" && len(command.Args) > 0:
		return errors.New("explain: give a NAME or -f FILE, not both")
	case file != "":
		return explainFile(ctx, configuration, file, out)
	case len(command.Args) == 0:
		return errors.New("explain: which request? Give its NAME, or -f FILE")
	}
	return explainName(ctx, configuration, command.Args[0], out)
}

func explainName(ctx context.Context, configuration *config.Configuration, name string, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	cluster, err := RESTConfig(configuration)
	if err != nil {
		return err
	}
	api, err := client.New(cluster, client.Options{Scheme: clientgoscheme.Scheme})
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	return explainFrom(ctx, configuration, server{api, cluster}, name, serverClock(ctx, cluster), out)
}

// server is an API server; without a config nobody can watch anything there.
type server struct {
	client.Client
	config *rest.Config
}

// explainFrom explains the request of that name that api has.
func explainFrom(ctx context.Context, configuration *config.Configuration, api server, name string, clock clock.PassiveClock, out io.Writer) error {
	obj := &certificatesv1.CertificateSigningRequest{}
	switch err := api.Get(ctx, client.ObjectKey{Name: name}, obj); {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("there is no CertificateSigningRequest %q: it never was, or it has been deleted; the cleaner deletes an approved one after an hour", name)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("may not get certificatesigningrequests, so nothing can be explained: %w", err)
	case err != nil:
		return fmt.Errorf("get request: %w", err)
	}
	e, err := newExplainer(ctx, configuration, api, authz.SubjectAccess{Client: api}, clock)
	if err != nil {
		return err
	}
	if e.nodes, err = newNodes(configuration, api); err != nil {
		return err
	}
	defer e.nodes.stop()
	_, err = io.WriteString(out, e.explain(ctx, obj))
	return err
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
	return explainAll(ctx, configuration, in, clock.RealClock{}, out)
}

// explainAll explains every request in a stream, without the API server. What is no request is an error, and keeps no
// other from being explained.
func explainAll(ctx context.Context, configuration *config.Configuration, in io.Reader, clock clock.PassiveClock, out io.Writer) error {
	objs, problem := readRequests(in)
	if len(objs) == 0 {
		return cmp.Or(problem, errors.New("-f: no CertificateSigningRequest in it"))
	}
	e, err := newExplainer(ctx, configuration, offline{}, offline{}, clock)
	if err != nil {
		return err
	}
	for i, obj := range objs {
		if i > 0 {
			_, err = io.WriteString(out, "\n\n")
			problem = errors.Join(problem, err)
		}
		_, err = io.WriteString(out, e.explain(ctx, obj))
		problem = errors.Join(problem, err)
	}
	return problem
}
