package parity

import (
	"context"
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// The parts of Kubernetes' test/integration/certificates that test the API server, not a controller. The parts of its
// controller_approval and duration tests, and of its e2e test (sign, then use), are rows.

// testAdmission tests admission_approval_test.go and admission_sign_test.go: which users may write a decision or a
// certificate.
func (e *env) testAdmission(t *testing.T) {
	t.Helper()
	for verb, refused := range map[string]string{
		"approve": `user not permitted to approve requests with signerName "example.com/something"`,
		"sign":    `user not permitted to sign requests with signerName "example.com/something"`,
	} {
		for permitted, ok := range map[string]bool{"example.com/something": true, "example.com/*": true, "example.com/not-something": false} {
			t.Run(verb+" "+permitted, func(t *testing.T) {
				writer := user{name: verb + " " + permitted, groups: []string{"system:authenticated"}}
				e.permit(t, verb, permitted, writer.name)
				name := strings.Map(plain, "admission-"+writer.name)
				name = strings.ReplaceAll(name, "*", "any")
				if err := e.create(t.Context(), name, row{signer: "example.com/something", user: stranger}); err != nil {
					t.Fatal(err)
				}
				err := e.write(t, verb, name, writer, refused)
				if ok && err != nil {
					t.Errorf("refused: %v", err)
				}
				if !ok && (err == nil || !strings.Contains(err.Error(), refused)) {
					t.Errorf("got %v, want %q", err, refused)
				}
			})
		}
	}
}

// write writes a decision, or a condition that only a signer may set, as writer. The API server knows a new role
// after a moment.
func (e *env) write(t *testing.T, verb, name string, writer user, refused string) error {
	t.Helper()
	client, err := e.as(writer)
	if err != nil {
		t.Fatal(err)
	}
	requests := client.CertificatesV1().CertificateSigningRequests()
	waited := wait.PollUntilContextTimeout(t.Context(), pollInterval, patienceForRoles, true, func(ctx context.Context) (bool, error) {
		obj, getErr := e.admin.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		if getErr != nil {
			return false, getErr
		}
		if verb == "approve" {
			obj.Status.Conditions = conditions(since("Approved", 0))
			_, err = requests.UpdateApproval(ctx, name, obj, metav1.UpdateOptions{})
		} else {
			obj.Status.Conditions = conditions(since("Failed", 0))
			_, err = requests.UpdateStatus(ctx, obj, metav1.UpdateOptions{})
		}
		return err == nil || strings.Contains(err.Error(), refused), nil
	})
	if waited != nil && err == nil {
		return waited
	}
	return err
}

// permit permits the user to write decisions or certificates of requests for these signers.
func (e *env) permit(t *testing.T, verb, signers, to string) {
	t.Helper()
	role, err := e.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "parity-"},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"signers"}, ResourceNames: []string{signers}, Verbs: []string{verb}},
			{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests/approval", "certificatesigningrequests/status"}, Verbs: []string{"update"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.bind(t, role.Name, rbacv1.UserKind, to)
}

// testCreation tests admission_subjectrestriction_test.go, and requests that duration_test.go and NodeRestriction
// refuse.
func (e *env) testCreation(t *testing.T) {
	t.Helper()
	for name, test := range map[string]struct {
		row     row
		refused string
	}{
		"system:masters": {
			row{user: stranger, subject: &pkix.Name{Organization: []string{"system:masters"}}},
			"use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
		},
		"599 seconds":      {row{user: stranger, seconds: 599}, "may not specify a duration less than 600 seconds"},
		"180 seconds":      {row{user: stranger, seconds: 180}, "may not specify a duration less than 600 seconds"},
		"negative":         {row{user: stranger, seconds: -420}, "may not specify a duration less than 600 seconds"},
		"legacy signer":    {row{user: stranger, signer: legacyUnknown}, "the legacy signerName is not allowed via this API version"},
		"unknown usage":    {row{user: stranger, usages: usages("unknown")}, "Unsupported value"},
		"another node":     {row{user: nodeUser("n2", "system:nodes"), signer: kubeletClient, subject: nodeName("n1")}, "can only create a node CSR with CN=system:node:n2"},
		"bad signature":    {row{user: stranger, payload: badSignature}, "spec.request"},
		"wrong block type": {row{user: stranger, payload: newBlockType}, "PEM block type must be CERTIFICATE REQUEST"},
	} {
		t.Run(name, func(t *testing.T) {
			err := e.create(t.Context(), "refused", test.row)
			if err == nil || !strings.Contains(err.Error(), test.refused) {
				t.Errorf("got %v, want %q", err, test.refused)
			}
		})
	}
}

// testFieldSelector tests field_selector_test.go.
func (e *env) testFieldSelector(t *testing.T) {
	t.Helper()
	for name, signer := range map[string]string{"csr-1": "example.com/one", "csr-2": "example.com/two", "csr-3": "example.com/two"} {
		if err := e.create(t.Context(), name, row{signer: signer, user: stranger}); err != nil {
			t.Fatal(err)
		}
	}
	for signer, want := range map[string][]string{"example.com/one": {"csr-1"}, "example.com/two": {"csr-2", "csr-3"}, "example.com/three": nil} {
		list, err := e.admin.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{FieldSelector: "spec.signerName=" + signer})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range list.Items {
			got = append(got, list.Items[i].Name)
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s has %q, want %q", signer, got, want)
		}
	}
}
