package reliability

import (
	"cmp"
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/faults"
)

type request = certificatesv1.CertificateSigningRequest

// foreignSigner is a signer that no program in these tests serves.
const foreignSigner = "example.com/foreign"

type kind struct {
	name   string
	share  int                                 // how many of 500 requests are of this kind
	ours   bool                                // kube-controller-manager does something else with it
	want   csr.State                           // in which such a request ends
	gone   bool                                // the cleaner deletes it
	decide certificatesv1.RequestConditionType // what a person decides right after the creation, or ""
	make   func(w *world, node string) order
}

type order struct {
	x509.CertificateRequest
	user    rest.ImpersonationConfig
	signer  string
	usages  []certificatesv1.KeyUsage
	key     crypto.Signer // nil stands for a new one of P-256
	seconds *int32        // the lifetime, or nil
	node    *corev1.Node  // a Node that is created right before the request, or nil
}

var (
	clientUsages  = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	servingUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
)

func kubeletSubject(node string) pkix.Name {
	return pkix.Name{CommonName: csr.NodeUserPrefix + node, Organization: []string{csr.NodeGroup}}
}

func named(subject pkix.Name) x509.CertificateRequest {
	return x509.CertificateRequest{Subject: subject}
}

var (
	joiner = rest.ImpersonationConfig{UserName: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", "system:authenticated"}}
	// stranger may create requests and nothing else.
	stranger = rest.ImpersonationConfig{UserName: "stranger", Groups: []string{"strangers", "system:authenticated"}}
)

func kubelet(node string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{UserName: csr.NodeUserPrefix + node, Groups: []string{csr.NodeGroup, "system:authenticated"}}
}

func kubeletClient(user rest.ImpersonationConfig, node string) order {
	return order{named(kubeletSubject(node)), user, certificatesv1.KubeAPIServerClientKubeletSignerName, clientUsages, nil, nil, nil}
}

// kinds are all kinds. The shares add up to 500.
var kinds = []kind{
	{name: "join", share: 200, want: csr.Issued, make: func(_ *world, node string) order { return kubeletClient(joiner, node) }},
	{name: "renewal", share: 80, want: csr.Issued, make: func(_ *world, node string) order { return kubeletClient(kubelet(node), node) }},
	{name: "serving", share: 60, want: csr.Issued, ours: true, make: servingOrder},
	{name: "approved", share: 40, want: csr.Issued, decide: certificatesv1.CertificateApproved, make: userClient},
	{name: "unapproved", share: 20, want: csr.Pending, make: userClient},
	{name: "denied", share: 20, want: csr.Denied, decide: certificatesv1.CertificateDenied, make: userClient},
	// A kubelet that asks for the address of another node is never approved, also not while the caches are empty.
	{name: "thief", share: 10, want: csr.Pending, ours: true, make: func(w *world, name string) order {
		asked := servingOrder(w, name)
		asked.IPAddresses = []net.IP{net.ParseIP(victimAddress).To4()}
		return asked
	}},
	{name: "stranger", share: 20, want: csr.Pending, make: func(_ *world, node string) order { return kubeletClient(stranger, node) }},
	{name: "malformed", share: 20, want: csr.Failed, decide: certificatesv1.CertificateApproved, make: func(_ *world, node string) order {
		bad := kubeletClient(joiner, node)
		bad.Subject.CommonName = "admin" // the signer must refuse it even if a person approves
		return bad
	}},
	{name: "foreign", share: 20, want: csr.Approved, decide: certificatesv1.CertificateApproved, make: func(_ *world, node string) order {
		return order{named(pkix.Name{CommonName: node}), stranger, foreignSigner, clientUsages, nil, nil, nil}
	}},
	{name: "old", share: 10, ours: true, gone: true, want: csr.Denied},
}

// victimAddress is the address of a Node that exists from the start.
const victimAddress = "203.0.113.1"

func servingOrder(w *world, name string) order {
	node := w.node(name)
	made := order{named(kubeletSubject(name)), kubelet(name), certificatesv1.KubeletServingSignerName, servingUsages, nil, nil, node}
	made.IPAddresses = []net.IP{net.ParseIP(node.Status.Addresses[0].Address).To4()}
	return made
}

func userClient(_ *world, node string) order {
	return order{named(pkix.Name{CommonName: node}), stranger, certificatesv1.KubeAPIServerClientSignerName, clientUsages, nil, nil, nil}
}

type item struct {
	kind   *kind
	order  order
	object *request
	client kubernetes.Interface
	tried  time.Time     // when its requester first tried to create it
	stored atomic.Bool   // in etcd, if kind.gone
	began  time.Time     // when it was created for the first time
	ahead  time.Duration // how far the API server's clock was ahead of the test's then, in hours
}

// newLoad returns the requests of the scenario, in an order that follows from the seed.
func (w *world) newLoad() []*item {
	total, items := requests, w.randomItems(w.random)
	if !full {
		total = fewRequests
	}
	for i := range kinds {
		k := &kinds[i]
		if k.ours && w.theirs {
			continue
		}
		for n := range max(1, k.share*total/500) {
			items = append(items, w.newItem(k, fmt.Sprintf("%s-%03d", k.name, n)))
		}
	}
	mathrand.New(mathrand.NewPCG(w.seed, 0)).Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	return items
}

func (w *world) newItem(k *kind, name string) *item {
	if k.gone {
		return &item{kind: k, object: w.oldRequest(name)}
	}
	asked := k.make(w, name)
	der := kit.Must(x509.CreateCertificateRequest(rand.Reader, &asked.CertificateRequest, cmp.Or(asked.key, kit.NewKey(w.t))))(w.t)
	return &item{kind: k, order: asked, client: w.as(asked.user), object: &request{
		// Like a kubelet's. The API server records field managers only for a request with labels or a generateName.
		ObjectMeta: metav1.ObjectMeta{Name: name, GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: asked.signer, Usages: asked.usages, ExpirationSeconds: asked.seconds,
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}}
}

func (w *world) oldRequest(name string) *request {
	before := metav1.NewTime(time.Now().Add(-cmp.Or(w.oldAge, 4*time.Hour)))
	return &request{
		TypeMeta:   metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uuid.NewUUID(), CreationTimestamp: before},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: foreignSigner, Usages: clientUsages, Username: "stranger",
			Request: kit.Payload(w.t, named(pkix.Name{CommonName: name})),
		},
		Status: certificatesv1.CertificateSigningRequestStatus{Conditions: []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "ByHand",
			LastUpdateTime: before, LastTransitionTime: before,
		}}},
	}
}

// create creates the request of i, and decides it as a person would. Like a kubelet, it tries again until the API
// server answers.
func (w *world) create(ctx context.Context, i *item) error {
	i.tried = time.Now()
	if i.kind.gone {
		err := retry(ctx, func() error { return w.Store(ctx, "certificatesigningrequests/"+i.object.Name, i.object) })
		i.stored.Store(err == nil)
		return err
	}
	if i.order.node != nil {
		if err := retry(ctx, func() error { return w.addNode(ctx, i.order.node) }); err != nil {
			return err
		}
	}
	i.began = time.Now()
	err := retry(ctx, func() error {
		created, err := i.client.CertificatesV1().CertificateSigningRequests().Create(ctx, i.object, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err): // the answer to the attempt before was lost
			return nil
		case err == nil:
			i.ahead = time.Until(created.CreationTimestamp.Time).Round(time.Hour)
		}
		return err
	})
	if err != nil || i.kind.decide == "" {
		return err
	}
	requests := w.admin.CertificatesV1().CertificateSigningRequests()
	return retry(ctx, func() error {
		obj, err := requests.Get(ctx, i.object.Name, metav1.GetOptions{})
		if err != nil || csr.StateOf(obj) != csr.Pending {
			return err
		}
		csr.AddCondition(obj, i.kind.decide, "ByHand", "Decided by a test.", time.Time{})
		_, err = requests.UpdateApproval(ctx, obj.Name, obj, metav1.UpdateOptions{})
		return err
	})
}

// retry calls do until it succeeds, for two minutes at most.
func retry(ctx context.Context, do func() error) (last error) {
	_ = wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		last = do()
		return last == nil, nil
	})
	return last
}

// In both programs a certificate begins five minutes before it is signed, and is valid for a year if no lifetime was requested.
// The five minutes are added to a lifetime below eight hours, and are a part of a longer one.
const (
	backdate        = 5 * time.Minute
	defaultLifetime = 365 * 24 * time.Hour
	shortLifetime   = 8 * time.Hour
)

func (i *item) validity() time.Duration {
	if i.order.seconds == nil {
		return defaultLifetime
	}
	lifetime := time.Duration(*i.order.seconds) * time.Second
	if lifetime < shortLifetime {
		return lifetime + backdate
	}
	return lifetime
}

// The usages that a request of the load may have.
var (
	keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
		certificatesv1.UsageDigitalSignature: x509.KeyUsageDigitalSignature, certificatesv1.UsageKeyEncipherment: x509.KeyUsageKeyEncipherment,
	}
	extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
		certificatesv1.UsageClientAuth: x509.ExtKeyUsageClientAuth, certificatesv1.UsageServerAuth: x509.ExtKeyUsageServerAuth,
	}
)

// expected returns the certificate that i's requester asked for, if ca issues it from notBefore on.
func (i *item) expected(ca *x509.Certificate, notBefore time.Time) (*x509.Certificate, error) {
	block, _ := pem.Decode(i.object.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		RawSubjectPublicKeyInfo: asked.RawSubjectPublicKeyInfo, RawSubject: asked.RawSubject, BasicConstraintsValid: true,
		DNSNames: asked.DNSNames, EmailAddresses: asked.EmailAddresses, IPAddresses: asked.IPAddresses, URIs: asked.URIs,
	}
	if cert.NotAfter = notBefore.Add(i.validity()); cert.NotAfter.After(ca.NotAfter) {
		cert.NotAfter = ca.NotAfter
	}
	for _, usage := range i.order.usages {
		cert.KeyUsage |= keyUsages[usage]
		if extended, ok := extendedUsages[usage]; ok {
			cert.ExtKeyUsage = append(cert.ExtKeyUsage, extended)
		}
	}
	return cert, nil
}

// content describes what must be equal in the certificate that was asked for and the one that was issued.
func content(c *x509.Certificate) string {
	return fmt.Sprintf("key %x, subject %x, names %q %q %q %q, CA %t %t, usages %b %v %v, end %s", c.RawSubjectPublicKeyInfo, c.RawSubject, c.DNSNames,
		c.EmailAddresses, c.IPAddresses, c.URIs, c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage, c.UnknownExtKeyUsage, c.NotAfter.UTC())
}

// check returns an error if cert, which ca has issued, differs from what i's requester asked for. stored is when the API server had it,
// or later.
func (i *item) check(cert, ca *x509.Certificate, stored time.Time) error {
	want, err := i.expected(ca, cert.NotBefore)
	switch {
	case err != nil:
		return err
	case content(cert) != content(want):
		return fmt.Errorf("its certificate has\n%s, want\n%s", content(cert), content(want))
	case cert.NotBefore.Before(i.began.Add(-backdate-time.Second)) || cert.NotBefore.After(stored.Add(i.ahead-backdate)):
		return fmt.Errorf("it begins at %s; it was requested at %s and stored at %s", cert.NotBefore, i.began, stored)
	case cert.SerialNumber.BitLen() < 64: // of 128 random bits or more
		return fmt.Errorf("its serial number %s is too small to be random", cert.SerialNumber.Text(16))
	}
	return nil
}

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

func pick[T any](random *mathrand.Rand, values ...T) T { return values[random.IntN(len(values))] }

// randomItems returns count random requests. What must become of each is what becomes of another request with the same
// content before the fault: no fault becomes a verdict.
func (w *world) randomItems(count int) (items []*item) {
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
		_, err := twin.client.CertificatesV1().CertificateSigningRequests().Create(
			w.t.Context(), twin.object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
			continue // the API server does not store such a request
		}
		kit.NoError(w.t, err)
		kit.NoError(w.t, w.create(w.t.Context(), twin))
		w.twins, items = append(w.twins, twin), append(items, w.newItem(k, fmt.Sprintf("random-%03d", n)))
	}
	kit.Require(w.t, w.poll(patience, func(context.Context) bool { return w.history.quietFor() > 5*time.Second }),
		"the random requests do not come to rest without faults")
	for n, twin := range w.twins {
		items[n].kind.want = w.history.of(twin.object.Name).state()
	}
	return items
}

// shortCA gives the program a CA that ends before most certificates would.
func shortCA(w *world) {
	made := kit.IssueCA(w.t, "short", kit.NewKey(w.t), nil, 2*time.Hour)
	w.putCA(made.PEM(), made.KeyPEM(w.t))
	w.roots, w.keys = []*x509.Certificate{made.Cert}, append(w.keys, made.KeyPEM(w.t))
}

// asksForCA are the basic constraints of a CA.
var asksForCA = []pkix.Extension{{Id: asn1.ObjectIdentifier{2, 5, 29, 19}, Critical: true, Value: []byte{0x30, 3, 1, 1, 0xff}}}

// randomOrder returns a request that is right in about one of three cases.
func (w *world) randomOrder(random *mathrand.Rand, node string) order {
	var made order
	switch random.IntN(3) {
	case 0:
		made = kubeletClient(joiner, node)
	case 1:
		made = kubeletClient(kubelet(node), node)
	default:
		made = servingOrder(w, node)
	}
	made.seconds = pick(random, nil, new(int32(pick(random, 600, 3600, 86_400))))
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
				made.key = kit.Must(rsa.GenerateKey(rand.Reader, 2048))(w.t)
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
