package approver

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// TestConditionsAreASCII checks that text that a requester chose is ASCII in the condition and in the Event. kubectl
// prints both.
func TestConditionsAreASCII(t *testing.T) {
	t.Parallel()
	const chosen = "a\u009b31m\u202e\u0435\u3164\U0001f511"
	p := newParts(t, object(t, func(obj *request) {
		obj.Spec.SignerName, obj.Spec.Username, obj.Spec.Groups = certificatesv1.KubeletServingSignerName, chosen, []string{chosen}
		obj.Spec.Request = payload(t, &x509.CertificateRequest{
			Subject:        pkix.Name{CommonName: chosen, Organization: []string{chosen}, OrganizationalUnit: []string{chosen}},
			EmailAddresses: []string{"b@c.d"},
		})
	}))
	p.reconciler.Denial, p.reconciler.Rules = DenialPermanent, []Rule{KubeletServing(Serving{Inventory: &Inventory{}})}
	if _, err := p.reconcile(t); err != nil {
		t.Fatal(err)
	}
	told := p.events()
	if len(p.written) != 1 || len(told) != 1 {
		t.Fatalf("%d writes, Events %q", len(p.written), told)
	}
	for place, text := range map[string]string{"condition": p.written[0].Status.Conditions[0].Message, "Event": told[0]} {
		if at := strings.IndexFunc(text, func(char rune) bool { return char < ' ' || char > '~' }); at >= 0 {
			t.Errorf("the %s has %q", place, text[at:min(len(text), at+10)])
		}
		if !strings.Contains(text, `a\u009b31m\u202e\u0435\u3164\U0001f511`) {
			t.Errorf("the %s does not name what was chosen: %s", place, text)
		}
	}
}
