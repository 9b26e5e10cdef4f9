package lab

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
)

// requestsKey is the prefix of requests in etcd, below /registry.
const requestsKey = "certificatesigningrequests/"

// Store writes obj to etcd in the encoding of the API server. It sets what the API server would set.
func (l *Lab) Store(ctx context.Context, key string, obj interface {
	runtime.Object
	metav1.Object
}) error {
	kinds, _, err := clientgoscheme.Scheme.ObjectKinds(obj)
	if err != nil {
		return err
	}
	obj.GetObjectKind().SetGroupVersionKind(kinds[0])
	if obj.GetUID() == "" {
		obj.SetUID(newUID())
	}
	var value bytes.Buffer
	if err := protobuf.NewSerializer(clientgoscheme.Scheme, clientgoscheme.Scheme).Encode(obj, &value); err != nil {
		return err
	}
	return l.Cluster.StoreValue(ctx, key+obj.GetName(), value.Bytes())
}

func newUID() types.UID { return uuid.NewUUID() }

// Seed writes requests directly to etcd: as pending ones of their users, created now.
func (l *Lab) Seed(ctx context.Context, requests []Request) error {
	return l.seed(ctx, len(requests), func(i int) *certificatesv1.CertificateSigningRequest {
		obj := requests[i].obj.DeepCopy()
		setRequester(obj, requests[i].as)
		return obj
	})
}

// SeedOld writes count requests directly to etcd. The mixture resembles an old cluster: half of the requests are
// issued, a quarter are pending for a signer that no subject serves, and the rest are denied or failed. Their
// retention begins now.
func (l *Lab) SeedOld(ctx context.Context, count int) error {
	template, err := l.issuedTemplate(time.Now())
	if err != nil {
		return err
	}
	prefix := l.prefix()
	return l.seed(ctx, count, func(i int) *certificatesv1.CertificateSigningRequest {
		obj := template.DeepCopy()
		obj.Name = fmt.Sprintf("%s-%d", prefix, i)
		switch i % 8 {
		case 0, 1, 2, 3: // issued
		case 4, 5:
			obj.Spec.SignerName, obj.Status = "example.com/foreign", certificatesv1.CertificateSigningRequestStatus{}
		case 6:
			obj.Status.Certificate, obj.Status.Conditions[0].Type = nil, certificatesv1.CertificateDenied
		default:
			obj.Status.Certificate = nil
			failed := obj.Status.Conditions[0]
			failed.Type = certificatesv1.CertificateFailed
			obj.Status.Conditions = append(obj.Status.Conditions, failed)
		}
		return obj
	})
}

// SeedDue writes count issued requests directly to etcd. The retention of request i ends at due(i).
func (l *Lab) SeedDue(ctx context.Context, count int, due func(i int) time.Time) ([]Request, error) {
	template, err := l.issuedTemplate(time.Now())
	if err != nil {
		return nil, err
	}
	prefix, requests := l.prefix(), make([]Request, count)
	for i := range requests {
		obj := template.DeepCopy()
		obj.Name = fmt.Sprintf("%s-%d", prefix, i)
		obj.CreationTimestamp = metav1.NewTime(due(i).Add(-time.Hour)) // the retention of approved requests
		obj.Status.Conditions[0].LastUpdateTime = obj.CreationTimestamp
		obj.Status.Conditions[0].LastTransitionTime = obj.CreationTimestamp
		requests[i] = Request{obj: obj}
	}
	return requests, l.seed(ctx, count, func(i int) *certificatesv1.CertificateSigningRequest { return requests[i].obj })
}

// seed writes requests. The watch on requests is off meanwhile, so that it does not receive them all.
func (l *Lab) seed(ctx context.Context, count int, obj func(i int) *certificatesv1.CertificateSigningRequest) error {
	l.tracker.stop()
	err := inParallel(ctx, count, func(ctx context.Context, i int) error {
		obj := obj(i)
		if obj.CreationTimestamp.IsZero() {
			obj.CreationTimestamp = metav1.Now()
		}
		return l.Store(ctx, requestsKey, obj)
	})
	if err != nil {
		return fmt.Errorf("store requests in etcd: %w", err)
	}
	l.tracker, err = startTracker(ctx, l.Admin)
	return err
}

// setRequester sets what the API server sets when u creates obj.
func setRequester(obj *certificatesv1.CertificateSigningRequest, u user) {
	if u.name == "" {
		u = user{joiners.User, []string{joiners.Groups}}
	}
	obj.Spec.Username, obj.Spec.Groups = u.name, append([]string{"system:authenticated"}, u.groups...)
}

// issuedTemplate returns a request that was issued at now, with a certificate of its own for a year.
func (l *Lab) issuedTemplate(now time.Time) (*certificatesv1.CertificateSigningRequest, error) {
	joins, err := l.Joins(1, 1)
	if err != nil {
		return nil, err
	}
	obj := joins[0].obj
	setRequester(obj, user{})
	obj.CreationTimestamp = metav1.NewTime(now)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: now.Add(-5 * time.Minute), NotAfter: now.AddDate(1, 0, 0),
		Subject: pkix.Name{CommonName: "system:node:old", Organization: []string{"system:nodes"}},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, key.Public(), key)
	if err != nil {
		return nil, err
	}
	obj.Status = certificatesv1.CertificateSigningRequestStatus{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Conditions: []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved",
			Message:        "Auto approving kubelet client certificate after SubjectAccessReview.",
			LastUpdateTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
		}},
	}
	return obj, nil
}
