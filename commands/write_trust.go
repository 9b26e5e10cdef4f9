package commands

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/internal/wholefile"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// trustFileOptions are the flags of write-trust.
type trustFileOptions struct {
	from, to string
	also     []string
	accept   []string // SHA-256 of certificates, in lower-case hex; empty accepts all
	interval time.Duration
}

// writeTrustCommand returns the command that copies a trust bundle to a file whenever it changes.
func writeTrustCommand() *cobra.Command {
	o := &trustFileOptions{}
	cmd := &cobra.Command{
		Use:   "write-trust --from FILE --to FILE",
		Short: "Keep a trust bundle file on this host up to date",
		Long: `write-trust copies a trust bundle from a mounted ConfigMap to a file on this host, for the --client-ca-file of
an API server. The API server reads the file again by itself. write-trust contacts no API server. It writes nothing if
the bundle holds no certificate, or anything that is not a CA certificate. It does not replace a file that it has not
created. With --accept, it writes only CAs of --from that an administrator has accepted on this host.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "",
		"`file` with the trust bundle, from a volume of the ConfigMap where the manager publishes it")
	flags.StringVar(&o.to, "to", "", "`file` to write, in a folder that exists")
	_, _ = cmd.MarkFlagRequired("from"), cmd.MarkFlagRequired("to") // the flags exist
	flags.StringArrayVar(&o.also, "also", nil, "`file` with more CAs to trust; may be given again")
	flags.Func("accept", "SHA-256 `fingerprint` of a CA certificate, as openssl x509 -fingerprint -sha256 prints it, "+
		"that --from may hold; may be given again (default: any CA)", func(text string) error {
		sum256 := strings.ToLower(strings.ReplaceAll(text, ":", ""))
		if sum, err := hex.DecodeString(sum256); err != nil || len(sum) != sha256.Size {
			return errors.New("want the SHA-256 fingerprint as 64 hexadecimal digits")
		}
		o.accept = append(o.accept, sum256)
		return nil
	})
	flags.DurationVar(&o.interval, "interval", 5*time.Second, "`time` between two checks; 0 checks once and exits")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		logger := newLogger(0, os.Stderr)
		switch {
		case o.to == o.from || slices.Contains(o.also, o.to):
			return errors.New("--to: names a file that --from or --also reads: name another file")
		case o.interval < 0:
			return fmt.Errorf("--interval: %s is negative: use for example 5s", o.interval)
		case o.interval == 0:
			return o.once(logger)
		}
		o.keep(cmd.Context(), logger)
		return nil
	}
	return cmd
}

// keep checks the file at each interval until ctx ends. If a check fails, the file stays unchanged, and keep logs the
// problem once.
func (o *trustFileOptions) keep(ctx context.Context, logger logr.Logger) {
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

// once writes the file if its content differs from the bundle.
func (o *trustFileOptions) once(logger logr.Logger) error {
	bundle, count, err := o.read()
	if err != nil {
		return err
	}
	written, err := replaceFile(o.to, trustFileMark, bundle)
	if written {
		logger.Info("Wrote the CAs to trust", "file", o.to, "certificates", count)
	}
	return err
}

// trustFileMark is the first line of a file that write-trust has created. PEM may have text before and between its
// blocks (RFC 7468, section 2). client-go's cert.ParseCertsPEM skips it.
const trustFileMark = "# Kept by csr-controller-manager write-trust: it replaces what is changed here.\n"

// read returns the certificates of all files without duplicates, and their number. It returns an error if from holds a
// certificate that accept does not list. It does not compare the files of also: an administrator put them on this host.
func (o *trustFileOptions) read() ([]byte, int, error) {
	var bundle []byte
	seen := map[string]bool{}
	for i, file := range slices.Concat([]string{o.from}, o.also) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, 0, err
		}
		certs, err := readBundle(data)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", file, err)
		}
		for _, cert := range certs {
			sum := sha256.Sum256(cert.Raw)
			fingerprint := hex.EncodeToString(sum[:])
			if i == 0 && len(o.accept) > 0 && !slices.Contains(o.accept, fingerprint) {
				return nil, 0, fmt.Errorf("%s: the CA %s is not accepted: compare its fingerprint, then add --accept %s",
					file, strconv.QuoteToASCII(cert.Subject.CommonName), fingerprint)
			}
			if !seen[fingerprint] {
				bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
			}
			seen[fingerprint] = true
		}
	}
	return bundle, len(seen), nil
}

// readBundle returns the CA certificates in data. It returns an error if there is none, or anything else: the file is
// world-readable, and must not hold a key.
func readBundle(data []byte) ([]*x509.Certificate, error) {
	certs, err := ca.ParseCertificates(data)
	begun := bytes.Count(data, []byte("-----BEGIN "))
	switch {
	case err != nil:
		return nil, err
	case begun != len(certs):
		return nil, fmt.Errorf("%d of %d PEM blocks are no certificates, or cannot be parsed: remove them", begun-len(certs), begun)
	case len(certs) == 0:
		return nil, errors.New("holds no certificate")
	}
	for i, cert := range certs {
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %d, %s, is not a CA certificate", i+1, cert.Subject)
		}
	}
	return certs, nil
}

// replaceFile writes mark and data to path, and reports whether it changed the file. It returns an error if the file at path
// neither begins with mark nor is one of mayReplace.
func replaceFile(path, mark string, data []byte, mayReplace ...[]byte) (written bool, err error) {
	data = slices.Concat([]byte(mark), data)
	found, err := os.Lstat(path)
	if err == nil && !found.Mode().IsRegular() {
		return false, fmt.Errorf("%s is not a regular file: choose another --to", path)
	}
	if err == nil {
		var held []byte
		held, err = os.ReadFile(path)
		isHeld := func(other []byte) bool { return bytes.Equal(other, held) }
		if err == nil && !bytes.HasPrefix(held, []byte(mark)) && !slices.ContainsFunc(mayReplace, isHeld) {
			return false, fmt.Errorf("%s was not created by this command: move it away, or choose another --to", path)
		}
		if isHeld(data) && found.Mode().Perm() == 0o644 {
			return false, nil
		}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	err = wholefile.Write(path, data, func(file *os.File) error { return file.Chmod(0o644) })
	return err == nil, err
}
