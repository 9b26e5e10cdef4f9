package keypair

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// filePoll is the interval at which Files are read.
const filePoll = time.Second

// Files is a key pair in two files. It reads them every second.
type Files struct {
	Cert, Key string
}

// Describe implements Source.
func (f Files) Describe() (string, client.Object) {
	return fmt.Sprintf("files %s and %s", f.Cert, f.Key), nil
}

// SetupWithManager implements Source.
func (f Files) SetupWithManager(mgr manager.Manager, pair *KeyPair) error {
	return mgr.Add(everywhere(func(ctx context.Context) error { return f.poll(ctx, pair) }))
}

// poll loads the files every second until ctx ends.
func (f Files) poll(ctx context.Context, pair *KeyPair) error {
	wait.UntilWithContext(ctx, func(context.Context) { f.load(pair) }, filePoll)
	return nil
}

// load offers the current content of the files to pair.
func (f Files) load(pair *KeyPair) {
	cert, err := os.ReadFile(f.Cert)
	key, keyErr := os.ReadFile(f.Key)
	switch err := errors.Join(err, keyErr); {
	case err == nil:
		pair.Load(cert, key, nil)
	case errors.Is(err, fs.ErrNotExist):
		pair.Refuse(unavailable("CAMissing", "%s: %v", pair.name, err))
	default:
		pair.Refuse(unavailable("CAInvalid", "%s can't be read: %v", pair.name, err))
	}
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
	pair.Load(s.Cert, s.Key, nil)
	return nil
}
