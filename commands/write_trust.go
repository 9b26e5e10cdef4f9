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
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/wait"
)

// trustFileOptions are the flags of write-trust.
type trustFileOptions struct {
	from, to string
	also     []string
	accept   []string // SHA-256 of certificates, in lower-case hex; empty accepts all
	interval time.Duration
}

// writeTrustCommand returns the command that copies a bundle of CAs to a file whenever it changes.
func writeTrustCommand() *cobra.Command {
	o := &trustFileOptions{}
	cmd := &cobra.Command{
		Use:   "write-trust --from FILE --to FILE",
		Short: "Keep a file of this host as the CAs that its API server is to trust",
		Long: `write-trust keeps a file on this host as a file of a mounted ConfigMap is: the CAs that an API server is to
trust, for its --client-ca-file, which it reads again by itself. It asks no API server. What holds no certificate, or
something that is none, it does not write, and a file that it has not made it does not replace. With --accept, it
writes only the CAs of --from that an administrator has accepted on this host.`,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(args); err != nil {
				return usageError(cmd, err)
			}
			logger := NewLogger(0, os.Stderr)
			if o.interval == 0 {
				return o.once(logger)
			}
			o.keep(cmd.Context(), logger)
			return nil
		},
	}
	o.define(cmd.Flags())
	return cmd
}

func (o *trustFileOptions) define(flags *pflag.FlagSet) {
	flags.StringVar(&o.from, "from", "", "`file` with the bundle, of a volume from the ConfigMap that it is published in")
	flags.StringVar(&o.to, "to", "", "`file` to keep, in a folder that exists")
	flags.StringArrayVar(&o.also, "also", nil,
		"`file` with CAs to trust beside the bundle, if there are any; may be given again")
	flags.Func("accept", "SHA-256 `fingerprint` of a CA certificate, as openssl x509 -fingerprint -sha256 prints it, "+
		"that --from may hold; may be given again (default any)", func(text string) error {
		sum256 := strings.ToLower(strings.ReplaceAll(text, ":", ""))
		if sum, err := hex.DecodeString(sum256); err != nil || len(sum) != sha256.Size {
			return errors.New("want 64 hexadecimal digits")
		}
		o.accept = append(o.accept, sum256)
		return nil
	})
	flags.DurationVar(&o.interval, "interval", 5*time.Second, "`time` between two looks; 0 is to look once")
}

// check returns every mistake in the command line.
func (o *trustFileOptions) check(args []string) error {
	problems := []error{atMost(0, args)}
	if o.from == "" || o.to == "" {
		problems = append(problems, errors.New("--from and --to: say what to write, and where"))
	} else if o.to == o.from || slices.Contains(o.also, o.to) {
		problems = append(problems, errors.New("--to: is what is read"))
	}
	if o.interval < 0 {
		problems = append(problems, fmt.Errorf("--interval: %s is too short", o.interval))
	}
	return errors.Join(problems...)
}

// keep looks again and again until ctx ends. A problem leaves the file as it is, and is logged once.
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

// once writes the file if it is not as it should be.
func (o *trustFileOptions) once(logger logr.Logger) error {
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

// trustFileMark is the first line of a file that write-trust has made. PEM may have text before and between its blocks
// (RFC 7468, section 2), and client-go's cert.ParseCertsPEM passes over it.
const trustFileMark = "# Kept by csr-controller-manager write-trust: it replaces what is changed here.\n"

// maxBundle is a ConfigMap's limit.
const maxBundle = 1 << 20

// read returns the certificates of all files, each once, and their number. It is an error if from holds a certificate
// that accept does not list. The files of also are not compared: a person has put them on this host.
func (o *trustFileOptions) read() ([]byte, int, error) {
	bundle, seen := []byte(trustFileMark), map[string]bool{}
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
				return nil, 0, fmt.Errorf("%s: the CA %s is not accepted: if it is yours, start write-trust with --accept %s too",
					file, strconv.QuoteToASCII(cert.Subject.CommonName), fingerprint)
			}
			if seen[string(cert.Raw)] {
				continue
			}
			seen[string(cert.Raw)] = true
			bundle = append(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
		}
	}
	return bundle, len(seen), nil
}

// readBundle are the CAs in data: at least one, and nothing else. A key in it would be for everybody to read.
func readBundle(data []byte) ([]*x509.Certificate, error) {
	if len(data) > maxBundle {
		return nil, fmt.Errorf("%d bytes are too many", len(data))
	}
	var certs []*x509.Certificate
	begun := bytes.Count(data, []byte("-----BEGIN ")) // Decode passes over a block that it can't read
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("has a block %q, and only certificates belong there", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(certs)+1, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("certificate %d, %s, is not a CA's", len(certs)+1, cert.Subject)
		}
		certs, data = append(certs, cert), rest
	}
	switch {
	case begun != len(certs):
		return nil, fmt.Errorf("%d of %d certificates can't be read", begun-len(certs), begun)
	case len(certs) == 0:
		return nil, errors.New("holds no certificate")
	}
	return certs, nil
}

// replaceTrustFile makes path hold data, and reports whether it wrote the file. A reader of path gets the old or the
// new data as a whole, even after a loss of power. It is an error if path is something that write-trust has not made.
func replaceTrustFile(path string, data []byte) (written bool, err error) {
	found, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return false, err
	case !found.Mode().IsRegular():
		return false, fmt.Errorf("%s is no plain file: another --to, please", path)
	default:
		held, err := os.ReadFile(path)
		switch {
		case err != nil:
			return false, err
		case !bytes.HasPrefix(held, []byte(trustFileMark)):
			return false, fmt.Errorf("%s was not made by write-trust: move it away, or choose another --to", path)
		case bytes.Equal(held, data) && found.Mode().Perm() == 0o644:
			return false, nil
		}
	}
	if err := writeWhole(path, data); err != nil {
		return false, err
	}
	return true, nil
}

// writeWhole writes a file beside path, and then gives it that name.
func writeWhole(path string, data []byte) error {
	temporary := path + ".new" // one that was left by a crash is overwritten
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(0o644), file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}
