package explain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// stolen is the SHA-256 of a certificate of which no request is stored.
const stolen = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// madeWith changes a request to one that was made with credentials.
func madeWith(ids ...string) func(*request) {
	return func(obj *request) {
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": ids}
	}
}

// named gives a request another name and age.
func named(name string, age time.Duration) func(*request) {
	return func(obj *request) {
		obj.Name, obj.UID, obj.CreationTimestamp = name, types.UID(name), metav1.NewTime(explainNow.Add(-age))
	}
}

// issuedFor stores a certificate that no other number gets.
func issuedFor(t testing.TB, number int) func(*request) {
	end := explainNow.AddDate(1, 0, number)
	return withCertificate(t, explainNow.AddDate(10, 0, 0), end, explainKey(t, "node").Public())
}

// idOf returns the credential ID of the certificate of obj.
func idOf(obj *request) string {
	block, _ := pem.Decode(obj.Status.Certificate)
	sum := sha256.Sum256(block.Bytes)
	return "X509SHA256=" + hex.EncodeToString(sum[:])
}

// renewalScenarios have requests that were made with a certificate.
func renewalScenarios(t testing.TB) map[string]scenario {
	first := explainRequest(t, named("csr-0", 2*time.Hour), autoApproved, issuedFor(t, 0), madeWith("X509SHA256="+stolen))
	self := explainRequest(t, autoApproved, issuedFor(t, 1), madeWith(idOf(first)))
	next := explainRequest(t, named("csr-2", 3*time.Minute), autoApproved, issuedFor(t, 2), madeWith(idOf(self)))
	last := explainRequest(t, named("csr-3\x1b", time.Minute), madeWith(idOf(next)))
	serving := explainRequest(t, named("csr-4", 2*time.Minute), forSigner(kubeletServing, signature, serverAuth), madeWith(idOf(self)))
	unrelated := explainRequest(t, named("csr-5", time.Minute), autoApproved, issuedFor(t, 5), madeWith("JTI=5"))
	chain := []client.Object{goodSecret(t), first, next, last, serving, unrelated}

	// Only a signer that stores certificates that it made before can close a circle.
	one, other := explainRequest(t, autoApproved, issuedFor(t, 6)), explainRequest(t, named("csr-6", time.Minute), autoApproved, issuedFor(t, 7))
	madeWith(idOf(other))(one)
	madeWith(idOf(one))(other)
	return map[string]scenario{
		"renewals":          {obj: self, stored: chain},
		"renewals-json":     {obj: self, stored: chain, format: "json"},
		"renewals-circle":   {obj: one, stored: []client.Object{goodSecret(t), other}},
		"renewals-several":  {obj: explainRequest(t, madeWith(idOf(first), "X509SHA256="+strings.ToUpper(stolen), "JTI=1", "X509SHA256="+stolen)), stored: chain},
		"renewals-unlisted": {obj: self, stored: chain, forbidden: []string{"list certificatesigningrequests"}},
		"renewals-offline":  {obj: self, file: true},
	}
}

// pages answers each List with the next pages, and counts them. The last page has no next one.
type pages struct {
	client.Reader
	count, each, read int
	fail              error
}

func (p *pages) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	requests, ok := list.(*certificatesv1.CertificateSigningRequestList)
	if !ok {
		return errors.New("only requests are stored")
	}
	if p.read++; p.read > p.count {
		return p.fail
	}
	for i := range p.each {
		obj := request{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("csr-%d-%d", p.read, i)}}
		madeWith("X509SHA256=" + stolen)(&obj)
		requests.Items = append(requests.Items, obj)
	}
	requests.Continue = fmt.Sprint(p.read)
	if p.read == p.count && p.fail == nil {
		requests.Continue = ""
	}
	return nil
}

// TestRenewalsAreBounded checks that explain reads page by page, that it reads only so many requests, and that it says
// so.
func TestRenewalsAreBounded(t *testing.T) {
	t.Parallel()
	obj := explainRequest(t, madeWith("X509SHA256="+stolen))
	for name, test := range map[string]struct {
		obj  *request
		api  pages
		read int
		want []string
	}{
		"one page":      {obj, pages{count: 1, each: 3}, 1, nil},
		"more pages":    {obj, pages{count: 3, each: 500}, 3, nil},
		"all pages":     {obj, pages{count: 40, each: 500}, 40, nil},
		"too many":      {obj, pages{count: 100, each: 500}, 40, []string{"unknown there are more requests than the 20000 that were read"}},
		"a failed page": {obj, pages{count: 2, each: 500, fail: errors.New("too old")}, 3, []string{"chain unknown: ", "too old"}},
		"with a token":  {explainRequest(t, madeWith("JTI=1")), pages{count: 1}, 0, nil},
	} {
		e, err := newExplainer(t.Context(), commandConfiguration(t), &test.api, offline{errOffline}, clocktesting.NewFakePassiveClock(explainNow))
		if err != nil {
			t.Fatal(err)
		}
		f := &Findings{obj: test.obj, now: explainNow}
		e.readRenewals(t.Context(), f)
		p := &page{}
		renewals(p, f)
		var text []byte
		for _, section := range p.sections {
			text = section.appendTo(text, "")
		}
		flat := strings.Join(strings.Fields(string(text)), " ")
		for _, want := range test.want {
			if !strings.Contains(flat, want) {
				t.Errorf("%s: %q is not in %q", name, want, flat)
			}
		}
		if test.api.read != test.read || test.want == nil && strings.Contains(flat, "there are more requests") {
			t.Errorf("%s: %d pages read, want %d: %q", name, test.api.read, test.read, flat)
		}
	}
}

// TestChain checks that a chain ends after twenty links, and that a link of several ways is in it once.
func TestChain(t *testing.T) {
	t.Parallel()
	number := func(of link) int {
		var n int
		if _, err := fmt.Sscanf(of.name, "%d", &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	for name, test := range map[string]struct {
		next func(n int) []int
		want int
		last string
		more bool
	}{
		"none":            {func(int) []int { return nil }, 0, "", false},
		"itself":          {func(n int) []int { return []int{n} }, 0, "", false},
		"twenty":          {func(n int) []int { return []int{min(n+1, 20)} }, 20, "20", false},
		"more":            {func(n int) []int { return []int{n + 1} }, 20, "20", true},
		"a circle":        {func(n int) []int { return []int{(n + 1) % 5} }, 4, "4", false},
		"two ways to one": {func(n int) []int { return []int{min(n+1, 7), min(n+2, 7)} }, 7, "7", false},
		"many at once":    {func(int) []int { return slices.Repeat([]int{1, 2, 3}, 1000) }, 3, "3", false},
	} {
		found, more := chain(link{name: "0"}, func(of link) (next []link) {
			for _, n := range test.next(number(of)) {
				next = append(next, link{name: fmt.Sprint(n)})
			}
			return next
		})
		last := ""
		if len(found) > 0 {
			last = found[len(found)-1].name
		}
		if len(found) != test.want || last != test.last || more != test.more {
			t.Errorf("%s: %d links, the last %q, more: %t", name, len(found), last, more)
		}
	}
}
