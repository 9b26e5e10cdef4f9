package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// RestartAPIServer restarts the API server on the same etcd and address. configure changes its flags.
func (c *Cluster) RestartAPIServer(configure func(*envtest.Arguments)) error {
	apiServer := c.Env.ControlPlane.GetAPIServer()
	if err := apiServer.Stop(); err != nil && !errors.Is(err, syscall.ESRCH) { // KillAPIServer has ended it
		return fmt.Errorf("stop the API server: %w", err)
	}
	configure(apiServer.Configure())
	if err := apiServer.Start(); err != nil {
		return fmt.Errorf("start the API server again: %w", err)
	}
	return nil
}

// APIServerPid returns the process ID of the API server.
func (c *Cluster) APIServerPid() (int, error) {
	text, err := os.ReadFile(c.Env.ControlPlane.GetAPIServer().Path + ".pid")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// KillAPIServer ends the API server without warning, and returns when it has ended. RestartAPIServer starts it again.
func (c *Cluster) KillAPIServer() error {
	pid, err := c.APIServerPid()
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the API server: %w", err)
	}
	for range 100 {
		if syscall.Kill(pid, 0) != nil { // it was waited for
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return errors.New("the API server does not end")
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
