package reliability

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

// randomSeed returns the seed of the load, of random requests and of faults, which is the same for both programs: RELIABILITY_SEED,
// or 1 in the subset, or the time.
var randomSeed = sync.OnceValues(func() (uint64, error) {
	switch text := os.Getenv("RELIABILITY_SEED"); {
	case text != "":
		return strconv.ParseUint(text, 10, 64)
	case full:
		return uint64(time.Now().UnixNano()), nil
	}
	return 1, nil
})

// pick returns one of values.
func pick[T any](random *mathrand.Rand, values ...T) T { return values[random.IntN(len(values))] }

// randomItems returns count random requests. What must become of each is what becomes of another request with the same
// content before the fault: no fault becomes a verdict.
func (w *world) randomItems(count int) (items []*item) {
	w.t.Helper()
	if count == 0 {
		return nil
	}
	random := mathrand.New(mathrand.NewPCG(w.seed, 0))
	for n := range count {
		made := w.randomOrder(random, fmt.Sprintf("random-%03d", n))
		decide := pick(random, "", "", certificatesv1.CertificateApproved, certificatesv1.CertificateDenied)
		if decide == certificatesv1.CertificateDenied && made.signer != certificatesv1.KubeAPIServerClientSignerName {
			decide = "" // the approver may be faster than a person
		}
		k := &kind{name: "random", make: func(*world, string) order { return made }, decide: decide}
		twin := w.newItem(k, fmt.Sprintf("twin-%03d", n))
		if w.isRefused(twin) {
			continue
		}
		kit.NoError(w.t, w.create(w.t.Context(), twin))
		w.twins, items = append(w.twins, twin), append(items, w.newItem(k, fmt.Sprintf("random-%03d", n)))
	}
	if !w.poll(patience, func(context.Context) bool { return w.history.quietFor() > 5*time.Second }) {
		w.t.Fatal("the random requests do not come to rest without faults")
	}
	for n, twin := range w.twins {
		items[n].kind.want = w.history.of(twin.object.Name).state()
	}
	return items
}

// shortCA gives the program a CA that ends before most certificates would.
func shortCA(w *world) {
	made := kit.IssueCA(w.t, "short", kit.NewKey(w.t), nil, 2*time.Hour)
	ca := &csrenv.CA{CertPEM: made.PEM(), KeyPEM: made.KeyPEM(w.t)}
	w.putCA(ca.CertPEM, ca.KeyPEM)
	w.roots, w.keys = []*csrenv.CA{ca}, append(w.keys, ca.KeyPEM)
}

// isRefused reports whether the API server does not store such a request.
func (w *world) isRefused(i *item) bool {
	w.t.Helper()
	_, err := i.client.CertificatesV1().CertificateSigningRequests().Create(
		w.t.Context(), i.object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
		w.t.Fatal(err)
	}
	return err != nil
}

// asksForCA are the basic constraints of a CA.
var asksForCA = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}}

// rsaKey returns a key, which several requests may have.
var rsaKey = sync.OnceValue(func() crypto.Signer {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		panic(err)
	}
	return key
})

// randomOrder returns a request that is right in about one of three cases.
func (w *world) randomOrder(random *mathrand.Rand, node string) order {
	w.t.Helper()
	var made order
	switch random.IntN(3) {
	case 0:
		made = kubeletClient(joiner, node)
	case 1:
		made = kubeletClient(kubelet(node), node)
	default:
		made = servingOrder(w, node)
	}
	seconds := int32(pick(random, 600, 3600, 86_400))
	made.seconds = pick(random, nil, &seconds)
	for range random.IntN(3) { // changes
		switch random.IntN(8) {
		case 0:
			made.user = pick(random, joiner, kubelet(node), kubelet("other"), stranger)
		case 1:
			made.signer = pick(random, foreignSigner, certificatesv1.KubeAPIServerClientSignerName,
				certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName)
		case 2:
			made.usages = pick(random, clientUsages, servingUsages,
				append([]certificatesv1.KeyUsage{certificatesv1.UsageKeyEncipherment}, clientUsages...),
				[]certificatesv1.KeyUsage{certificatesv1.UsageCertSign}, []certificatesv1.KeyUsage{certificatesv1.UsageAny})
		case 3:
			made.Subject = pick(random, kubeletSubject("other"), pkix.Name{CommonName: node}, pkix.Name{},
				pkix.Name{CommonName: made.Subject.CommonName, Organization: []string{"system:masters"}},
				pkix.Name{CommonName: made.Subject.CommonName, Organization: []string{"system:nodes", "others"}})
		case 4:
			if made.ExtraExtensions = pick(random, asksForCA, nil); made.ExtraExtensions == nil {
				made.key = rsaKey()
			}
		case 5:
			made.URIs, made.EmailAddresses = pick(random, nil, []*url.URL{{Scheme: "spiffe", Host: node}}), pick(random, nil, []string{node + "@example.com"})
		case 6:
			made.IPAddresses = pick(random, nil, []net.IP{net.IPv4(192, 0, 2, 77).To4()}, []net.IP{net.IPv4(127, 0, 0, 1).To4()})
		default:
			made.DNSNames = pick(random, nil, []string{node}, []string{"kubernetes.default"}, []string{"*.example.com"})
		}
	}
	return made
}

// randomFaults changes the faults of the proxy twice a second, as a seed says, and starts the program anew in between.
func randomFaults(w *world) {
	random := mathrand.New(mathrand.NewPCG(w.seed, 1))
	for n := range 40 {
		rules := make([]faults.Rule, 1+random.IntN(4))
		for i := range rules {
			rules[i] = randomRule(random)
		}
		w.proxy.Use(rules...)
		if n == 20 {
			w.oldest().kill()
			w.startReplica(false)
		}
		w.pause(500 * time.Millisecond)
	}
	w.proxy.Use()
}

// randomRule returns a fault of some calls.
func randomRule(random *mathrand.Rand) faults.Rule {
	answer := faults.Answer(pick(random, 401, 403, 404, 409, 429, 500, 503, 504))
	return faults.Rule{
		Resources: pick(random, nil, requestWrites, []string{"certificatesigningrequests"}, []string{"subjectaccessreviews"},
			[]string{"secrets"}, []string{"nodes", "services", "endpointslices"}),
		Share: pick(random, 0.2, 0.5, 1),
		Do: pick(random, answer, answer.Landed(), faults.Reset(), faults.Reset().Landed(), faults.ResetConnection(),
			faults.Hang(), faults.Delay(300*time.Millisecond), faults.Cut(100*time.Millisecond), faults.Stall()),
	}
}
