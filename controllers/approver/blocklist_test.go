package approver

import (
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist"
)

// stolen is the SHA-256 of a blocked certificate.
const stolen = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// blockList returns a block list that has read a ConfigMap with nodes and certificates.
func blockList(t *testing.T, nodes string, certificates ...string) *blocklist.List {
	t.Helper()
	list := blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"})
	obj := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked"},
		Data:       map[string]string{"nodes": nodes, "certificates": strings.Join(certificates, "\n")},
	}
	list.Offer(obj)
	return list
}

// blocking returns a ConfigMap that blocks nodes.
func blocking(nodes string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "blocked"}, Data: map[string]string{"nodes": nodes}}
}

// madeWith changes a request to one that was made with a certificate.
func madeWith(sha256Hex string) func(*request) {
	return func(obj *request) {
		obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"authentication.kubernetes.io/credential-id": {"X509SHA256=" + sha256Hex}}
	}
}

// TestReconcileObeysTheBlockList checks that the request of a blocked node or made with a blocked certificate waits, and
// that no review is sent for it.
func TestReconcileObeysTheBlockList(t *testing.T) {
	t.Parallel()
	unread := blocklist.New(types.NamespacedName{Namespace: "ns", Name: "blocked"})
	const blocked = `Warning NodeBlocked node "a" is on the block list, ConfigMap ns/blocked: nothing is approved or signed for it until its name is removed from the list`
	for name, test := range map[string]struct {
		list   *blocklist.List
		change func(*request)
		told   []string
		writes int
	}{
		"a bootstrap":                 {list: blockList(t, "a"), told: []string{blocked}},
		"a renewal":                   {list: blockList(t, "A"), change: user("system:node:a"), told: []string{blocked}},
		"requested by a blocked node": {list: blockList(t, "b"), change: user("system:node:b"), told: []string{`Warning NodeBlocked node "b" is on the block list, ConfigMap ns/blocked: nothing is approved or signed for it until its name is removed from the list`}},
		"shape mismatch":              {list: blockList(t, "a"), change: serverAuth, told: []string{blocked}},
		"another node":                {list: blockList(t, "b"), writes: 1},
		"made with a blocked certificate": {list: blockList(t, "", stolen), change: madeWith(stolen), told: []string{
			"Warning CertificateBlocked client certificate " + stolen + " is on the block list, ConfigMap ns/blocked: nothing is approved or signed for a request that was made with it until its SHA-256 is removed from the list",
		}},
		"made with another certificate": {list: blockList(t, "b", stolen), change: madeWith(stolen[1:] + "0"), writes: 1},
		"empty list":                    {list: blockList(t, ""), writes: 1},
		"no list":                       {writes: 1},
		"not read yet": {list: unread, told: []string{
			"Warning InventoryUnavailable the request waits because it is unknown whether it is blocked: block list ConfigMap ns/blocked: not read yet",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			change := test.change
			if change == nil {
				change = func(*request) {}
			}
			p := newParts(t, object(t, change))
			p.reconciler.BlockList, p.reconciler.Denial, p.grants = test.list, DenialPermanent, []string{"nodeclient", "selfnodeclient"}
			result, err := p.reconcile(t)
			if told := p.events(); err != nil || len(told) != len(test.told) || len(told) > 0 && told[0] != test.told[0] {
				t.Errorf("Events %q, want %q; error %v", told, test.told, err)
			}
			waits := test.writes == 0
			if len(p.written) != test.writes || (result.RequeueAfter > 0) != waits || (len(p.reviews) == 0) != waits {
				t.Errorf("%d writes, %d reviews, again after %s", len(p.written), len(p.reviews), result.RequeueAfter)
			}
		})
	}
}
