package commands

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/util/cert"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

var fixedNow = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

func bundled(t *testing.T, name string) []byte {
	t.Helper()
	made, _, err := ca.New(ca.NewOptions{CommonName: name, Lifetime: time.Hour}, fixedNow)
	kit.NoError(t, err)
	return made.CertificatePEM()
}

// trustFolder returns options that copy from one temporary folder to another.
func trustFolder(t *testing.T) trustFileOptions {
	t.Helper()
	return trustFileOptions{from: filepath.Join(t.TempDir(), "ca.crt"), to: filepath.Join(t.TempDir(), "client-ca.crt")}
}

func put(t testing.TB, path string, parts ...[]byte) {
	t.Helper()
	kit.NoError(t, os.WriteFile(path, slices.Concat(parts...), 0o600))
}

// trusts checks the common names in a file, as an API server reads them.
func trusts(t *testing.T, path string, want ...string) {
	t.Helper()
	certs, err := cert.CertsFromFile(path)
	kit.NoError(t, err)
	var names []string
	for _, each := range certs {
		names = append(names, each.Subject.CommonName)
	}
	if !slices.Equal(names, want) {
		t.Errorf("trusts %q, want %q", names, want)
	}
}

// TestWriteTrust checks what is written, and when. Each change makes another file, so that a reader never sees half of one.
func TestWriteTrust(t *testing.T) {
	o := trustFolder(t)
	a, b, c := bundled(t, "a"), bundled(t, "b"), bundled(t, "c")
	put(t, o.from, b, []byte("a text between\n"), a, b)
	put(t, o.to+".csr-new", []byte("what a crash has left"))
	var last os.FileInfo
	once := func(replaced bool, want ...string) {
		t.Helper()
		kit.NoError(t, o.once(logr.Discard()))
		trusts(t, o.to, want...)
		info, err := os.Stat(o.to)
		if err != nil || info.Mode().Perm() != 0o644 || last != nil && os.SameFile(last, info) == replaced {
			t.Errorf("%v, error %v; want another file: %t", info, err, replaced)
		}
		last = info
	}
	once(true, "b", "a")
	once(false, "b", "a") // nothing has changed
	// Another program writes a part of the bundle to the file, with the same first line.
	put(t, o.to, []byte(trustFileMark), a)
	once(true, "b", "a")
	kit.NoError(t, os.Chmod(o.to, 0o600))
	once(true, "b", "a")
	// The old CA is removed, and other CAs stay.
	put(t, o.from, b)
	o.also = []string{filepath.Join(filepath.Dir(o.from), "also.crt")}
	put(t, o.also[0], c, b)
	once(true, "b", "c")
	if left, err := filepath.Glob(filepath.Join(filepath.Dir(o.to), "*")); err != nil || len(left) != 1 {
		t.Errorf("left %v, error %v", left, err)
	}
}

// TestWriteTrustRefuses checks that the file stays as it is if the input or the target is invalid.
func TestWriteTrustRefuses(t *testing.T) {
	good := bundled(t, "a")
	other := bundled(t, "b")

	for name, test := range map[string]struct {
		change func(t *testing.T, o *trustFileOptions)
		want   string
	}{
		"empty":   {func(t *testing.T, o *trustFileOptions) { put(t, o.from) }, "holds no certificate"},
		"cut off": {func(t *testing.T, o *trustFileOptions) { put(t, o.from, good, other[:len(other)-40]) }, "1 of 2 PEM blocks are no certificates, or cannot be parsed"},
		"no certificate": {func(t *testing.T, o *trustFileOptions) {
			put(t, o.from, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
		}, "parse certificate 1: x509"},
		"a key": {func(t *testing.T, o *trustFileOptions) {
			put(t, o.from, good, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY"}))
		}, "1 of 2 PEM blocks are no certificates"},
		"a client's": {func(t *testing.T, o *trustFileOptions) {
			leaf := kit.IssueCA(t, "b", kit.NewKey(t), nil, time.Hour).Leaf(t, "client")
			put(t, o.from, good, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf.Certificate[0]}))
		}, "certificate 2, CN=client, is not a CA certificate"},
		"gone":               {func(t *testing.T, o *trustFileOptions) { o.from += "-not" }, "no such file"},
		"kubeadm's own file": {func(t *testing.T, o *trustFileOptions) { put(t, o.to, other) }, "was not created by this command"},
		"a link":             {func(t *testing.T, o *trustFileOptions) { kit.NoError(t, os.Symlink(o.from, o.to)) }, "is not a regular file"},
		"no folder":          {func(_ *testing.T, o *trustFileOptions) { o.to = filepath.Join(o.to, "in", "it") }, "no such file"},
		"a folder in the way of the temporary file": {func(t *testing.T, o *trustFileOptions) {
			kit.NoError(t, os.MkdirAll(filepath.Join(o.to+".csr-new", "in"), 0o700))
		}, "directory not empty"},
	} {
		t.Run(name, func(t *testing.T) {
			o := trustFolder(t)
			put(t, o.from, good)
			test.change(t, &o)
			before, _ := os.ReadFile(o.to)
			if err := o.once(logr.Discard()); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if after, _ := os.ReadFile(o.to); !bytes.Equal(before, after) {
				t.Errorf("changed to %q", after)
			}
		})
	}
}

// TestWriteTrustKeepsOn checks that the command waits for a bundle that comes late, and ends with its context.
func TestWriteTrustKeepsOn(t *testing.T) {
	o := trustFolder(t)
	o.interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	lines, done := make(chan string, 100), make(chan struct{})
	logger := funcr.New(func(_, args string) { lines <- args }, funcr.Options{})
	go func() { defer close(done); o.keep(ctx, logger) }()
	if line := <-lines; !strings.Contains(line, "The file stays as it is") || !strings.Contains(line, "no such file") {
		t.Error(line)
	}
	put(t, o.from+"-staged", bundled(t, "a"))
	kit.NoError(t, os.Rename(o.from+"-staged", o.from))
	if line := <-lines; !strings.Contains(line, "Wrote the CAs to trust") || !strings.Contains(line, `"certificates"=1`) {
		t.Error(line)
	}
	cancel()
	<-done
}

// TestWriteTrustCommand checks the flags. With --accept, a CA of the bundle that is not listed keeps the file as it is. Files of
// --also are not compared: without their CAs, an API server would refuse the clients of these CAs.
func TestWriteTrustCommand(t *testing.T) {
	run := func(args ...string) error {
		return Execute(t.Context(), append([]string{"write-trust"}, args...), io.Discard)
	}
	for args, want := range map[string]string{
		"":                               `required flag(s) "from", "to" not set`,
		"--from a --to a":                "--to: names a file that --from or --also reads",
		"--from a --to b --also b":       "--to: names a file that --from or --also reads",
		"--from a --to b --interval -1s": "--interval: -1s is negative",
		"--from a --to b c":              `unknown command "c"`,
		"--from x --to y --accept abc":   "64 hexadecimal digits",
	} {
		if err := run(strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
	}
	o, a, b := trustFolder(t), bundled(t, "a"), bundled(t, "b")
	fingerprint := func(bundle []byte, format string) string {
		block, _ := pem.Decode(bundle)
		return fmt.Sprintf(format, sha256.Sum256(block.Bytes))
	}
	args := []string{"--from", o.from, "--to=" + o.to, "--also=" + o.from + "-others", "--also=" + o.from + "-second", "--interval=0"}
	args = append(args, "--accept", strings.ReplaceAll(fingerprint(a, "% X"), " ", ":"))
	put(t, o.from, a)
	put(t, o.from+"-others", bundled(t, "others"))
	put(t, o.from+"-second", bundled(t, "second"))
	kit.NoError(t, run(args...))
	trusts(t, o.to, "a", "others", "second")
	put(t, o.from, a, b)
	want := "the CA \"b\" is not accepted: compare its fingerprint, then add --accept " + fingerprint(b, "%x")
	if err := run(args...); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	trusts(t, o.to, "a", "others", "second")
	kit.NoError(t, run(append(args, "--accept="+fingerprint(b, "%x"))...))
	trusts(t, o.to, "a", "b", "others", "second")
}
