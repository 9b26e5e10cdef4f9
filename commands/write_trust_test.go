package commands

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/client-go/util/cert"
)

// fixedNow is when commands run in tests.
var fixedNow = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

// bundled makes a certificate in PEM.
func bundled(t *testing.T, name string, isCA bool) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: isCA, BasicConstraintsValid: true,
		NotBefore: fixedNow, NotAfter: fixedNow.AddDate(1, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// trustFolder returns options that copy from one temporary folder to another.
func trustFolder(t *testing.T) trustFileOptions {
	t.Helper()
	return trustFileOptions{from: filepath.Join(t.TempDir(), "ca.crt"), to: filepath.Join(t.TempDir(), "client-ca.crt")}
}

// may fails the test if there is an error.
func may(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func put(t testing.TB, path string, parts ...[]byte) {
	t.Helper()
	may(t, os.WriteFile(path, slices.Concat(parts...), 0o600))
}

// trusts returns the common names in a file, as an API server reads them.
func trusts(t *testing.T, path string) []string {
	t.Helper()
	certs, err := cert.CertsFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, each := range certs {
		names = append(names, each.Subject.CommonName)
	}
	return names
}

// TestWriteTrust checks what is written, and when. Each change makes another file, so that a reader never sees half of one.
func TestWriteTrust(t *testing.T) {
	t.Parallel()
	o := trustFolder(t)
	a, b, c := bundled(t, "a", true), bundled(t, "b", true), bundled(t, "c", true)
	put(t, o.from, b, []byte("a text between\n"), a, b)
	put(t, o.to+".new", []byte("what a crash has left"))
	var last os.FileInfo
	once := func(replaced bool, want ...string) {
		t.Helper()
		may(t, o.once(logr.Discard()))
		if got := trusts(t, o.to); !slices.Equal(got, want) {
			t.Errorf("trusts %v, want %v", got, want)
		}
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
	may(t, os.Chmod(o.to, 0o600))
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
	t.Parallel()
	good := bundled(t, "a", true)
	other := bundled(t, "b", true)
	broken := bytes.Replace(other, []byte("\n"), []byte("\n!"), 2)
	for name, test := range map[string]struct {
		change func(t *testing.T, o *trustFileOptions)
		want   string
	}{
		"empty":         {func(t *testing.T, o *trustFileOptions) { put(t, o.from) }, "holds no certificate"},
		"text":          {func(t *testing.T, o *trustFileOptions) { put(t, o.from, []byte("hello")) }, "holds no certificate"},
		"cut off":       {func(t *testing.T, o *trustFileOptions) { put(t, o.from, good, other[:len(other)-40]) }, "1 of 2 PEM blocks are no certificates, or cannot be parsed"},
		"broken, first": {func(t *testing.T, o *trustFileOptions) { put(t, o.from, broken, good) }, "1 of 2 PEM blocks are no certificates, or cannot be parsed"},
		"no certificate": {func(t *testing.T, o *trustFileOptions) {
			put(t, o.from, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
		}, "parse certificate 1: x509"},
		"a key": {func(t *testing.T, o *trustFileOptions) {
			put(t, o.from, good, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY"}))
		}, "1 of 2 PEM blocks are no certificates"},
		"a client's":         {func(t *testing.T, o *trustFileOptions) { put(t, o.from, good, bundled(t, "client", false)) }, "certificate 2, CN=client, is not a CA certificate"},
		"gone":               {func(t *testing.T, o *trustFileOptions) { o.from += "-not" }, "no such file"},
		"the others are":     {func(t *testing.T, o *trustFileOptions) { o.also = []string{o.from + "-not"} }, "no such file"},
		"the others are bad": {func(t *testing.T, o *trustFileOptions) { o.also = []string{o.from + "-also"}; put(t, o.also[0]) }, "holds no certificate"},
		"kubeadm's own file": {func(t *testing.T, o *trustFileOptions) { put(t, o.to, other) }, "was not created by write-trust"},
		"an empty file":      {func(t *testing.T, o *trustFileOptions) { put(t, o.to) }, "was not created by write-trust"},
		"a link":             {func(t *testing.T, o *trustFileOptions) { may(t, os.Symlink(o.from, o.to)) }, "is not a regular file"},
		"a folder":           {func(t *testing.T, o *trustFileOptions) { may(t, os.Mkdir(o.to, 0o700)) }, "is not a regular file"},
		"no folder":          {func(_ *testing.T, o *trustFileOptions) { o.to = filepath.Join(o.to, "in", "it") }, "no such file"},
		"a folder in the way of the temporary file": {func(t *testing.T, o *trustFileOptions) {
			may(t, os.MkdirAll(filepath.Join(o.to+".new", "in"), 0o700))
		}, "directory not empty"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
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
	t.Parallel()
	o := trustFolder(t)
	o.interval = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	lines := make(chan string, 100)
	logger := funcr.New(func(_, args string) { lines <- args }, funcr.Options{})
	done := make(chan struct{})
	go func() { defer close(done); o.keep(ctx, logger) }()
	if line := <-lines; !strings.Contains(line, "The file stays as it is") || !strings.Contains(line, "no such file") {
		t.Error(line)
	}
	staged := o.from + "-staged"
	put(t, staged, bundled(t, "a", true))
	may(t, os.Rename(staged, o.from))
	if line := <-lines; !strings.Contains(line, "Wrote the CAs to trust") || !strings.Contains(line, `"certificates"=1`) {
		t.Error(line)
	}
	cancel()
	<-done
}

func TestWriteTrustFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                               `required flag(s) "from", "to" not set`,
		"--from a":                       `required flag(s) "to" not set`,
		"--from a --to a":                "--to: names a file that --from or --also reads",
		"--from a --to b --also b":       "--to: names a file that --from or --also reads",
		"--from a --to b --interval -1s": "--interval: -1s is negative",
		"--from a --to b c":              `unknown command "c"`,
		"--configmap a":                  "unknown flag: --configmap",
		"--from x --to y --accept abc":   "64 hexadecimal digits",
	} {
		err := Execute(t.Context(), append([]string{"write-trust"}, strings.Fields(args)...), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
	}
	// Without the CAs of each file of --also, an API server would refuse the clients of these CAs.
	o := trustFolder(t)
	args := []string{"write-trust", "--from", o.from, "--to=" + o.to, "--also=" + o.from + "-others", "--also=" + o.from + "-second", "--interval=0"}
	for path, name := range map[string]string{"": "published", "-others": "others", "-second": "second"} {
		put(t, o.from+path, bundled(t, name, true))
	}
	may(t, Execute(t.Context(), args, io.Discard))
	if got := trusts(t, o.to); !slices.Equal(got, []string{"published", "others", "second"}) {
		t.Errorf("trusts %v", got)
	}
}

// TestWriteTrustAccept checks --accept: a CA of the bundle that is not listed keeps the file as it is. Files of --also
// are not compared.
func TestWriteTrustAccept(t *testing.T) {
	t.Parallel()
	o := trustFolder(t)
	a, b, also := bundled(t, "a", true), bundled(t, "b", true), filepath.Join(t.TempDir(), "local.crt")
	put(t, also, bundled(t, "local", true))
	fingerprint := func(bundle []byte, format string) string {
		block, _ := pem.Decode(bundle)
		return fmt.Sprintf(format, sha256.Sum256(block.Bytes))
	}
	withColons := strings.ReplaceAll(fingerprint(a, "% X"), " ", ":")
	write := func(accept ...string) error {
		args := []string{"write-trust", "--from", o.from, "--to", o.to, "--also", also, "--interval=0", "--accept", withColons}
		return Execute(t.Context(), append(args, accept...), io.Discard)
	}
	put(t, o.from, a)
	may(t, write())
	put(t, o.from, a, b)
	want := "the CA \"b\" is not accepted: compare its fingerprint, then add --accept " + fingerprint(b, "%x")
	if err := write(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
	if got := trusts(t, o.to); !slices.Equal(got, []string{"a", "local"}) {
		t.Errorf("a CA that nobody accepted is written: %q", got)
	}
	may(t, write("--accept="+fingerprint(b, "%x")))
	if got := trusts(t, o.to); !slices.Equal(got, []string{"a", "b", "local"}) {
		t.Errorf("accepted, but the file has %q", got)
	}
}
