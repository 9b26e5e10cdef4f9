package keypair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// recheck is how often a source reads again without an event: an event may be missed, and a certificate may become
// valid.
const recheck = 30 * time.Second

// Files is a key pair in two files. It reads them at Start, when their folders change, and every half minute.
type Files struct{ Cert, Key string }

// Describe implements Source.
func (f Files) Describe() (string, client.Object) {
	return fmt.Sprintf("files %s and %s", f.Cert, f.Key), nil
}

// SetupWithManager implements Source.
func (f Files) SetupWithManager(mgr manager.Manager, pair *KeyPair) error {
	return mgr.Add(everywhere(func(ctx context.Context) error { return f.watch(ctx, pair) }))
}

func (f Files) watch(ctx context.Context, pair *KeyPair) error {
	changes, stop := f.changes(pair.Log)
	defer stop()
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		f.load(pair)
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		case <-ticker.C:
		}
	}
}

// changes returns a channel that yields after the files may have changed. If the system can't watch files, it never
// yields, and they are polled.
func (f Files) changes(log logr.Logger) (changes <-chan struct{}, stop func()) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		log.Error(err, "Signing files are only polled")
		return nil, func() {}
	}
	// Folders, not files: editors and the kubelet replace files, and a watch on one would follow the old one.
	for _, folder := range []string{filepath.Dir(f.Cert), filepath.Dir(f.Key)} {
		if err := watcher.Add(folder); err != nil {
			log.Error(err, "Signing files are only polled", "folder", folder)
		}
	}
	changed := make(chan struct{}, 1)
	go f.filter(watcher, changed, log)
	return changed, func() { _ = watcher.Close() }
}

// filter turns events into changes, until watcher is closed. A write to another file, such as a log in the same folder,
// is none; all else in the folder may be, as a symlink may lead to it.
func (f Files) filter(watcher *fsnotify.Watcher, changed chan<- struct{}, log logr.Logger) {
	for {
		select {
		case event, open := <-watcher.Events:
			if !open {
				return
			}
			if event.Op == fsnotify.Write && event.Name != filepath.Clean(f.Cert) && event.Name != filepath.Clean(f.Key) {
				continue
			}
		case err, open := <-watcher.Errors:
			if !open {
				return
			}
			log.Error(err, "Watch signing files")
		}
		select {
		case changed <- struct{}{}:
		default: // one is on its way
		}
	}
}

func (f Files) load(pair *KeyPair) {
	cert, err := os.ReadFile(f.Cert)
	key, keyErr := os.ReadFile(f.Key)
	switch err := errors.Join(err, keyErr); {
	case err == nil:
		pair.Load(cert, key)
	case errors.Is(err, fs.ErrNotExist):
		pair.Refuse(unavailable("CAMissing", "%s: %v", pair.name, err))
	default:
		pair.Refuse(unavailable("CAInvalid", "%s can't be read: %v", pair.name, err))
	}
}

// ReadOnce implements Source.
func (f Files) ReadOnce(_ context.Context, _ client.Reader, pair *KeyPair) error {
	f.load(pair)
	return nil
}

// everywhere is a Runnable of the leader and the standbys. A standby is warm then, and knows whether it could sign.
type everywhere func(context.Context) error

// Start implements manager.Runnable.
func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (e everywhere) NeedLeaderElection() bool { return false }

// Static is a key pair in memory, in PEM.
type Static struct{ Cert, Key []byte }

// Describe implements Source.
func (Static) Describe() (string, client.Object) { return "the given key pair", nil }

// SetupWithManager implements Source.
func (s Static) SetupWithManager(_ manager.Manager, pair *KeyPair) error {
	pair.Load(s.Cert, s.Key)
	return nil
}

// ReadOnce implements Source.
func (s Static) ReadOnce(_ context.Context, _ client.Reader, pair *KeyPair) error {
	pair.Load(s.Cert, s.Key)
	return nil
}
