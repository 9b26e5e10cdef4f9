package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// newRequests makes count requests for kubelet client certificates. Each has its own key, and a name that starts with
// prefix.
func newRequests(prefix string, count int) ([]*certificatesv1.CertificateSigningRequest, error) {
	requests := make([]*certificatesv1.CertificateSigningRequest, count)
	for i := range requests {
		name := fmt.Sprintf("%s-%d", prefix, i)
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		payload, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
			Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
		}, key)
		if err != nil {
			return nil, err
		}
		requests[i] = &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: payload}),
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
				Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			},
		}
	}
	return requests, nil
}

// createAll creates requests with creators concurrent clients.
func createAll(ctx context.Context, node kubernetes.Interface, requests []*certificatesv1.CertificateSigningRequest, creators int) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan *certificatesv1.CertificateSigningRequest, len(requests))
	for _, request := range requests {
		queue <- request
	}
	close(queue)
	var done sync.WaitGroup
	for range creators {
		done.Go(func() {
			for request := range queue {
				if _, err := node.CertificatesV1().CertificateSigningRequests().Create(ctx, request, metav1.CreateOptions{}); err != nil {
					cancel(fmt.Errorf("create request: %w", err))
					return
				}
			}
		})
	}
	done.Wait()
	return context.Cause(ctx)
}
