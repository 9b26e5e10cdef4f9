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
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch signing files: %w", err)
	}
	defer func() { _ = watcher.Close() }()
	// Folders, not files: editors and the kubelet replace files, and a watch on one would follow the old one.
	for _, file := range []string{f.Cert, f.Key} {
		if err := watcher.Add(filepath.Dir(file)); err != nil {
			pair.log.Error(err, "Signing files are only polled", "folder", filepath.Dir(file))
		}
	}
	ticker := time.NewTicker(recheck)
	defer ticker.Stop()
	for {
		f.load(pair)
		if !f.wait(ctx, pair, watcher, ticker) {
			return nil
		}
	}
}

// wait returns true when the files may have changed, and false when ctx has ended. A write to another file, such as
// a log in the same folder, changes neither; all else in the folder may, as a symlink may lead to it.
func (f Files) wait(ctx context.Context, pair *KeyPair, watcher *fsnotify.Watcher, ticker *time.Ticker) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case event := <-watcher.Events:
			if event.Op == fsnotify.Write && event.Name != filepath.Clean(f.Cert) && event.Name != filepath.Clean(f.Key) {
				continue
			}
		case err := <-watcher.Errors:
			pair.log.Error(err, "Watch signing files")
		case <-ticker.C:
		}
		return true
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

// everywhere is a Runnable for the leader and the standbys, so that these are warm and know whether they could sign.
type everywhere func(context.Context) error

func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

// NeedLeaderElection is false, see manager.LeaderElectionRunnable.
func (e everywhere) NeedLeaderElection() bool { return false }
