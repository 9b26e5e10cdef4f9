package signer

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Static is a key pair in memory, in PEM.
type Static struct{ Cert, Key []byte }

func (Static) describe() (string, client.Object) { return "the given key pair", nil }

func (s Static) runnable(_ manager.Manager, pair *KeyPair) (manager.Runnable, error) {
	pair.Load(s.Cert, s.Key)
	return nil, nil
}

func (s Static) readOnce(_ context.Context, _ client.Reader, pair *KeyPair) error {
	pair.Load(s.Cert, s.Key)
	return nil
}
