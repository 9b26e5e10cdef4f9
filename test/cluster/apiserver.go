package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// RestartAPIServer restarts the API server on the same etcd and address. configure changes its flags.
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

// ClientCAFile returns the path of the API server's client CA file. The API server reads the file again after a
// change.
func (c *Cluster) ClientCAFile() string {
	return filepath.Join(c.Dir, "apiserver", "csrenv-client-ca.crt")
}

// TrustClients writes bundle to the API server's client CA file, atomically.
func (c *Cluster) TrustClients(bundle []byte) error {
	part := c.ClientCAFile() + ".part"
	return errors.Join(os.WriteFile(part, bundle, 0o600), os.Rename(part, c.ClientCAFile()))
}
