package lab

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Creators is the number of clients that create requests at a time.
const Creators = 32

const kubeletSigner = certificatesv1.KubeAPIServerClientKubeletSignerName

// Request is a request to create, and the user who creates it. A request without a user is created with the bootstrap
// token.
type Request struct {
	obj *certificatesv1.CertificateSigningRequest
	as  user
	// byAccount is set if the ServiceAccount of SeedRule creates it.
	byAccount bool
}

// Joins returns requests of new nodes. They come from the given number of bootstrap identities; 1 stands for the
// bootstrap token.
func (l *Lab) Joins(count, identities int) ([]Request, error) {
	return l.kubelets(count, func(i int, _ string) user {
		if identities == 1 {
			return user{}
		}
		return user{fmt.Sprintf("system:bootstrap:%06d", i%identities), []string{joiners.Groups}}
	})
}

// Renewals returns requests of nodes for their next client certificates.
func (l *Lab) Renewals(count int) ([]Request, error) {
	return l.kubelets(count, func(_ int, node string) user { return nodeUser(node) })
}

func nodeUser(node string) user { return user{"system:node:" + node, []string{"system:nodes"}} }

// kubelets returns requests for kubelet client certificates. Each has a key of its own.
func (l *Lab) kubelets(count int, of func(i int, node string) user) ([]Request, error) {
	requests, prefix := make([]Request, count), l.prefix()
	for i := range requests {
		node := fmt.Sprintf("%s-%d", prefix, i)
		payload, err := newPayload(node, nil)
		if err != nil {
			return nil, err
		}
		requests[i] = newRequest(node, of(i, node), kubeletSigner, payload, certificatesv1.UsageClientAuth)
	}
	return requests, nil
}

// Serving returns requests of the first count nodes of SeedNodes for serving certificates.
func (l *Lab) Serving(count int) ([]Request, error) {
	requests, prefix := make([]Request, count), l.prefix()
	for i := range requests {
		node := nodeName(i)
		payload, err := newPayload(node, func(t *x509.CertificateRequest) { t.IPAddresses = []net.IP{nodeAddress(i)} })
		if err != nil {
			return nil, err
		}
		requests[i] = newRequest(fmt.Sprintf("%s-%d", prefix, i), nodeUser(node),
			certificatesv1.KubeletServingSignerName, payload, certificatesv1.UsageServerAuth)
	}
	return requests, nil
}

// Neighbour is a user who leaves requests pending.
type Neighbour struct {
	// Signer is the signer of the requests.
	Signer string
	// PayloadBytes is the approximate size of each request; 0 is a usual request.
	PayloadBytes int
}

// Pending returns count requests of n. All have the same payload. The user may not get what they ask for: no
// controller may approve them.
func (l *Lab) Pending(count int, n Neighbour) ([]Request, error) {
	padding := make([]byte, n.PayloadBytes*3/4) // PEM makes four characters of three bytes
	payload, err := newPayload("hostile", func(t *x509.CertificateRequest) {
		if len(padding) > 0 {
			t.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}, Value: padding}}
		}
	})
	if err != nil {
		return nil, err
	}
	requests, prefix, by := make([]Request, count), l.prefix(), user{"hostile", []string{hostileGroup}}
	for i := range requests {
		name := fmt.Sprintf("%s-%d", prefix, i)
		requests[i] = newRequest(name, by, n.Signer, payload, certificatesv1.UsageClientAuth)
	}
	return requests, nil
}

func newRequest(name string, by user, signer string, payload []byte, purpose certificatesv1.KeyUsage) Request {
	return Request{as: by, obj: &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: payload, SignerName: signer,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, purpose},
		},
	}}
}

// newPayload returns the payload of a node's request, with a new key.
func newPayload(node string, mod func(*x509.CertificateRequest)) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + node, Organization: []string{"system:nodes"}},
	}
	if mod != nil {
		mod(&template)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), nil
}

// foreignPayload returns a payload for requests of signers that no subject serves.
var foreignPayload = sync.OnceValue(func() []byte {
	payload, err := newPayload("foreign", nil)
	if err != nil {
		panic(err)
	}
	return payload
})

func names(requests []Request) []string {
	all := make([]string, len(requests))
	for i, request := range requests {
		all[i] = request.obj.Name
	}
	return all
}

func (l *Lab) create(ctx context.Context, request Request) error {
	client := l.joiner
	if request.byAccount {
		client = l.account
	}
	if request.as.name != "" {
		client, ctx = l.users, as(ctx, request.as)
	}
	_, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx, request.obj, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create request: %w", err)
	}
	return nil
}

// Create creates requests as fast as Creators clients can.
func (l *Lab) Create(ctx context.Context, requests []Request) error {
	return inParallel(ctx, len(requests), func(ctx context.Context, i int) error {
		return l.create(ctx, requests[i])
	})
}

// Trickle creates requests at rate, in requests/s, and waits for the certificates. It returns the time from just before
// the creation of each request to its certificate.
func (l *Lab) Trickle(ctx context.Context, requests []Request, rate int) ([]time.Duration, error) {
	begun, errs := make([]time.Time, len(requests)), make([]error, len(requests))
	var done sync.WaitGroup
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	for i, request := range requests {
		<-ticker.C
		done.Go(func() {
			begun[i] = time.Now()
			errs[i] = l.create(ctx, request)
		})
	}
	done.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	issued, err := l.Issued(ctx, requests)
	if err != nil {
		return nil, err
	}
	took := make([]time.Duration, len(requests))
	for i, request := range requests {
		took[i] = issued[request.obj.Name].Sub(begun[i])
	}
	return took, nil
}

// Issued waits until all requests have certificates, and returns when the watch showed each certificate.
func (l *Lab) Issued(ctx context.Context, requests []Request) (map[string]time.Time, error) {
	return l.wait(ctx, issued, names(requests))
}

// Deleted waits until all requests are deleted, and returns when the watch showed each deletion.
func (l *Lab) Deleted(ctx context.Context, requests []Request) (map[string]time.Time, error) {
	return l.wait(ctx, deleted, names(requests))
}

// Delete deletes requests from begin on, at a rate per second, until all are deleted or stop is called. stop returns the
// errors.
func (l *Lab) Delete(ctx context.Context, requests []Request, begin time.Time, rate int) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var calls sync.WaitGroup
	var mu sync.Mutex
	var failed error
	calls.Go(func() {
		select {
		case <-time.After(time.Until(begin)):
		case <-ctx.Done():
			return
		}
		ticker := time.NewTicker(time.Second / time.Duration(rate))
		defer ticker.Stop()
		for _, request := range requests {
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
			calls.Go(func() {
				err := l.Admin.CertificatesV1().CertificateSigningRequests().Delete(ctx, request.Name(), metav1.DeleteOptions{})
				if err != nil && ctx.Err() == nil {
					mu.Lock()
					failed = fmt.Errorf("delete request: %w", err)
					mu.Unlock()
				}
			})
		}
	})
	return func() error {
		cancel()
		calls.Wait()
		return failed
	}
}

// inParallel calls do for each number below count, with as many workers as Creators. It stops at the first error.
func inParallel(ctx context.Context, count int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan int)
	var done sync.WaitGroup
	for range Creators {
		done.Go(func() {
			for i := range queue {
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for i := 0; i < count && ctx.Err() == nil; i++ {
		select {
		case queue <- i:
		case <-ctx.Done():
		}
	}
	close(queue)
	done.Wait()
	return context.Cause(ctx)
}

// Name returns the name of the request.
func (r Request) Name() string { return r.obj.Name }

// DeletedCount returns how many requests the watch has shown as deleted since the last Clear.
func (l *Lab) DeletedCount() int { return l.tracker.count(deleted) }
