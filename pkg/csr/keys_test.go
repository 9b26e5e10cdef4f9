package csr_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"runtime"
	"syscall"
	"testing"
	"time"

	toolscache "k8s.io/client-go/tools/cache"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// BenchmarkKeys measures by the kind of a key, in processor time and not by the clock: check parses a request and verifies its signature,
// and sign makes a certificate with a CA that has such a key. It also reports the bytes of spec.request, of the certificate in PEM, and of
// the trust bundle of a rotation, which has two CAs; and the memory of one of 5,000 unfinished requests in the cache of an informer.
func BenchmarkKeys(b *testing.B) {
	const requests = 5000
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "csr-controller-manager:csr-signer:20261129"}, NotAfter: now,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: nodeRequest().Subject, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, kind := range []struct {
		name string
		key  func() (crypto.Signer, error)
	}{
		{"P-256", func() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }},
		{"RSA-3072", func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, 3072) }},
		{"ML-DSA-44", func() (crypto.Signer, error) { return mldsa.GenerateKey(mldsa.MLDSA44()) }},
		{"ML-DSA-65", func() (crypto.Signer, error) { return mldsa.GenerateKey(mldsa.MLDSA65()) }},
		{"ML-DSA-87", func() (crypto.Signer, error) { return mldsa.GenerateKey(mldsa.MLDSA87()) }},
	} {
		key := must(kind.key())
		certificate := func(template *x509.Certificate) []byte {
			return must(x509.CreateCertificate(rand.Reader, template, authority, key.Public(), key))
		}
		obj := object(withRequest(must(x509.CreateCertificateRequest(rand.Reader, nodeRequest(), key))))
		store, before := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), heap()
		for i := range requests {
			obj.Name = fmt.Sprintf("csr-%05d", i)
			decoded := &request{}
			if err := errors.Join(decoded.Unmarshal(must(obj.Marshal())), store.Add(must(csr.Trim{}.Transform(decoded)))); err != nil {
				b.Fatal(err)
			}
		}
		memory := (heap() - before) / requests
		runtime.KeepAlive(store)
		b.Run(kind.name+"/check", func(b *testing.B) {
			processorTime(b, func() {
				if err := must(csr.Parse(obj)).CheckSignature(); err != nil {
					b.Fatal(err)
				}
			})
			b.ReportMetric(float64(len(obj.Spec.Request)), "request-bytes")
			b.ReportMetric(float64(memory), "memory-bytes")
		})
		b.Run(kind.name+"/sign", func(b *testing.B) {
			processorTime(b, func() { _ = certificate(leaf) })
			b.ReportMetric(float64(len(block("CERTIFICATE", certificate(leaf)))), "certificate-bytes")
			b.ReportMetric(float64(2*len(block("CERTIFICATE", certificate(authority)))), "bundle-bytes")
		})
	}
}

// processorTime runs do in a loop, and reports the processor time of this process for each run.
func processorTime(b *testing.B, do func()) {
	b.Helper()
	used := func() int64 {
		var all syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &all); err != nil {
			b.Fatal(err)
		}
		return all.Utime.Nano() + all.Stime.Nano()
	}
	before := used()
	for b.Loop() {
		do()
	}
	b.ReportMetric(float64(used()-before)/float64(b.N)/float64(time.Microsecond), "processor-µs/op")
	b.ReportMetric(0, "ns/op")
}
