package signer

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// TestDefects signs approved requests that other signers are known to handle wrongly. The numbers are those of the
// approver's list of defects.
func TestDefects(t *testing.T) {
	t.Parallel()
	forged := func(obj *request) {
		block, _ := pem.Decode(obj.Spec.Request)
		block.Bytes = bytes.Replace(block.Bytes, []byte("system:node:a"), []byte("system:node:b"), 1)
		obj.Spec.Request = pem.EncodeToMemory(block)
	}
	for name, test := range map[string]struct {
		change func(*request)
		want   string
	}{
		"12 an approved request with another organization": {template(t, func(r *x509.CertificateRequest) { r.Subject.Organization = []string{"system:nodes", "joiners"} }), "Failed SignerValidationFailure"},
		"12 a request with a forged signature":             {forged, "Failed Malformed"},
		"14 an ECDSA key":                                  {usages("client auth", "digital signature"), "Issued"},
		"16 an unconfigured signer":                        {signerName("example.com/kubelet-serving"), "Untouched"},
		"32 an unknown usage":                              {usages("digital signature", "client auth", "magic"), "Failed SignerValidationFailure"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, got := outcome(t, object(t, test.change)); got != test.want {
				t.Errorf("%s, want %s", got, test.want)
			}
		})
	}
}

// Defects 12 and 22: no certificate outlives its CA, so its chain is valid to the end. The organization comes from the
// payload, not from the requester's groups.
func TestDefect22ACertificateOutlivesItsCA(t *testing.T) {
	t.Parallel()
	for _, lifetime := range []time.Duration{time.Minute, time.Hour, 9 * time.Hour, 30 * 24 * time.Hour, 20 * 365 * 24 * time.Hour} {
		p := newParts(t, object(t, func(obj *request) { obj.Spec.Groups = []string{"system:bootstrappers", "system:masters"} }))
		root := p.load(t, lifetime)
		if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
			t.Fatalf("%s: %d writes, error %v", lifetime, len(p.written), err)
		}
		certs, err := ca.ParseCertificates(p.written[0].Status.Certificate)
		if err != nil || len(certs) != 1 { // defect 23: the certificate must be a single PEM block
			t.Fatalf("%d certificates, error %v", len(certs), err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(root.cert)
		for _, at := range []time.Time{now, certs[0].NotAfter} {
			if _, err := certs[0].Verify(x509.VerifyOptions{Roots: roots, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
				t.Errorf("%s, at %s: %v", lifetime, at, err)
			}
		}
		if diff := cmp.Diff([]string{"system:nodes"}, certs[0].Subject.Organization); diff != "" {
			t.Errorf("organization (-want +got):\n%s", diff)
		}
	}
}

// Defect 24: labels and annotations of a request have no effect, and five workers do not affect each other.
func TestDefect24TheRequesterChooses(t *testing.T) {
	t.Parallel()
	shared := newParts(t, object(t))
	shared.load(t, day)
	var workers sync.WaitGroup
	for worker := range 5 {
		node := string(rune('a' + worker))
		obj := object(t, template(t, func(r *x509.CertificateRequest) { r.Subject.CommonName = "system:node:" + node }))
		obj.Name = "csr-" + node
		obj.Annotations = map[string]string{"ca": "another", "profile": "root", "signer": "example.com/custom", "expiration": "87600h"}
		obj.Labels = obj.Annotations
		p := newParts(t, obj)
		p.reconciler.Signers = shared.reconciler.Signers
		workers.Go(func() {
			for range 20 {
				if _, err := p.reconcile(t); err != nil {
					t.Error(err)
				}
			}
			if len(p.written) == 0 {
				t.Errorf("node %s has no certificate", node)
			}
			for _, written := range p.written {
				certs, err := ca.ParseCertificates(written.Status.Certificate)
				if err != nil || len(certs) != 1 || certs[0].Subject.CommonName != "system:node:"+node || certs[0].Issuer.CommonName != "CA" || certs[0].NotAfter.After(now.Add(24*time.Hour)) {
					t.Errorf("node %s: %+v, error %v", node, certs, err)
				}
			}
		})
	}
	workers.Wait()
}

// signers numbers the signers of partsOf.
var signers atomic.Int64

// partsOf returns parts with an approved request for a new signer, and the signer's name. So neither another test nor
// an earlier run of the same test has changed the signer's counters.
func partsOf(t *testing.T) (*parts, string) {
	t.Helper()
	signer := fmt.Sprintf("example.com/counted-%d", signers.Add(1))
	p := newParts(t, object(t, signerName(signer), template(t, func(r *x509.CertificateRequest) { r.Subject = pkix.Name{CommonName: "a"} })))
	p.reconciler.Signers[signer] = Signer{Profile: profile(t, ca.ProfileConfig{}), Usages: p.served.Spec.Usages, KeyPair: p.pair}
	return p, signer
}

// countOf returns the value of a counter.
func countOf(t *testing.T, counter prometheus.Counter) float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(counter)
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d counters: %v", len(families), err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}

// Defect 27: no failure is reported as a success, neither by an Event nor by a metric.
func TestDefect27AFaultIsToldAsSuccess(t *testing.T) {
	t.Parallel()
	p, signer := partsOf(t)
	p.load(t, time.Hour) // a success would report the short lifetime
	successes := func() []float64 {
		return []float64{
			countOf(t, outcomesTotal.WithLabelValues(signer, "Issued", "")),
			countOf(t, lifetimeCutTotal.WithLabelValues(signer)),
		}
	}
	p.writeFault = errors.New("no answer")
	p.served.Status.Certificate = nil
	if _, err := p.reconcile(t); err == nil {
		t.Error("no error")
	}
	if told, counted := taken(p.recorder), successes(); len(told) > 0 || counted[0] != 0 || counted[1] != 0 {
		t.Errorf("told %q, counted %v", told, counted)
	}
	p.writeFault = nil
	if _, err := p.reconcile(t); err != nil {
		t.Fatal(err)
	}
	if told, counted := taken(p.recorder), successes(); len(told) != 1 || counted[0] != 1 || counted[1] != 1 {
		t.Errorf("told %q, counted %v", told, counted)
	}
}

// Defect 30: a bundle with several CAs is read by its key. If a bundle cannot be used, the last good one stays.
func TestDefect30ABundleStopsSigning(t *testing.T) {
	t.Parallel()
	p := newParts(t, object(t))
	good, other := newRoot(t, 24*time.Hour), newRoot(t, 24*time.Hour)
	p.pair.Load(good.cert, good.key)
	want := state(p.pair, now)
	for name, bundle := range map[string][]byte{
		"another CA after": append(bytes.Clone(good.cert), other.cert...), "another CA before": append(bytes.Clone(other.cert), good.cert...),
		"two other CAs": append(bytes.Clone(other.cert), other.cert...), "nothing": nil,
	} {
		p.pair.Load(bundle, good.key)
		if got := state(p.pair, now); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
		p.written, p.served = nil, object(t, version(name))
		if _, err := p.reconcile(t); err != nil || len(p.written) != 1 {
			t.Errorf("%s: %d writes, error %v", name, len(p.written), err)
		}
	}
}
