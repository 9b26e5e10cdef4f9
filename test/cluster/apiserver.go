package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// RestartAPIServer starts the API server again, on the same etcd and address, with flags as configure changes them.
func (c *Cluster) RestartAPIServer(configure func(*envtest.Arguments)) error {
	apiServer := c.Env.ControlPlane.GetAPIServer()
	if err := apiServer.Stop(); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	configure(apiServer.Configure())
	if err := apiServer.Start(); err != nil {
		return fmt.Errorf("start the API server again: %w", err)
	}
	return nil
}

// ClientCAFile is what the API server trusts for client certificates; it reads it again when it changes.
func (c *Cluster) ClientCAFile() string {
	return filepath.Join(c.Dir, "apiserver", "csrenv-client-ca.crt")
}

// TrustClients makes bundle the API server's client CA file, at once and not by half.
func (c *Cluster) TrustClients(bundle []byte) error {
	part := c.ClientCAFile() + ".part"
	return errors.Join(os.WriteFile(part, bundle, 0o600), os.Rename(part, c.ClientCAFile()))
}
