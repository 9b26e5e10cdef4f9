// Package kubelet renews the certificates of the kubelet of this host, and restarts that kubelet.
package kubelet

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/internal/wholefile"
)

// store is where a kubelet keeps the pairs of one kind, as client-go's FileStore does (util/certificate): each in a file of its own,
// and the one in use behind the link PREFIX-current.pem. While a renewal is not finished, the link PREFIX-before.pem leads to the
// pair that it replaces.
type store struct{ dir, prefix string }

func (s store) current() string { return filepath.Join(s.dir, s.prefix+"-current.pem") }
func (s store) before() string  { return filepath.Join(s.dir, s.prefix+"-before.pem") }

// read returns the pair in use.
func (s store) read() (*tls.Certificate, error) {
	pair, err := tls.LoadX509KeyPair(s.current(), s.current())
	if err != nil {
		return nil, fmt.Errorf("read the pair of the kubelet: %w", err)
	}
	return &pair, nil
}

// replace stores a pair, and makes it the one in use. A kubelet that starts at any instant finds the old or the new one.
func (s store) replace(cert, key []byte, now time.Time) error {
	old, err := os.Readlink(s.current())
	if err != nil {
		return fmt.Errorf("%s is not a link to a pair, as a kubelet that rotates its certificates makes it: %w", s.current(), err)
	}
	certs, err := certutil.ParseCertsPEM(cert)
	if err != nil {
		return err
	}
	text, err := certutil.EncodeCertificates(certs...) // without what else may stand in the request
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, s.prefix+now.Format("-2006-01-02-15-04-05")+".pem")
	if err := wholefile.Write(path, append(text, key...), func(*os.File) error { return nil }); err != nil {
		return err
	}
	if err := wholefile.Link(old, s.before()); err != nil {
		return err
	}
	return wholefile.Link(path, s.current())
}

// unfinished reports whether a renewal has replaced the pair in use, and was not finished.
func (s store) unfinished() (bool, error) {
	before, err := os.Readlink(s.before())
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	current, err := os.Readlink(s.current())
	if err == nil && current == before { // it ended before it replaced the pair
		return false, s.finish()
	}
	return err == nil, err
}

// finish forgets the pair that was replaced. Its file stays, as those of a kubelet do.
func (s store) finish() error { return os.Remove(s.before()) }

// undo makes the pair that was replaced the one in use again.
func (s store) undo() error { return os.Rename(s.before(), s.current()) }
