package commands

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
)

const writeTrustHelp = `write-trust keeps a file on this host as a file of a mounted ConfigMap is: the CAs that an API server is to trust, for its
--client-ca-file, which it reads again by itself. It asks no API server. What holds no certificate, or something that is none,
it does not write, and a file that it has not made it does not replace. With --accept, a CA of --from that nobody has accepted is
not written either: a new CA then waits for a person, on each host.

Usage: csr-controller-manager write-trust --from FILE --to FILE [flags]

`

// trustFileOptions are the flags of write-trust.
type trustFileOptions struct {
	from, to string
	also     []string
	accept   []string // SHA-256 of certificates, in lower-case hex; empty accepts all
	interval time.Duration
}

// WriteTrust copies a bundle of CAs to a file whenever it changes.
func WriteTrust(ctx context.Context, args []string, out io.Writer) error {
	options, err := trustFileFlags(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("write-trust (--help lists the flags): %w", err)
	case options.interval == 0:
		return options.once(NewLogger(0, os.Stderr))
	}
	options.keep(ctx, NewLogger(0, os.Stderr))
	return nil
}

func trustFileFlags(args []string, out io.Writer) (trustFileOptions, error) {
	o := trustFileOptions{}
	set := flag.NewFlagSet("write-trust", flag.ContinueOnError)
	set.StringVar(&o.from, "from", "", "`file` with the bundle, of a volume from the ConfigMap that it is published in")
	set.StringVar(&o.to, "to", "", "`file` to keep, in a folder that exists")
	set.Func("also", "`file` with CAs to trust beside the bundle, if there are any; may be given again", func(file string) error {
		o.also = append(o.also, file)
		return nil
	})
	set.Func("accept", "SHA-256 `fingerprint` of a CA certificate, as openssl x509 -fingerprint -sha256 prints it, that --from may hold; may be given again (default any)", func(text string) error {
		sum256 := strings.ToLower(strings.ReplaceAll(text, ":", ""))
		if sum, err := hex.DecodeString(sum256); err != nil || len(sum) != sha256.Size {
			return errors.New("want 64 hexadecimal digits")
		}
		o.accept = append(o.accept, sum256)
		return nil
	})
	set.DurationVar(&o.interval, "interval", 5*time.Second, "`time` between two looks; 0 is to look once")
	rest, err := parse(set, args, writeTrustHelp, out)
	if err != nil {
		return o, err
	}
	problems := []error{atMost(0, rest)}
	if o.from == "" || o.to == "" {
		problems = append(problems, errors.New("--from and --to: say what to write, and where"))
	} else if o.to == o.from || slices.Contains(o.also, o.to) {
		problems = append(problems, errors.New("--to: is what is read"))
	}
	if o.interval < 0 {
		problems = append(problems, fmt.Errorf("--interval: %s is too short", o.interval))
	}
	return o, errors.Join(problems...)
}

// keep looks again and again until ctx ends. A problem leaves the file as it is, and is logged once.
func (o trustFileOptions) keep(ctx context.Context, logger logr.Logger) {
	last := ""
	wait.UntilWithContext(ctx, func(context.Context) {
		problem := ""
		if err := o.once(logger); err != nil {
			problem = err.Error()
		}
		if problem != last && problem != "" {
			logger.Info("The file stays as it is", "why", problem)
		}
		last = problem
	}, o.interval)
}

// once writes the file if it is not as it should be.
func (o trustFileOptions) once(logger logr.Logger) error {
	bundle, count, err := o.read()
	if err != nil {
		return err
	}
	written, err := replaceTrustFile(o.to, bundle)
	if written {
		logger.Info("Wrote the CAs to trust", "file", o.to, "certificates", count)
	}
	return err
}
