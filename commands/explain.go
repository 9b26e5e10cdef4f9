package commands

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
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
	server, err := connect(ctx, configuration)
	if err != nil {
		return err
	}
	return explain.Name(ctx, configuration, explain.Server{Client: server.api, Config: server.config}, name, server.clock, out)
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
