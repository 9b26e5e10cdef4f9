//go:build nightly

package revocation

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestFullDisk checks that a writer with a full disk keeps the files, and writes again when there is room. It needs root.
func TestFullDisk(t *testing.T) {
	kit.Parallel(t)
	dir := t.TempDir()
	kit.NoError(t, syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"))
	kit.AtEnd(t, func() error { return syscall.Unmount(dir, syscall.MNT_DETACH) })
	withWorld(t, dir, func(t *testing.T, w *world) {
		filler := filepath.Join(dir, "filler")
		if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("fill the disk: %v", err)
		}
		w.block(t, "mallory", "zoe")
		for _, h := range w.hosts {
			h.says(t, "no space left on device")
			kit.NoError(t, ask(t.Context(), h.at(w.zoe)))
		}
		w.staysRefused(t)
		w.hosts[1].writer.Kill()
		w.startWriter(w.hosts[1]) // it can't write its kubeconfig
		w.hosts[1].says(t, "no space left on device")
		w.staysRefusedWithoutWebhook(t, w.hosts[1])
		kit.NoError(t, os.Remove(filler))
		eventuallyRefused(t, "zoe", w.zoe, w.hosts...)
		w.follows(t)
	})
}

// TestFileIsDeleted checks that the writer writes a deleted file again, and that the API server, which keeps what it has read, reads it
// within a minute: it no longer notices changes at once (k8s.io/apiserver/pkg/util/filesystem, WatchUntil).
func TestFileIsDeleted(t *testing.T) {
	kit.Parallel(t)
	withWorld(t, t.TempDir(), func(t *testing.T, w *world) {
		for _, h := range w.hosts {
			kit.NoError(t, os.Remove(h.file))
		}
		w.staysRefused(t)
		for _, h := range w.hosts {
			isWrittenAgain(t, h.file)
		}
		w.block(t, "mallory", "zoe")
		for _, h := range w.hosts {
			kit.Within(t, 70*time.Second, "zoe is refused", func(context.Context) error {
				err := ask(t.Context(), h.at(w.zoe))
				return kit.OrError(refused(err), "answered with %v", err)
			})
		}
		w.staysRefused(t)
		w.follows(t)
	})
}
