// Package kubernetes138_test compares the rules of Kubernetes' signers with those of kube-controller-manager 1.38, which
// knows ML-DSA keys. It is a module of its own, because it requires another version of Kubernetes than the manager. A control plane of
// version 1.38 makes it obsolete: then test/parity compares both managers.
package kubernetes138_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/mldsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/kubernetes/pkg/apis/certificates"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// usages are all that the API server permits, and one that it does not know.
var usages = []certificatesv1.KeyUsage{
	"signing", "digital signature", "content commitment", "key encipherment", "key agreement", "data encipherment", "cert sign", "crl sign",
	"encipher only", "decipher only", "any", "server auth", "client auth", "code signing", "email protection", "s/mime", "ipsec end system",
	"ipsec tunnel", "ipsec user", "timestamping", "ocsp signing", "microsoft sgc", "netscape sgc", "magic",
}

// signers have our check and that of kube-controller-manager.
var signers = map[string]struct {
	ours   func(*csr.Request) error
	theirs func(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error
}{
	"kubelet client": {csr.KubeletClientShape, func(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
		return certificates.ValidateKubeletClientCSR(req, set(usages))
	}},
	"kubelet serving": {csr.KubeletServingShape, func(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
		return certificates.ValidateKubeletServingCSR(req, set(usages))
	}},
	"client": {csr.APIServerClientShape, validAPIServerClientUsages},
	"custom": {(*csr.Request).CheckMLDSAUsages, validMLDSAUsages},
}

func set(usages []certificatesv1.KeyUsage) sets.String { //nolint:staticcheck // the type of the arguments of Kubernetes
	all := sets.NewString()
	for _, usage := range usages {
		all.Insert(string(usage))
	}
	return all
}

// validAPIServerClientUsages does what the function of that name in pkg/controller/certificates/signer/signer.go does, which is not
// exported. validMLDSAUsages is the last part of it.
func validAPIServerClientUsages(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	permitted := []certificatesv1.KeyUsage{"digital signature", "key encipherment", "client auth"}
	for _, usage := range usages {
		if !slices.Contains(permitted, usage) {
			return fmt.Errorf("invalid usage for client certificate: %s", usage)
		}
	}
	if !slices.Contains(usages, "client auth") {
		return fmt.Errorf("missing required usage for client certificate: client auth")
	}
	return validMLDSAUsages(req, usages)
}

func validMLDSAUsages(req *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	if req.PublicKeyAlgorithm != x509.MLDSA {
		return nil
	}
	if err := certificates.ValidateMLDSAKeyUsages(set(usages)); err != nil {
		return fmt.Errorf("validating usages for ml-dsa key: %w", err)
	}
	return nil
}

// contents are those of a kubelet's requests, and others, so that the order of the checks is compared too.
var contents = map[string]x509.CertificateRequest{
	"client":                {Subject: subject("system:node:a", "system:nodes")},
	"client, another name":  {Subject: subject("a", "system:nodes")},
	"serving":               {Subject: subject("system:node:a", "system:nodes"), DNSNames: []string{"a"}},
	"serving, another name": {Subject: subject("a", "system:nodes"), DNSNames: []string{"a"}},
	"another organization":  {Subject: subject("a", "a"), DNSNames: []string{"a"}, EmailAddresses: []string{"a@b"}},
}

func subject(name, organization string) pkix.Name {
	return pkix.Name{CommonName: name, Organization: []string{organization}}
}

// TestUsages compares the outcome of both, with an ML-DSA key and with another one.
func TestUsages(t *testing.T) {
	t.Parallel()
	keys := map[x509.PublicKeyAlgorithm]crypto.PublicKey{x509.MLDSA: new(mldsa.PublicKey), x509.ECDSA: new(ecdsa.PublicKey)}
	accepted := map[string]int{}
	for _, asked := range combinations() {
		for content, template := range contents {
			for algorithm, key := range keys {
				template.PublicKeyAlgorithm = algorithm
				req := &csr.Request{Usages: asked, Cert: ca.Request{
					PublicKey: key, Subject: template.Subject, DNSNames: template.DNSNames, EmailAddresses: template.EmailAddresses,
				}}
				for signer, check := range signers {
					ours, theirs := fmt.Sprint(check.ours(req)), fmt.Sprint(check.theirs(&template, asked))
					if ours != theirs {
						t.Fatalf("%s, %s, %s, usages %q: we say %q, kube-controller-manager says %q", signer, content, algorithm, asked, ours, theirs)
					}
					if theirs == "<nil>" {
						accepted[signer+", "+algorithm.String()]++
					}
				}
			}
		}
	}
	if t.Log(accepted); len(accepted) != len(signers)*len(keys) {
		t.Errorf("a signer accepts nothing: %v", accepted)
	}
}

// combinations returns each set of five usages that the rules name, alone, and with each other usage, and with each two.
func combinations() (all [][]certificatesv1.KeyUsage) {
	named := []certificatesv1.KeyUsage{"digital signature", "key encipherment", "client auth", "server auth", "cert sign"}
	for bits := range 1 << len(named) {
		var base []certificatesv1.KeyUsage
		for i, usage := range named {
			if bits&(1<<i) != 0 {
				base = append(base, usage)
			}
		}
		all = append(all, base)
		for i, first := range usages {
			all = append(all, append(slices.Clone(base), first))
			for _, second := range usages[i:] { // i: an old request may have a usage twice
				all = append(all, append(slices.Clone(base), first, second))
			}
		}
	}
	return all
}

// TestAllUsages checks that usages holds each usage of the API, so that none is left out.
func TestAllUsages(t *testing.T) {
	t.Parallel()
	_, _, unknown := csr.X509Usages(usages)
	if fmt.Sprint(unknown) != "[magic]" || len(set(usages)) != 24 {
		t.Errorf("%d usages, unknown %q", len(set(usages)), unknown)
	}
}
