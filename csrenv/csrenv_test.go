package csrenv_test

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// addUser returns a client that authenticates as a user of envtest.
func addUser(t *testing.T, name string, groups ...string) client.Client {
	t.Helper()
	return newClient(t, must(testEnv.AddUser(envtest.User{Name: name, Groups: groups}, nil)).Config())
}

func TestZeroOptionsApproveAndSignForEverySigner(t *testing.T) {
	env := must(csrenv.Start(t.Context(), admin, csrenv.Options{}))
	t.Cleanup(func() { _ = env.Stop() })
	serving := newRequest(t, "serving", func(obj *certificatesv1.CertificateSigningRequest, payload *x509.CertificateRequest) {
		obj.Spec.SignerName, obj.Spec.Usages = "kubernetes.io/kubelet-serving", []certificatesv1.KeyUsage{"digital signature", "server auth"}
		payload.DNSNames, payload.IPAddresses = []string{"node"}, []net.IP{net.IPv4(10, 0, 0, 1)}
	})
	alice := newRequest(t, "alice", func(obj *certificatesv1.CertificateSigningRequest, payload *x509.CertificateRequest) {
		obj.Spec.SignerName, payload.Subject = "kubernetes.io/kube-apiserver-client", pkix.Name{CommonName: "alice"}
	})
	for obj, as := range map[*certificatesv1.CertificateSigningRequest]client.Client{
		newRequest(t, "joins"):  addUser(t, "system:bootstrap:abcdef", "system:bootstrappers"),
		newRequest(t, "renews"): addUser(t, "system:node:renews", "system:nodes"),
		serving:                 addUser(t, "system:node:serving", "system:nodes"), alice: newClient(t, admin),
	} {
		create(t, as, obj)
		if obj == serving || obj == alice {
			approve(t, obj)
		}
		eventually(t, obj, csr.Issued)
		verifies(t, parse(t, obj.Status.Certificate), env.CA)
	}
}

func TestConfigForAuthenticates(t *testing.T) {
	env := start(t, csrenv.Options{})
	for user, groups := range map[string][]string{"alice": {"auditors", "developers"}, "bob": nil, "system:node:one": {"system:nodes"}} {
		cfg := must(env.ConfigFor(t.Context(), user, groups...))
		who := whoIs(t, cfg)
		if want := append(groups, "system:authenticated"); who.Username != user || !slices.Equal(who.Groups, want) {
			t.Errorf("the API server takes it for %s %q, want %s %q", who.Username, who.Groups, user, want)
		}
		verifies(t, parse(t, cfg.CertData), env.CA)
		signer := map[bool]string{true: "kubernetes.io/kube-apiserver-client-kubelet", false: "kubernetes.io/kube-apiserver-client"}
		requests := &certificatesv1.CertificateSigningRequestList{}
		_ = must(requests, newClient(t, admin).List(t.Context(), requests))
		if !slices.ContainsFunc(requests.Items, func(obj certificatesv1.CertificateSigningRequest) bool {
			return slices.Equal(obj.Status.Certificate, cfg.CertData) && obj.Spec.SignerName == signer[user == "system:node:one"]
		}) {
			t.Errorf("no request of signer %s has the certificate of %s", signer[user == "system:node:one"], user)
		}
	}
	carol := must(testEnv.AddUser(envtest.User{Name: "carol", Groups: []string{"team"}}, nil)) // Prepare leaves envtest's users alone
	if who := whoIs(t, carol.Config()); who.Username != "carol" {
		t.Errorf("the API server takes carol for %q", who.Username)
	}
	_, err := csrenv.Prepare(testEnv)
	contains(t, err, "call Prepare first")
}

func whoIs(t *testing.T, cfg *rest.Config) authenticationv1.UserInfo {
	t.Helper()
	review := &authenticationv1.SelfSubjectReview{}
	return must(review, newClient(t, cfg).Create(t.Context(), review)).Status.UserInfo
}

func TestConfigForSaysWhatIsWrong(t *testing.T) {
	fails := func(options csrenv.Options, want string, groups ...string) {
		t.Run(want, func(t *testing.T) {
			cfg, err := start(t, options).ConfigFor(t.Context(), "alice", groups...)
			if contains(t, err, want); cfg != nil {
				t.Error("it returns a configuration")
			}
		})
	}
	fails(csrenv.Options{}, "system:masters", "system:masters") // the API server forbids it
	fails(csrenv.Options{Profile: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=al*"}}}, "Failed: SubjectNotPermitted: ")
	fails(csrenv.Options{CA: must(csrenv.NewCA())}, `the API server does not accept the certificate for "alice": call csrenv.Prepare before the `+
		"environment starts, and pass its CA to Start")
	unsigned := start(t, csrenv.Options{Customize: func(o *controllers.Options) { o.Signer = nil }})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := unsigned.ConfigFor(ctx, "alice")
	if contains(t, err, "is Approved: context deadline exceeded"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v is not the context's error", err)
	}
}

func contains(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want an error with %q", err, want)
	}
}
