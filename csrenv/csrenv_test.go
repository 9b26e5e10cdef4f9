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
	asAdmin := newClient(t, admin)
	for name, test := range map[string]struct {
		as      client.Client
		approve bool
		mod     func(*certificatesv1.CertificateSigningRequest, *x509.CertificateRequest)
	}{
		"bootstrapper":  {as: addUser(t, "system:bootstrap:abcdef", "system:bootstrappers"), mod: owned},
		"renewing node": {as: addUser(t, "system:node:renewing-node", "system:nodes"), mod: owned},
		"kubelet serving": {as: addUser(t, "system:node:kubelet-serving", "system:nodes"), approve: true,
			mod: func(obj *certificatesv1.CertificateSigningRequest, payload *x509.CertificateRequest) {
				obj.Spec.SignerName = "kubernetes.io/kubelet-serving"
				obj.Spec.Usages = []certificatesv1.KeyUsage{"digital signature", "server auth"}
				payload.DNSNames, payload.IPAddresses = []string{"node"}, []net.IP{net.IPv4(10, 0, 0, 1)}
			}},
		"API server client": {as: asAdmin, approve: true,
			mod: func(obj *certificatesv1.CertificateSigningRequest, payload *x509.CertificateRequest) {
				obj.Spec.SignerName = "kubernetes.io/kube-apiserver-client"
				payload.Subject = pkix.Name{CommonName: "alice"}
			}},
	} {
		t.Run(name, func(t *testing.T) {
			obj := create(t, test.as, newRequest(t, strings.ReplaceAll(strings.ToLower(name), " ", "-"), test.mod))
			if test.approve {
				approve(t, obj)
			}
			eventually(t, obj, csr.Issued)
			verifies(t, parse(t, obj.Status.Certificate), env.CA)
		})
	}
}

func TestConfigForAuthenticates(t *testing.T) {
	env := start(t, csrenv.Options{})
	for name, test := range map[string]struct {
		user, signer string
		groups       []string
	}{
		"user with groups":    {user: "alice", groups: []string{"auditors", "developers"}, signer: "kubernetes.io/kube-apiserver-client"},
		"user without groups": {user: "bob", signer: "kubernetes.io/kube-apiserver-client"},
		"node":                {user: "system:node:one", groups: []string{"system:nodes"}, signer: "kubernetes.io/kube-apiserver-client-kubelet"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := must(env.ConfigFor(t.Context(), test.user, test.groups...))
			who := whoIs(t, cfg)
			if want := append(slices.Clone(test.groups), "system:authenticated"); who.Username != test.user || !slices.Equal(who.Groups, want) {
				t.Errorf("the API server takes it for %s %q, want %s %q", who.Username, who.Groups, test.user, want)
			}
			verifies(t, parse(t, cfg.CertData), env.CA)
			if got := signerOf(t, cfg.CertData); got != test.signer {
				t.Errorf("signer %s, want %s", got, test.signer)
			}
		})
	}
}

func whoIs(t *testing.T, cfg *rest.Config) authenticationv1.UserInfo {
	t.Helper()
	review := &authenticationv1.SelfSubjectReview{}
	if err := newClient(t, cfg).Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.UserInfo
}

// signerOf returns the signer of the request that holds certificate.
func signerOf(t *testing.T, certificate []byte) string {
	t.Helper()
	requests := &certificatesv1.CertificateSigningRequestList{}
	if err := newClient(t, admin).List(t.Context(), requests); err != nil {
		t.Fatal(err)
	}
	for _, obj := range requests.Items {
		if slices.Equal(obj.Status.Certificate, certificate) {
			return obj.Spec.SignerName
		}
	}
	return "nobody"
}

func TestPreparedAPIServerKeepsItsOwnUsers(t *testing.T) {
	user := must(testEnv.AddUser(envtest.User{Name: "carol", Groups: []string{"team"}}, nil))
	if who := whoIs(t, user.Config()); who.Username != "carol" {
		t.Errorf("the API server takes carol for %q", who.Username)
	}
	if _, err := csrenv.Prepare(testEnv); err == nil || !strings.Contains(err.Error(), "call Prepare first") {
		t.Errorf("Prepare after the start: %v", err)
	}
}

func TestConfigForSaysWhatIsWrong(t *testing.T) {
	mine := must(csrenv.NewCA())
	for name, test := range map[string]struct {
		options csrenv.Options
		groups  []string
		end     bool
		want    string
	}{
		"group that the API server forbids": {groups: []string{"system:masters"}, want: `system:masters`},
		"no signer":                         {options: csrenv.Options{Customize: func(o *controllers.Options) { o.Signer = nil }}, end: true, want: "is Approved: context deadline exceeded"},
		"subject that the profile forbids": {options: csrenv.Options{Profile: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=al*"}}},
			want: "Failed: SubjectNotPermitted: "},
		"CA that the API server does not trust": {options: csrenv.Options{CA: mine},
			want: `the API server does not accept the certificate for "alice": call csrenv.Prepare before the environment starts, and pass its CA to Start`},
	} {
		t.Run(name, func(t *testing.T) {
			env, ctx := start(t, test.options), t.Context()
			if test.end {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, 300*time.Millisecond)
				defer cancel()
			}
			cfg, err := env.ConfigFor(ctx, "alice", test.groups...)
			if cfg != nil || err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want an error with %q", err, test.want)
			}
			if test.end && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v is not the context's error", err)
			}
		})
	}
}
