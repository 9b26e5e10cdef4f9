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

	"github.com/google/go-cmp/cmp"
)

// state returns the key's name at now, or the reason and message why there is none.
func state(pair *KeyPair, now time.Time) string {
	authority, err := pair.Authority(now)
	if err == nil {
		return authority.KeyID()
	}
	var unavailable *Unavailable
	if !errors.As(err, &unavailable) {
		return "not an *Unavailable: " + err.Error()
	}
	return unavailable.Reason + ": " + unavailable.Message
}

func keyID(t *testing.T, root root) string {
	t.Helper()
	pair, _, _ := newPair(secret)
	pair.Load(root.cert, root.key)
	return state(pair, now)
}

func TestKeyPair(t *testing.T) {
	t.Parallel()
	pair, clock, recorder := newPair(secret)
	one, two := newRoot(t, 24*time.Hour), newRoot(t, 48*time.Hour)
	future := newRoot(t, 48*time.Hour)
	oneID, twoID := keyID(t, one), keyID(t, two)
	const noCert = "Secret ns/ca can't be used: no PEM block of type CERTIFICATE found"
	woken := pair.Subscribe()
	const twoEnded = `CAExpired: Secret ns/ca can't be used: the signing certificate has expired: "CN=CA" expired at 2026-03-03T12:00:00Z`
	steps := []struct {
		what   string
		do     func()
		at     time.Duration
		want   string
		events []string
		wakes  bool
	}{
		{"at first", func() {}, 0, "CAMissing: Secret ns/ca has not been read yet", nil, false},
		{"no Secret", func() { pair.Refuse(&Unavailable{Reason: "CAMissing", Message: "Secret ns/ca does not exist"}) }, 0, "CAMissing: Secret ns/ca does not exist", []string{"Warning CAMissing Secret ns/ca does not exist"}, false},
		{"still none", func() { pair.Refuse(&Unavailable{Reason: "CAMissing", Message: "Secret ns/ca does not exist"}) }, 0, "CAMissing: Secret ns/ca does not exist", nil, false},
		{"an empty one", func() { pair.Load(nil, one.key) }, 0, "CAInvalid: " + noCert, []string{"Warning CAInvalid " + noCert}, false},
		{"a good one", func() { pair.Load(one.cert, one.key) }, 0, oneID, []string{"Normal CALoaded signing with key " + oneID + " until 2026-03-02T12:00:00Z"}, true},
		{"the same", func() { pair.Load(bytes.Clone(one.cert), bytes.Clone(one.key)) }, 0, oneID, nil, false},
		{"a bad one", func() { pair.Load(nil, one.key) }, 0, oneID, []string{"Warning CAInvalid " + noCert + "; the last good CA stays in use"}, false},
		{"the same bad one", func() { pair.Load(nil, one.key) }, 0, oneID, nil, false},
		{"half a new one", func() { pair.Load(two.cert, one.key) }, 0, oneID, []string{"Warning CAInvalid Secret ns/ca can't be used: the private key does not match any of the 1 certificate(s); the last good CA stays in use"}, false},
		{"deleted", func() { pair.Refuse(&Unavailable{Reason: "CAMissing", Message: "Secret ns/ca does not exist"}) }, 0, oneID, []string{"Warning CAMissing Secret ns/ca does not exist; the last good CA stays in use"}, false},
		{"back again", func() { pair.Load(one.cert, one.key) }, 0, oneID, []string{"Normal CALoaded signing with key " + oneID + " until 2026-03-02T12:00:00Z"}, true},
		{"another one", func() { pair.Load(two.cert, two.key) }, 0, twoID, []string{"Normal CALoaded signing with key " + twoID + " until 2026-03-03T12:00:00Z"}, true},
		{"one that has expired", func() { clock.SetTime(now.Add(24 * time.Hour)); pair.Load(one.cert, one.key) }, 24 * time.Hour, twoID, []string{`Warning CAExpired Secret ns/ca can't be used: the signing certificate has expired: "CN=CA" expired at 2026-03-02T12:00:00Z; the last good CA stays in use`}, false},
		{"expired while in use", func() {}, 48 * time.Hour, `CAExpired: Secret ns/ca can't be used: the signing certificate has expired: "CN=CA" expired at 2026-03-03T12:00:00Z; its replacement: Secret ns/ca can't be used: the signing certificate has expired: "CN=CA" expired at 2026-03-02T12:00:00Z`, nil, false},
		{"looked at again then", func() { clock.SetTime(now.Add(48 * time.Hour)); pair.Load(two.cert, two.key) }, 48 * time.Hour, twoEnded, []string{"Warning " + strings.Replace(twoEnded, ":", "", 1)}, false},
		{"and again", func() { pair.Load(two.cert, two.key) }, 48 * time.Hour, twoEnded, nil, false},
		{"one that is not yet valid", func() { clock.SetTime(now.Add(-2 * time.Hour)); pair.Load(future.cert, future.key) }, 0, twoID, []string{`Warning CAInvalid Secret ns/ca can't be used: the signing certificate "CN=CA" is not valid before 2026-03-01T11:00:00Z`}, false},
		{"now it is", func() { clock.SetTime(now); pair.Load(future.cert, future.key) }, 0, keyID(t, future), []string{"Normal CALoaded signing with key " + keyID(t, future) + " until 2026-03-03T12:00:00Z"}, true},
	}
	for _, step := range steps {
		step.do()
		if diff := cmp.Diff(step.want, state(pair, now.Add(step.at))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, diff)
		}
		if diff := cmp.Diff(step.events, taken(recorder)); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", step.what, diff)
		}
		if wakes := len(woken) > 0; wakes != step.wakes {
			t.Errorf("%s: wakes %t", step.what, wakes)
		} else if wakes {
			<-woken
		}
	}
}

func TestLoadNeverWaitsForThoseItWakes(t *testing.T) {
	t.Parallel()
	pair, _, _ := newPair(secret)
	first, second := pair.Subscribe(), pair.Subscribe()
	for range 3 { // no subscriber reads
		root := newRoot(t, time.Hour)
		pair.Load(root.cert, root.key)
	}
	<-first
	<-second
	if len(first) > 0 || len(second) > 0 {
		t.Error("one waking is enough for several changes")
	}
}

func TestStaticSource(t *testing.T) {
	t.Parallel()
	root := newRoot(t, time.Hour)
	pair, _, recorder := newPair(Static{Cert: root.cert, Key: root.key})
	if err := pair.source.SetupWithManager(nil, pair); err != nil || state(pair, now) != keyID(t, root) || len(recorder.Events) > 0 {
		t.Errorf("error %v, %s", err, state(pair, now))
	}
}

// filesPair returns a KeyPair with files in their own folder.
func filesPair(t *testing.T) (*KeyPair, Files) {
	t.Helper()
	folder := t.TempDir()
	files := Files{Cert: filepath.Join(folder, "tls.crt"), Key: filepath.Join(folder, "tls.key")}
	pair, _, _ := newPair(files)
	return pair, files
}

func replace(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func TestFilesLoad(t *testing.T) {
	t.Parallel()
	root := newRoot(t, time.Hour)
	pair, files := filesPair(t)
	name := "files " + files.Cert + " and " + files.Key
	for _, step := range []struct {
		do   func()
		want string
	}{
		{func() {}, "CAMissing: " + name + ": open " + files.Cert + ": no such file or directory\nopen " + files.Key + ": no such file or directory"},
		{func() { replace(t, files.Cert, root.cert) }, "CAMissing: " + name + ": open " + files.Key + ": no such file or directory"},
		{func() { replace(t, files.Key, nil) }, "CAInvalid: " + name + " can't be used: no private key found: want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY"},
		{func() { replace(t, files.Key, root.key) }, keyID(t, root)},
		{func() { replace(t, files.Cert, []byte("half")) }, keyID(t, root)},
		{func() { _ = os.Remove(files.Key) }, keyID(t, root)},
	} {
		step.do()
		files.load(pair)
		if diff := cmp.Diff(step.want, state(pair, now)); diff != "" {
			t.Errorf("state (-want +got):\n%s", diff)
		}
	}
	folder := Files{Cert: t.TempDir(), Key: files.Cert}
	unreadable, _, _ := newPair(folder)
	folder.load(unreadable)
	want := "CAInvalid: files " + folder.Cert + " and " + folder.Key + " can't be read: read " + folder.Cert + ": is a directory"
	if diff := cmp.Diff(want, state(unreadable, now)); diff != "" {
		t.Errorf("a folder (-want +got):\n%s", diff)
	}
}

func TestFilesAreWatched(t *testing.T) {
	t.Parallel()
	one, two := newRoot(t, time.Hour), newRoot(t, time.Hour)
	pair, files := filesPair(t)
	replace(t, files.Cert, one.cert)
	replace(t, files.Key, one.key)
	woken := pair.Subscribe()
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- files.poll(ctx, pair) }()
	<-woken
	replace(t, files.Cert, two.cert)
	replace(t, files.Key, two.key)
	<-woken
	if got := state(pair, now); got != keyID(t, two) {
		t.Errorf("after the change: %s", got)
	}
	cancel()
	if err := <-stopped; err != nil {
		t.Errorf("stopped with %v", err)
	}
}
