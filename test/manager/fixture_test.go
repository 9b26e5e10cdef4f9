// Package manager tests the manager's program, and the kubectl plugin, on a real control plane.
package manager

import (
	"bytes"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m, 6) }

// signingSecret creates the Secret from which managers sign, with the CA of the control plane.
func signingSecret(t *testing.T) *corev1.Secret {
	t.Helper()
	secret := kit.SigningSecret(kit.ControlPlane(t).CA.CertPEM, kit.ControlPlane(t).CA.KeyPEM)
	kit.Create(t, kit.Admin(t), secret)
	return secret
}

// start runs a manager under the shipped roles. It signs with the CA of the control plane, and joiner may join. It takes
// part in no election, unless args say so.
func start(t *testing.T, args ...string) *kit.Process {
	t.Helper()
	return startAs(t, kit.ManagerConfig(t), args...)
}

// startAs is start as cfg's user.
func startAs(t *testing.T, cfg *rest.Config, args ...string) *kit.Process {
	t.Helper()
	signingSecret(t)
	kit.GrantJoining(t, "joiner")
	return kit.StartManager(t, cfg, append([]string{"--leader-elect=false"}, args...)...)
}

// startJoinable is startAs. It returns once a kubelet has joined.
func startJoinable(t *testing.T, cfg *rest.Config, args ...string) *kit.Process {
	t.Helper()
	p := startAs(t, cfg, args...)
	kit.Reaches(t, joins(t, "first"), csr.Issued)
	return p
}

// joins creates the first request of a node.
func joins(t *testing.T, node string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, kit.As(t, "joiner"), kit.NodeRequest(t, node))
}

// asksFor creates a request of the kubelet of node for a serving certificate.
func asksFor(t *testing.T, node string, sans ...string) *kit.Request {
	t.Helper()
	return kit.CreateRequest(t, kit.KubeletOf(t, node), kit.ServingRequest(t, node, sans...))
}

// decided gives a request of an administrator a condition.
func decided(t *testing.T, kind certificatesv1.RequestConditionType, mods ...func(*kit.Request)) *kit.Request {
	t.Helper()
	return kit.Decide(t, kit.CreateRequest(t, kit.Admin(t), kit.NodeRequest(t, "decided", mods...)), kind)
}

// signerName makes a request one for another signer.
func signerName(name string) func(*kit.Request) {
	return func(obj *kit.Request) { obj.Spec.SignerName = name }
}

// issuedSoon calls change, and checks that this wakes obj. Without a wake-up it would be judged again a minute later.
func issuedSoon(t *testing.T, obj *kit.Request, change func()) {
	t.Helper()
	backdate(t, obj)
	change()
	kit.Reaches(t, obj, csr.Issued)
}

// age makes obj older in etcd.
func age(t *testing.T, obj *kit.Request, by time.Duration) {
	t.Helper()
	kit.Reload(t, obj)
	obj.CreationTimestamp.Time = obj.CreationTimestamp.Add(-by)
	obj.TypeMeta = metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"}
	kit.NoError(t, kit.ControlPlane(t).Store(t.Context(), "certificatesigningrequests/"+obj.Name, obj))
}

// backdate makes waiting requests ninety seconds older. It returns once the manager judges them at most once a minute.
func backdate(t *testing.T, waiting ...*kit.Request) {
	t.Helper()
	var pause time.Duration
	for _, obj := range waiting {
		pause = max(pause, csr.Pause(time.Since(obj.CreationTimestamp.Time))) // of a reconcile just before
		age(t, obj, 90*time.Second)
	}
	time.Sleep(pause) // the retry that was scheduled before can't be observed
}

// checkStop stops the manager. It checks that there was no error, and that the log contains nothing of the key.
func checkStop(t *testing.T, p *kit.Process) {
	t.Helper()
	kit.NoError(t, p.Stop())
	log := p.Output(t)
	for _, part := range secretParts(kit.ControlPlane(t).CA.KeyPEM) {
		if strings.Contains(log, part) {
			t.Error("the log holds the key")
		}
	}
	if strings.Contains(log, "forbidden") {
		t.Errorf("the shipped roles do not suffice:\n%s", log)
	}
}

// secretParts returns parts from the middle of a PKCS#8 P-256 key, in the encodings of a file and of a Secret. All
// such keys have the same beginning, and end with the public key.
func secretParts(keyPEM []byte) []string {
	line := bytes.Split(keyPEM, []byte("\n"))[2][:24]
	at := (bytes.Index(keyPEM, line) + 2) / 3 * 3
	return []string{string(line), base64.StdEncoding.EncodeToString(keyPEM[at : at+18])}
}
