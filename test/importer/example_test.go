// Package importer_test approves kubelet serving certificates in a program that has clients and listers of its own, by the
// judgement of pkg/judge/serving.
package importer_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/fake"
	certificates "k8s.io/client-go/kubernetes/typed/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/serving"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/san"
)

// approver is the part of a program that approves kubelet serving certificates.
type approver struct {
	requests  certificates.CertificateSigningRequestInterface
	nodes     corelisters.NodeLister
	services  corelisters.ServiceLister
	endpoints discoverylisters.EndpointSliceNamespaceLister // of the namespace default
	// certificates are those that API servers show in a TLS handshake, and hosts the names by which clients reach them.
	certificates []*x509.Certificate
	hosts        []string
	synced       []cache.InformerSynced // of the listers
}

// approve approves obj if every name in it belongs to the kubelet that requests it. Call it again after a pause if it returns
// a decision to wait, or an error.
func (a approver) approve(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (judge.Decision, error) {
	if obj.Spec.SignerName != certificatesv1.KubeletServingSignerName || !csr.Undecided(obj) {
		return judge.Decision{}, nil
	}
	for _, synced := range a.synced {
		if !synced() {
			return judge.Decision{}, errors.New("the listers have not synced yet")
		}
	}
	req, err := csr.Parse(obj)
	if err != nil {
		return judge.Decision{}, err
	}
	cluster := serving.Cluster{APIServerCertificates: a.certificates, APIServerHosts: a.hosts}
	var errs [3]error
	cluster.Nodes, errs[0] = a.nodes.List(labels.Everything())
	cluster.Services, errs[1] = a.services.List(labels.Everything())
	cluster.EndpointSlices, errs[2] = a.endpoints.List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: "kubernetes"}))
	facts, err := cluster.Facts(req)
	if err := errors.Join(append(errs[:], err)...); err != nil {
		return judge.Decision{}, err
	}
	decision := serving.Policy{Reserved: san.Reserved{ClusterDomain: "cluster.local"}}.Judge(req, facts)
	if decision.Verdict != judge.Approve {
		return decision, nil
	}
	approved := obj.DeepCopy() // of the version that was judged
	approved.Status.Conditions = append(approved.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: decision.Reason, Message: decision.Message,
	})
	_, err = a.requests.UpdateApproval(ctx, obj.Name, approved, metav1.UpdateOptions{})
	return decision, err
}

// The kubelet of worker-1 asks for its address, and that of worker-2 for the address of worker-1.
func Example() {
	node := func(name, address string) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
		}
	}
	kubernetes := metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}
	good, bad := request("worker-1", "192.0.2.1"), request("worker-2", "192.0.2.1")
	client := fake.NewClientset(good, bad)
	server := httptest.NewTLSServer(nil) // in the place of an API server
	defer server.Close()
	a := approver{
		requests:     client.CertificatesV1().CertificateSigningRequests(),
		nodes:        corelisters.NewNodeLister(indexer(node("worker-1", "192.0.2.1"), node("worker-2", "192.0.2.2"))),
		services:     corelisters.NewServiceLister(indexer(&corev1.Service{ObjectMeta: kubernetes, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}})),
		endpoints:    discoverylisters.NewEndpointSliceLister(indexer(&discoveryv1.EndpointSlice{ObjectMeta: kubernetes, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.100"}}}})).EndpointSlices(metav1.NamespaceDefault),
		certificates: []*x509.Certificate{server.Certificate()}, hosts: []string{"192.0.2.100"},
		synced: []cache.InformerSynced{func() bool { return true }},
	}
	for _, obj := range []*certificatesv1.CertificateSigningRequest{good, bad} {
		decision, err := a.approve(context.Background(), obj)
		fmt.Println(obj.Name, decision.Verdict, decision.Reason, err)
	}
	stored, err := a.requests.Get(context.Background(), good.Name, metav1.GetOptions{})
	fmt.Println(stored.Status.Conditions[0].Type, err)
	// Output:
	// worker-1 Approve AutoApproved <nil>
	// worker-2 Wait SANNotOwned <nil>
	// Approved <nil>
}

func indexer(objects ...any) cache.Indexer {
	all := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, obj := range objects {
		if err := all.Add(obj); err != nil {
			panic(err)
		}
	}
	return all
}

// request returns what the kubelet of node creates to get a serving certificate for address.
func request(node, address string) *certificatesv1.CertificateSigningRequest {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}}, IPAddresses: []net.IP{net.ParseIP(address)},
	}, key)
	if err != nil {
		panic(err)
	}
	return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: certificatesv1.CertificateSigningRequestSpec{
		Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), SignerName: certificatesv1.KubeletServingSignerName,
		Usages:   []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth},
		Username: "system:node:" + node, Groups: []string{"system:nodes"},
	}}
}
