package signer

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

// recheck is how often a source looks again without being told: a change that was missed, or a certificate that has
// become valid.
const recheck = 30 * time.Second

// Files is a key pair in two files. It reads them at Start, when their folders change, and every half minute.
type Files struct{ Cert, Key string }

func (f Files) describe() (string, client.Object) {
	return fmt.Sprintf("files %s and %s", f.Cert, f.Key), nil
}

func (f Files) runnable(_ manager.Manager, pair *KeyPair) (manager.Runnable, error) {
	return everywhere(func(ctx context.Context) error { return f.watch(ctx, pair) }), nil
}

func (f Files) watch(ctx context.Context, pair *KeyPair) error {
	changes, stop := f.changes(pair.log)
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

// changes yields after the files may have changed. Where the system can't watch, it never does, and they are polled.
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
		pair.Refuse("CAMissing", fmt.Sprintf("%s: %v", pair.name, err))
	default:
		pair.Refuse("CAInvalid", fmt.Sprintf("%s can't be read: %v", pair.name, err))
	}
}

func (f Files) readOnce(_ context.Context, _ client.Reader, pair *KeyPair) error {
	f.load(pair)
	return nil
}

// everywhere is a Runnable for the leader and the standbys, so that these are warm and know whether they could sign.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

// NeedLeaderElection is false, see manager.LeaderElectionRunnable.
func (e everywhere) NeedLeaderElection() bool { return false }
