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
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// recheck is the interval at which a source reads again without an event. An event may be missed, and a certificate
// may become valid.
const recheck = 30 * time.Second

// Files is a key pair in two files. It reads them at Start, after a change in their folders, and every half minute.
type Files struct{ Cert, Key string }

// Describe implements Source.
func (f Files) Describe() (string, client.Object) {
	return fmt.Sprintf("files %s and %s", f.Cert, f.Key), nil
}

// SetupWithManager implements Source.
func (f Files) SetupWithManager(mgr manager.Manager, pair *KeyPair) error {
	return mgr.Add(everywhere(func(ctx context.Context) error { return f.watch(ctx, pair) }))
}

// watch loads the files when it starts, after a change in their folders, and every half minute, until ctx ends. If
// the system can't watch files, it only polls them.
func (f Files) watch(ctx context.Context, pair *KeyPair) error {
	var events <-chan fsnotify.Event
	var failures <-chan error
	if watcher, err := fsnotify.NewWatcher(); err != nil {
		pair.Log.Error(err, "Signing files are only polled")
	} else {
		defer func() { _ = watcher.Close() }()
		events, failures = watcher.Events, watcher.Errors
		// Watch folders: editors and the kubelet replace files, and a watch on a file would follow the old file.
		for _, folder := range []string{filepath.Dir(f.Cert), filepath.Dir(f.Key)} {
			if err := watcher.Add(folder); err != nil {
				pair.Log.Error(err, "Signing files are only polled", "folder", folder)
			}
		}
	}
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	f.load(pair)
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-events:
			if !f.concerns(event) {
				continue
			}
		case err := <-failures:
			pair.Log.Error(err, "Watch signing files")
		case <-ticker.C:
		}
		f.load(pair)
	}
}

// concerns reports whether an event may change the files. A write to another file in the folder, such as a log, does
// not. Any other change in the folder may, because a symlink can lead to the files.
func (f Files) concerns(event fsnotify.Event) bool {
	return event.Op != fsnotify.Write || event.Name == filepath.Clean(f.Cert) || event.Name == filepath.Clean(f.Key)
}

// load offers the current content of the files to pair.
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

// Elsewhere is a key pair in files of another machine. It can't be read.
type Elsewhere struct{ Files }

// SetupWithManager implements Source.
func (e Elsewhere) SetupWithManager(manager.Manager, *KeyPair) error { return e.unreadable() }

// ReadOnce implements Source.
func (e Elsewhere) ReadOnce(context.Context, client.Reader, *KeyPair) error { return e.unreadable() }

func (e Elsewhere) unreadable() error {
	return fmt.Errorf("the files %q and %q are on the machine of the manager", e.Cert, e.Key)
}

// everywhere is a Runnable of the leader and the standbys. A standby has then loaded the CA and knows whether it can
// sign.
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
