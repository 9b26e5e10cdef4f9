package keypair

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestKeyPair offers one candidate after the other.
func TestKeyPair(t *testing.T) {
	t.Parallel()
	w := newWorld(secret)
	one, two, future := newRoot(day), newRoot(2*day), newRoot(2*day)
	const (
		refused  = "Secret ns/ca can't be used: "
		noCert   = refused + "no PEM block of type CERTIFICATE found"
		half     = refused + "the private key does not match any of the 1 certificate(s)"
		oneEnded = refused + `the signing certificate has expired: "CN=CA" expired at 2026-03-02T12:00:00Z`
		twoEnded = refused + `the signing certificate has expired: "CN=CA" expired at 2026-03-03T12:00:00Z`
		early    = refused + `the signing certificate "CN=CA" is not valid before 2026-03-01T11:00:00Z`
		noSecret = "Secret ns/ca does not exist"
		stays    = "; the last good CA stays in use"
	)
	loaded := func(of root, end string) string {
		return "Normal CALoaded signing with key " + of.id + " until " + end + "T12:00:00Z"
	}
	load := func(of root) func() { return func() { w.load(of) } }
	at := func(time time.Duration, of root) func() {
		return func() {
			w.clock.SetTime(now.Add(time))
			w.load(of)
		}
	}
	missing := func() { w.refuse(noSecret) }
	bad := func() { w.Load(nil, one.key) }
	for _, step := range []struct {
		what  string
		do    func()
		at    time.Duration
		want  string
		told  string
		wakes bool
	}{
		{"at first", func() {}, 0, "CAMissing: Secret ns/ca has not been read yet", "", false},
		{"no Secret", missing, 0, "CAMissing: " + noSecret, "Warning CAMissing " + noSecret, false},
		{"an empty one", bad, 0, "CAInvalid: " + noCert, "Warning CAInvalid " + noCert, false},
		{"a good one", load(one), 0, one.id, loaded(one, "2026-03-02"), true},
		{"the same", load(root{cert: bytes.Clone(one.cert), key: bytes.Clone(one.key)}), 0, one.id, "", false},
		{"a bad one", bad, 0, one.id, "Warning CAInvalid " + noCert + stays, false},
		{"half a new one", load(root{cert: two.cert, key: one.key}), 0, one.id, "Warning CAInvalid " + half + stays, false},
		{"deleted", missing, 0, one.id, "Warning CAMissing " + noSecret + stays, false},
		{"another one", load(two), 0, two.id, loaded(two, "2026-03-03"), true},
		{"one that has expired", at(day, one), day, two.id, "Warning CAExpired " + oneEnded + stays, false},
		{"expired while in use", func() {}, 2 * day, "CAExpired: " + twoEnded + "; its replacement: " + oneEnded, "", false},
		{"looked at again then", at(2*day, two), 2 * day, "CAExpired: " + twoEnded, "Warning CAExpired " + twoEnded, false},
		{"one that is not yet valid", at(-2*time.Hour, future), 0, two.id, "Warning CAInvalid " + early, false},
		{"now it is", at(0, future), 0, future.id, loaded(future, "2026-03-03"), true},
	} {
		step.do()
		w.check(t, step.what, w.state(now.Add(step.at)), step.want, step.told, step.wakes)
	}
}

// TestFiles changes the files one by one. The running source finds a change, and ends with its manager.
func TestFiles(t *testing.T) {
	t.Parallel()
	root, next, folder := newRoot(time.Hour), newRoot(time.Hour), t.TempDir()
	files := Files{Cert: filepath.Join(folder, "tls.crt"), Key: filepath.Join(folder, "tls.key")}
	const noFile, noKey = ": no such file or directory", "no private key found: want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY"
	name := "files " + files.Cert + " and " + files.Key
	replace := func(file string, data []byte) {
		if err := errors.Join(os.WriteFile(file+".new", data, 0o600), os.Rename(file+".new", file)); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(files)
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "CAMissing: " + name + ": open " + files.Cert + noFile + "\nopen " + files.Key + noFile},
		{func() { replace(files.Cert, root.cert) }, "CAMissing: " + name + ": open " + files.Key + noFile},
		{func() { replace(files.Key, nil) }, "CAInvalid: " + name + " can't be used: " + noKey},
		{func() { replace(files.Key, root.key) }, root.id},
		{func() { replace(files.Cert, []byte("half")) }, root.id},
		{func() { _ = os.Remove(files.Key) }, root.id},
	} {
		step.do()
		files.load(w.KeyPair)
		if got := w.state(now); got != step.want {
			t.Errorf("%s, want %s", got, step.want)
		}
	}
	unreadable := newWorld(Files{Cert: folder, Key: files.Cert})
	Files{Cert: folder, Key: files.Cert}.load(unreadable.KeyPair)
	if got := unreadable.state(now); !strings.HasSuffix(got, "can't be read: read "+folder+": is a directory") {
		t.Errorf("a folder: %s", got)
	}

	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- files.poll(ctx, w.KeyPair) }()
	<-w.woken // of the first CA
	replace(files.Cert, next.cert)
	replace(files.Key, next.key)
	<-w.woken
	if got := w.state(now); got != next.id {
		t.Errorf("changed: %s", got)
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Errorf("stopped with %v", err)
	}
}

// leading returns a world of the leader, for those signers. elect makes it the leader.
func leading(signers ...string) (w *world, elect func()) {
	w = newWorld(secret)
	elected := make(chan struct{})
	w.elected, w.Signers = elected, signers
	return w, func() { close(elected) }
}

// TestTheEndOfACAIsForetold follows a CA to its end. Every candidate is offered twice, and each warning is told once, by the
// leader only. After a restart, only the current step is told. Another CA has its own steps.
func TestTheEndOfACAIsForetold(t *testing.T) {
	t.Parallel()
	w, elect := leading("example.com/signer")
	elect()
	old, next := newRoot(100*day), newRoot(200*day)
	const end = "2026-06-09T12:00:00Z"
	ends := func(days string) string {
		return "Warning CAExpiring the signing CA with key " + old.id + " expires in less than " + days + " days, at " + end +
			", together with all certificates that it has signed: replace it"
	}
	const invalid = "Warning CAInvalid Secret ns/ca can't be used: no PEM block of type CERTIFICATE found; the last good CA stays in use"
	const expired = `Warning CAExpired Secret ns/ca can't be used: the signing certificate has expired: "CN=CA" expired at ` + end
	bad := root{key: old.key}
	for _, step := range []struct {
		left    time.Duration // of the old CA
		offered root
		want    string
	}{
		{90*day + 1, old, ""},
		{90 * day, old, ends("90")},
		{30 * day, old, ends("30")},
		{20 * day, bad, invalid},
		{7 * day, bad, ends("7")},
		{0, old, expired},
		{-day, next, ""},
	} {
		w.clock.SetTime(now.Add(100*day - step.left))
		w.load(step.offered)
		w.load(step.offered)
		if got := w.told("CALoaded"); got != step.want {
			t.Errorf("%s before the end: %q, want %q", step.left, got, step.want)
		}
	}

	w, elect = leading()
	w.clock.SetTime(now.Add(80 * day)) // 20 days before the end
	w.load(old)
	if got := w.told("CALoaded"); got != "" {
		t.Errorf("a standby tells %q", got)
	}
	elect()
	for i, want := range []string{ends("30"), ""} {
		w.load([]root{old, next}[i])
		w.load([]root{old, next}[i])
		if got := w.told("CALoaded"); got != want {
			t.Errorf("after a restart: %q, want %q", got, want)
		}
	}
}

// TestSharingIsReported checks that a CA that serving certificates share is reported once per process.
func TestSharingIsReported(t *testing.T) {
	t.Parallel()
	const client, custom = "kubernetes.io/kube-apiserver-client", "example.com/custom"
	for shared, signers := range map[string][]string{
		client + " and " + kubeletClient: {custom, client, kubeletClient, kubeletServing}, kubeletClient: {kubeletClient, kubeletServing},
		"none": {custom, kubeletServing}, "no serving at all": {client, kubeletClient},
	} {
		w, elect := leading(signers...)
		elect()
		want := ""
		if strings.Contains(shared, "/") {
			want = "Warning CAShared kubelet serving certificates share this CA with those of " + shared + ": a verifier that trusts this CA " +
				"accepts both, and distinguishes them only by their usages; use a separate CA for kubernetes.io/kubelet-serving"
		}
		for range 2 {
			w.load(newRoot(1000 * day))
			if told := w.told("CALoaded"); told != want {
				t.Errorf("%s: %q, want %q", shared, told, want)
			}
			want = ""
		}
	}
}
