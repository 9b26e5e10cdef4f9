package reliability

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

type request = certificatesv1.CertificateSigningRequest

// foreignSigner is a signer that no program in these tests serves.
const foreignSigner = "example.com/foreign"

// kind is a kind of requests of the load.
type kind struct {
	name string
	// share is how many of 500 requests are of this kind.
	share int
	// ours reports that kube-controller-manager does something else with it.
	ours bool
	// want is the state in which such a request ends.
	want csr.State
	// gone reports that the cleaner deletes it.
	gone bool
	// decide is the decision that a person makes right after the creation, or "".
	decide certificatesv1.RequestConditionType
	make   func(w *world, node string) order
}

// order is what a requester asks for.
type order struct {
	user    rest.ImpersonationConfig
	signer  string
	usages  []certificatesv1.KeyUsage
	subject pkix.Name
	ips     []net.IP
	dns     []string
	seconds *int32 // the lifetime, or nil
	// node is a Node that must exist, or nil. It is created right before the request.
	node *corev1.Node
}

var (
	clientUsages  = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth}
	servingUsages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
)

func kubeletSubject(node string) pkix.Name {
	return pkix.Name{CommonName: csr.NodeUserPrefix + node, Organization: []string{csr.NodeGroup}}
}

func joiner() rest.ImpersonationConfig {
	return rest.ImpersonationConfig{UserName: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", "system:authenticated"}}
}

func kubelet(node string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{UserName: csr.NodeUserPrefix + node, Groups: []string{csr.NodeGroup, "system:authenticated"}}
}

// stranger may create requests and nothing else.
func stranger() rest.ImpersonationConfig {
	return rest.ImpersonationConfig{UserName: "stranger", Groups: []string{"strangers", "system:authenticated"}}
}

func kubeletClient(user rest.ImpersonationConfig, node string) order {
	return order{user: user, signer: certificatesv1.KubeAPIServerClientKubeletSignerName, usages: clientUsages, subject: kubeletSubject(node)}
}

// kinds are all kinds. The shares add up to 500.
var kinds = []kind{
	{name: "join", share: 200, want: csr.Issued, make: func(_ *world, node string) order { return kubeletClient(joiner(), node) }},
	{name: "renewal", share: 80, want: csr.Issued, make: func(_ *world, node string) order { return kubeletClient(kubelet(node), node) }},
	{name: "serving", share: 60, want: csr.Issued, ours: true, make: servingOrder},
	{name: "approved", share: 40, want: csr.Issued, decide: certificatesv1.CertificateApproved, make: userClient},
	{name: "unapproved", share: 20, want: csr.Pending, make: userClient},
	{name: "denied", share: 20, want: csr.Denied, decide: certificatesv1.CertificateDenied, make: userClient},
	{name: "stranger", share: 30, want: csr.Pending, make: func(_ *world, node string) order { return kubeletClient(stranger(), node) }},
	{name: "malformed", share: 20, want: csr.Failed, decide: certificatesv1.CertificateApproved, make: func(_ *world, node string) order {
		bad := kubeletClient(joiner(), node)
		bad.subject.CommonName = "admin" // the signer must refuse it even if a person approves
		return bad
	}},
	{name: "foreign", share: 20, want: csr.Approved, decide: certificatesv1.CertificateApproved, make: func(_ *world, node string) order {
		return order{user: stranger(), signer: foreignSigner, usages: clientUsages, subject: pkix.Name{CommonName: node}}
	}},
	{name: "old", share: 10, ours: true, gone: true, want: csr.Denied},
}

func servingOrder(w *world, name string) order {
	node := w.newNode(name)
	return order{
		user: kubelet(name), signer: certificatesv1.KubeletServingSignerName, usages: servingUsages, subject: kubeletSubject(name),
		ips: []net.IP{net.ParseIP(node.Status.Addresses[0].Address).To4()}, node: node,
	}
}

func userClient(_ *world, node string) order {
	return order{user: stranger(), signer: certificatesv1.KubeAPIServerClientSignerName, usages: clientUsages, subject: pkix.Name{CommonName: node}}
}

// item is one request of the load.
type item struct {
	kind   *kind
	order  order
	key    crypto.Signer
	object *request
	client kubernetes.Interface
	// credential is the credential-id of the certificate with which it is created, or "" if the requester is impersonated.
	credential string
	stored     atomic.Bool // in etcd, if kind.gone
}

// newLoad returns the requests of the load, in an order that follows from seed.
func (w *world) newLoad(total int, seed uint64) []*item {
	w.t.Helper()
	var items []*item
	for i := range kinds {
		k := &kinds[i]
		if k.ours && w.theirs {
			continue
		}
		for n := range max(1, k.share*total/500) {
			items = append(items, w.newItem(k, fmt.Sprintf("%s-%03d", k.name, n)))
		}
	}
	mathrand.New(mathrand.NewPCG(seed, 0)).Shuffle(len(items), func(i, j int) { items[i], items[j] = items[j], items[i] })
	return items
}

func (w *world) newItem(k *kind, name string) *item {
	w.t.Helper()
	if k.gone {
		return &item{kind: k, object: oldRequest(w.t, name)}
	}
	made := &item{kind: k, order: k.make(w, name), key: newKey(w.t)}
	made.client = w.as(made.order.user)
	made.object = &request{
		// Like a kubelet's. The API server records field managers only for a request with labels or a generateName.
		ObjectMeta: metav1.ObjectMeta{Name: name, GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: made.order.signer, Usages: made.order.usages, ExpirationSeconds: made.order.seconds,
			Request: payload(w.t, made.key, x509.CertificateRequest{
				Subject: made.order.subject, IPAddresses: made.order.ips, DNSNames: made.order.dns,
			}),
		},
	}
	return made
}

// oldRequest returns a request that was denied four hours ago.
func oldRequest(t *testing.T, name string) *request {
	t.Helper()
	before := metav1.NewTime(time.Now().Add(-4 * time.Hour))
	return &request{
		TypeMeta:   metav1.TypeMeta{APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid(t), CreationTimestamp: before},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: foreignSigner, Usages: clientUsages, Username: "stranger",
			Request: payload(t, newKey(t), x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}),
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
	err := retry(ctx, func() error {
		_, err := i.client.CertificatesV1().CertificateSigningRequests().Create(ctx, i.object, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // the answer to the attempt before was lost
			return nil
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
func retry(ctx context.Context, do func() error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		last = do()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w: %w", err, last)
	}
	return nil
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func payload(t *testing.T, key crypto.Signer, template x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

// rawSubject returns the subject that was requested, as it was encoded.
func (i *item) rawSubject() []byte {
	block, _ := pem.Decode(i.object.Spec.Request)
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		panic(err) // the test encoded it
	}
	return parsed.RawSubject
}

// content returns an error if cert differs from what i's requester asked for.
func (i *item) content(cert *x509.Certificate) error {
	type publicKey interface{ Equal(crypto.PublicKey) bool }
	switch {
	case !i.key.Public().(publicKey).Equal(cert.PublicKey):
		return fmt.Errorf("it has another key")
	case !bytes.Equal(cert.RawSubject, i.rawSubject()):
		return fmt.Errorf("its subject is %s, want %s", cert.Subject, i.order.subject)
	case fmt.Sprint(cert.IPAddresses, cert.DNSNames) != fmt.Sprint(i.order.ips, i.order.dns) ||
		len(cert.URIs)+len(cert.EmailAddresses) > 0:
		return fmt.Errorf("its names are %v %v, want %v", cert.DNSNames, cert.IPAddresses, i.order.ips)
	case cert.IsCA || !cert.BasicConstraintsValid || cert.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return fmt.Errorf("CA is %t, the key usage is %b", cert.IsCA, cert.KeyUsage)
	case slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) != slices.Contains(i.order.usages, certificatesv1.UsageClientAuth),
		slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) != slices.Contains(i.order.usages, certificatesv1.UsageServerAuth),
		len(cert.ExtKeyUsage) != 1:
		return fmt.Errorf("its extended key usages are %v, and the request has %v", cert.ExtKeyUsage, i.order.usages)
	case i.order.seconds != nil && time.Until(cert.NotAfter) > time.Duration(*i.order.seconds)*time.Second:
		return fmt.Errorf("it ends at %s, and the request asks for %d s", cert.NotAfter, *i.order.seconds)
	case cert.SerialNumber.BitLen() < 64: // of 128 random bits or more
		return fmt.Errorf("its serial number %s is too small to be random", cert.SerialNumber.Text(16))
	}
	return nil
}
