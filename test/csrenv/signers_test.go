package csrenv_test

import (
	"crypto/x509"
	"net/url"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// asking returns a request for a signer.
func asking(t *testing.T, signerName string, template x509.CertificateRequest, usages ...certificatesv1.KeyUsage) *kit.Request {
	t.Helper()
	return kit.NodeRequest(t, "", func(obj *kit.Request) {
		obj.Spec.SignerName, obj.Spec.Usages, obj.Spec.Request = signerName, usages, kit.Payload(t, template)
	})
}

// TestSigners has a signer with a CA of its own, one with the CA that the API server trusts, and one of Kubernetes' signers with
// another CA and shorter certificates.
func TestSigners(t *testing.T) {
	kit.Alone(t)
	common, kubelets := kit.ControlPlane(t).CA, must(csrenv.NewCA())
	env := start(t, csrenv.Options{CA: common, Signers: map[string]csrenv.Signer{
		"example.com/own":               {MaxDuration: time.Hour},
		"example.com/shared":            {CA: common, Usages: []certificatesv1.KeyUsage{"server auth"}, AllowedNames: []string{"*.shop.svc"}},
		"kubernetes.io/kubelet-serving": {CA: kubelets, Duration: 2 * time.Hour},
	}})
	own := env.CAOf("example.com/own")
	if own == nil || own == common || env.CAOf("example.com/shared") != common || env.CAOf("kubernetes.io/kubelet-serving") != kubelets ||
		env.CAOf("kubernetes.io/kube-apiserver-client") != common || env.CAOf("example.com/none") != nil {
		t.Fatal("CAOf returns another CA")
	}
	named := func(signerName, name string, usages ...certificatesv1.KeyUsage) *kit.Request {
		return asking(t, signerName, x509.CertificateRequest{DNSNames: []string{name}}, usages...)
	}
	for name, test := range map[string]struct {
		obj      *kit.Request
		state    csr.State
		by       *csrenv.CA
		lifetime time.Duration // short ones are not cut by the five minutes before the issue
	}{
		"a client and server": {named("example.com/own", "api.shop.svc", "client auth", "server auth"), csr.Issued, own, 65 * time.Minute},
		"a usage too many":    {named("example.com/own", "api.shop.svc", "code signing"), csr.Failed, nil, 0},
		"an allowed name":     {named("example.com/shared", "api.shop.svc", "server auth"), csr.Issued, common, 365 * 24 * time.Hour},
		"another name":        {named("example.com/shared", "api.kitchen.svc", "server auth"), csr.Failed, nil, 0},
		"another usage":       {named("example.com/shared", "api.shop.svc", "client auth"), csr.Failed, nil, 0},
		"a kubelet":           {kit.ServingRequest(t, "node", "10.0.0.1"), csr.Issued, kubelets, 125 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Reaches(t, kit.Approve(t, kit.CreateRequest(t, addUser(t, "system:node:node", "system:masters"), test.obj)), test.state)
			if test.state != csr.Issued {
				return
			}
			kit.IssuedBy(t, test.obj, test.by)
			leaf := kit.Leaf(t, test.obj)
			if lives := leaf.NotAfter.Sub(leaf.NotBefore); lives != test.lifetime {
				t.Errorf("valid for %s, want %s", lives, test.lifetime)
			}
		})
	}
}

// TestRules has a preset and a condition, and the ServiceAccount that ConfigFor returns.
func TestRules(t *testing.T) {
	kit.Alone(t)
	const signerName, user = "example.com/rules", "system:serviceaccount:ruled:web"
	usages := []certificatesv1.KeyUsage{"digital signature", "server auth"}
	env := start(t, csrenv.Options{
		Signers: map[string]csrenv.Signer{signerName: {MaxDuration: time.Hour}},
		Rules: []rules.Rule{
			{Name: "spiffe", SignerName: signerName, Preset: rules.SPIFFE, TrustDomain: "example.org"},
			{
				Name: "own-names", SignerName: signerName, Usages: usages, MaxDuration: metav1.Duration{Duration: time.Hour}, Allow: []string{"names"},
				Conditions: []rules.Condition{{Expression: "request.names.all(n, n.endsWith('.' + requester.serviceAccount.namespace + '.svc'))"}},
			},
		},
		Conditions: cel.New,
	})
	kit.NewNamespace(t, "ruled")
	kit.Create(t, kit.Admin(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ruled", Name: "web"}})
	kit.Grant(t, user, kit.MayCreate)
	kit.GrantRule(t, user, "csr-controller-manager.io", "approvalrules", "use", "spiffe", "own-names")
	web := kit.ClientOf(t, must(env.ConfigFor(t.Context(), user)))
	id := x509.CertificateRequest{URIs: []*url.URL{must(url.Parse("spiffe://example.org/ns/ruled/sa/web"))}}
	for _, template := range []x509.CertificateRequest{id, {DNSNames: []string{"api.ruled.svc"}}} {
		obj := kit.Reaches(t, kit.CreateRequest(t, web, asking(t, signerName, template, usages...)), csr.Issued)
		kit.IssuedBy(t, obj, env.CAOf(signerName))
	}
	foreign := kit.CreateRequest(t, web, asking(t, signerName, x509.CertificateRequest{DNSNames: []string{"api.other.svc"}}, usages...))
	kit.Reaches(t, kit.CreateRequest(t, web, asking(t, signerName, id, usages...)), csr.Issued)
	still(t, foreign, csr.Pending)
}
