//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// The mount paths of config/overlays/trust-files and the files in them. The second is from its component
// kubelet-serving.
const (
	trustDir    = "/etc/kubernetes/pki/csr-trust"
	clientFile  = "client-ca.crt"
	servingFile = "kubelet-serving-ca.crt"
)

// moveOut creates a separate authority for kubelets' serving certificates, which does not sign yet.
func (c *cluster) moveOut(t *testing.T) {
	t.Helper()
	c.kubectl(t, "apply", "-k", "../../config/rotation/kubelet-serving")
	c.kubectl(t, "apply", "-k", "manifests/own-trust")
}

// testMovingOut makes that authority sign, which begins with the shared CA. It gives the API server a separate file
// for it.
func (c *cluster) testMovingOut(t *testing.T, worker *machine) {
	begun := c.reaches(t, servingAuthority, time.Minute, v1alpha1.Completed, nil).Signing
	if begun.Certificate != string(c.next.CertPEM) || begun.AttestedAt == nil {
		t.Errorf("it begins with %+v, want the CA that was shared, and what its owner has said of it", begun)
	}
	c.kubectl(t, "apply", "-k", "manifests/own-ca")
	c.trustsFile(t, servingFile, holding(begun))
	c.kubeletCA = c.follows(t, servingFile)
	c.restarted(t)
	c.deploymentsAvailable(t, "csr-controller-manager")
	// The first authority signs no more serving certificates.
	c.kubectl(t, "patch", "signingauthority", authorityName, "--type=merge",
		"--patch="+`{"spec": {"signers": ["`+certificatesv1.KubeAPIServerClientSignerName+`", "`+certificatesv1.KubeAPIServerClientKubeletSignerName+`"]}}`)
	c.wantServersOf(t, map[string]bool{"the old CA": true})
	c.wantNoClients(t, 0)
	c.wantReachable(t, worker)
}

// trustsFile waits until the DaemonSet has written the wanted content to the control plane's node.
func (c *cluster) trustsFile(t *testing.T, name string, wanted func(string) bool) {
	t.Helper()
	c.until(t, 2*time.Minute, name+" on the node is as it should be", func(context.Context) (bool, error) {
		data, err := os.ReadFile(c.machines[firstNode].file(trustDir + "/" + name))
		return err == nil && wanted(string(data)), err
	})
}

func holding(one *v1alpha1.CAStatus) func(string) bool {
	return func(file string) bool { return strings.Contains(file, strings.TrimSpace(one.Certificate)) }
}

// follows links the API server's file of that name to the file on the control plane's node, and returns its path.
func (c *cluster) follows(t *testing.T, name string) string {
	t.Helper()
	file, link := c.path("pki/"+name), c.path("pki/follow")
	if err := errors.Join(os.Symlink(c.machines[firstNode].file(trustDir+"/"+name), link), os.Rename(link, file)); err != nil {
		t.Fatal(err)
	}
	return file
}
