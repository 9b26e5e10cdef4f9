package integration

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/cluster"
)

// explainConfig has a signer for each possible state of a CA.
const explainConfig = `apiVersion: config.csr-controller-manager.io/v1alpha1
kind: ControllerManagerConfiguration
controllers: [approver, signer]
signing:
  signers:
  - {name: explain.example.com/own, secret: csr-controller-manager-system/explain-own, usages: [digital signature, client auth]}
  - {name: explain.example.com/missing, secret: csr-controller-manager-system/explain-missing, usages: [digital signature, client auth]}
  - {name: explain.example.com/invalid, secret: csr-controller-manager-system/explain-invalid, usages: [digital signature, client auth]}
  - {name: explain.example.com/expired, secret: csr-controller-manager-system/explain-expired, usages: [digital signature, client auth]}
  - {name: explain.example.com/short, secret: csr-controller-manager-system/explain-short, usages: [digital signature, client auth]}
`

// TestExplainSaysWhatTheEventsSay runs a manager that refuses a request for every possible reason, and compares the
// output of explain with the Event, byte by byte.
func TestExplainSaysWhatTheEventsSay(t *testing.T) {
	parallel(t)
	installRBAC(t)
	explainCAs(t)
	for _, state := range []string{"own", "missing", "invalid", "expired", "short"} {
		maySign(t, managerAccount, "explain.example.com/"+state)
		applyAll(t, rolesForSecret(t, "explain-"+state, managerAccount))
	}
	applyAll(t, rolesForSecret(t, "explain-good", managerAccount))
	file := filepath.Join(t.TempDir(), "config.yaml")
	write(t, file, []byte(explainConfig))
	args := []string{"--config", file, "--signing-secret", systemNamespace + "/explain-good"}
	made, rows := map[string]*request{}, explainRows(t)
	for name, row := range rows {
		made[name] = row.make(t, "explain-"+strings.ToLower(name))
	}
	p := startManager(t, managerConfig(t), append(args, "--leader-elect=false")...)
	p.answers(t, p.probes, "/healthz", http.StatusOK)
	kubeconfig := adminKubeconfig(t)
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			obj := made[name]
			hasEvent(t, obj, row.reason)
			note := ""
			for _, event := range eventsOf(t.Context(), t, obj) {
				if event.Reason == row.reason {
					note = event.Note
				}
			}
			out, err := runExplain(t, "", append(args, "--kubeconfig", kubeconfig, obj.Name)...)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{note, "reason " + row.reason, strconv.Quote(row.reason) + ` by "` + row.controller + `"`} {
				if !explains(out, want) {
					t.Errorf("explain does not say %s, but\n%s", want, out)
				}
			}
			if !row.described {
				return
			}
			if described := kubectl(t, kubeconfig, "describe", "csr", obj.Name); !strings.Contains(described, note) {
				t.Errorf("kubectl describe does not show %q:\n%s", note, described)
			}
		})
	}
}

type explainRow struct {
	reason, controller string
	// stored writes the request directly to etcd, and approved approves it.
	stored, approved bool
	// described also runs kubectl describe, which is slow. kubectl describe refuses a payload that is not PKCS#10.
	described bool
	user      string // system:masters if empty
	change    func(*request)
}

// explainRows returns a row for each reason of an Event about a request.
func explainRows(t *testing.T) map[string]explainRow {
	by := func(name string) func(*request) {
		return func(obj *request) { obj.Spec.SignerName = "explain.example.com/" + name }
	}
	return map[string]explainRow{
		"NotAuthorized": {reason: "NotAuthorized", controller: "csr-approver", user: "stranger", described: true, change: func(*request) {}},
		"ShapeMismatch": {reason: "ShapeMismatch", controller: "csr-approver", change: func(obj *request) {
			obj.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}
		}},
		"NotPKCS10": {reason: "Malformed", controller: "csr-approver", stored: true, change: func(obj *request) { obj.Spec.Request = []byte("hello") }},
		"Forged": {reason: "Malformed", controller: "csr-signer", stored: true, approved: true, change: func(obj *request) {
			block, _ := pem.Decode(obj.Spec.Request)
			block.Bytes[len(block.Bytes)-1] ^= 1
			obj.Spec.Request = pem.EncodeToMemory(block)
		}},
		"RequestTooOld": {reason: "RequestTooOld", controller: "csr-signer", stored: true, approved: true, change: func(obj *request) {
			obj.Status.Conditions[0].LastUpdateTime = metav1.NewTime(time.Now().Add(-2 * time.Hour))
		}},
		"KeyTooWeak":      {reason: "KeyTooWeak", controller: "csr-signer", stored: true, approved: true, change: func(obj *request) { obj.Spec.Request = weakPayload(t) }},
		"KeyNotPermitted": {reason: "KeyNotPermitted", controller: "csr-signer", stored: true, approved: true, change: func(obj *request) { obj.Spec.Request = p224Payload(t) }},
		"RequestTooLarge": {reason: "RequestTooLarge", controller: "csr-approver", change: func(obj *request) {
			obj.Spec.Request = payload(t, x509.CertificateRequest{Subject: pkix.Name{OrganizationalUnit: slices.Repeat([]string{"unit"}, 300)}})
		}},
		"SignerValidationFailure": {reason: "SignerValidationFailure", controller: "csr-signer", approved: true, change: func(obj *request) {
			obj.Spec.SignerName, obj.Spec.Usages = certificatesv1.KubeAPIServerClientSignerName, []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}
		}},
		"UsagesNotPermitted": {reason: "UsagesNotPermitted", controller: "csr-signer", approved: true, change: func(obj *request) {
			by("own")(obj)
			obj.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageServerAuth}
		}},
		"SubjectNotPermitted": {reason: "SubjectNotPermitted", controller: "csr-signer", approved: true, change: func(obj *request) {
			by("own")(obj)
			obj.Spec.Request = payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: "a\x1b[31m", Organization: []string{"system:masters"}}})
		}},
		"CAMissing":   {reason: "CAMissing", controller: "csr-signer", approved: true, change: by("missing")},
		"CAInvalid":   {reason: "CAInvalid", controller: "csr-signer", approved: true, change: by("invalid")},
		"CAExpired":   {reason: "CAExpired", controller: "csr-signer", approved: true, change: by("expired")},
		"LifetimeCut": {reason: "LifetimeCut", controller: "csr-signer", approved: true, described: true, change: by("short")},
	}
}

// make creates the request. Each has another requester, because one requester may cause only some Events.
func (r explainRow) make(t *testing.T, name string) *request {
	t.Helper()
	obj := nodeRequest(t, "a", func(obj *request) {
		obj.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		obj.Name, obj.GenerateName, obj.Spec.Username = name, "", name
		if r.stored {
			obj.UID, obj.CreationTimestamp = types.UID(name), metav1.Now()
		}
		if r.stored && r.approved {
			csr.AddCondition(obj, certificatesv1.CertificateApproved, "ByHand", "Stored by a test.", time.Now())
			obj.Status.Conditions[0].LastTransitionTime = metav1.Now()
		}
		r.change(obj)
	})
	if r.stored {
		if err := controlPlane(t).Store(t.Context(), "certificatesigningrequests/"+name, obj); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = admin(t).Delete(context.Background(), obj) })
		return obj
	}
	if r.user != "" {
		grant(t, r.user, mayCreate)
		return createRequest(t, as(t, r.user), obj)
	}
	cfg := rest.CopyConfig(controlPlane(t).Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:masters"}}
	master := clientOf(t, cfg)
	createRequest(t, master, obj)
	if r.approved {
		approve(t, obj)
	}
	return obj
}

// explainCAs stores the CAs of explainConfig other than the missing one.
func explainCAs(t *testing.T) {
	t.Helper()
	now := time.Now()
	good := newCA(t)
	for name, lifetime := range map[string]time.Duration{"explain-short": 30 * 24 * time.Hour, "explain-expired": -time.Minute} {
		authority, key, err := ca.New(ca.NewOptions{CommonName: name, Lifetime: lifetime}, now)
		if err != nil {
			t.Fatal(err)
		}
		secret := signingSecret(authority.CertificatePEM(), key)
		secret.Name = name
		create(t, admin(t), secret)
	}
	for name, cert := range map[string][]byte{"explain-good": good.CertPEM, "explain-own": good.CertPEM, "explain-invalid": []byte("garbage")} {
		secret := signingSecret(cert, good.KeyPEM)
		secret.Name = name
		create(t, admin(t), secret)
	}
}

func weakPayload(t *testing.T) []byte {
	t.Helper()
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	return keyPayload(t, weak)
}

func p224Payload(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return keyPayload(t, key)
}

func keyPayload(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func adminKubeconfig(t *testing.T) string {
	t.Helper()
	path, err := controlPlane(t).WriteKubeconfig("explain-admin", controlPlane(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// runExplain runs the real binary.
func runExplain(t *testing.T, input string, args ...string) (string, error) {
	t.Helper()
	path, err := cluster.Manager()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), path, append([]string{"explain"}, args...)...)
	var out bytes.Buffer
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &out
	err = command.Run()
	return out.String(), err
}

func kubectl(t *testing.T, kubeconfig string, args ...string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), append([]string{"--kubeconfig", kubeconfig}, args...)...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestExplainForWhoMayDoLittle runs as a user who may only read requests.
func TestExplainForWhoMayDoLittle(t *testing.T) {
	parallel(t)
	obj := createRequest(t, admin(t), nodeRequest(t, "a"))
	cfg := rest.AnonymousClientConfig(controlPlane(t).Config)
	cfg.BearerToken = "stranger-token"
	kubeconfig, err := controlPlane(t).WriteKubeconfig("explain-stranger", cfg)
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--kubeconfig", kubeconfig, "--signing-secret", systemNamespace + "/csr-signer"}
	exits(t, 1, "may not get certificatesigningrequests, so nothing can be explained", append(args, obj.Name)...)

	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "explain-reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"get"}}},
	}
	create(t, admin(t), role)
	grant(t, "stranger", role.Name)
	eventually(t, "the stranger may get requests", func(ctx context.Context) error {
		return as(t, "stranger").Get(ctx, client.ObjectKeyFromObject(obj), &request{})
	})
	out := exits(t, 0, "  decision            unknown: may not create subjectaccessreviews\n", append(args, obj.Name)...)
	for _, line := range []string{
		"  CA                  unknown: may not get secrets in namespace " + systemNamespace + " (csr-signer)\n",
		"  latest              unknown: may not list events in namespace default\n",
		"  The request is not approved. What the rules say is unknown: may not create subjectaccessreviews.\n",
	} {
		if !explains(out, line) {
			t.Errorf("%q is not in:\n%s", line, out)
		}
	}
	exits(t, 1, `there is no CertificateSigningRequest "nobody"`, append(args, "nobody")...)
}

// TestExplainOffline pipes the output of kubectl into explain, which can't reach any API server.
func TestExplainOffline(t *testing.T) {
	unshared(t)
	first := createRequest(t, admin(t), nodeRequest(t, "first"))
	second := createRequest(t, admin(t), nodeRequest(t, "second"))
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	for _, format := range []string{"yaml", "json"} {
		list := kubectl(t, adminKubeconfig(t), "get", "csr", first.Name, second.Name, "-o", format)
		out, err := runExplain(t, list, "-f", "-")
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, part := range []string{`CN=system:node:first,O=system:nodes`, `CN=system:node:second,O=system:nodes`, "  decision            unknown: offline\n"} {
			if !strings.Contains(out, part) {
				t.Errorf("%q is not in:\n%s", part, out)
			}
		}
	}
}

// exits runs explain and checks its exit code and a part of its output.
func exits(t *testing.T, code int, part string, args ...string) string {
	t.Helper()
	out, err := runExplain(t, "", args...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	if got != code || !explains(out, part) {
		t.Errorf("exit %d, want %d with %q:\n%s", got, code, part, out)
	}
	return out
}

// explains reports whether explain's output has part, wherever its lines break.
func explains(out, part string) bool {
	return strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(part), " "))
}
