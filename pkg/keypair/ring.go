package keypair

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// The keys of a Secret of type kubernetes.io/tls whose CA is rotated, in addition to tls.crt and tls.key.
const (
	signingCert, signingKey     = "signing.crt", "signing.key"
	candidateCert, candidateKey = "candidate.crt", "candidate.key"
	retiringCert, retiringKey   = "retiring.crt", "retiring.key"
	permitKey                   = "authority.json"
)

// rootsKey may hold the CAs in which the chain of tls.crt ends. The owner of a CA may have stored them there.
const rootsKey = "ca.crt"

// Finalizer protects a CA that was made in the cluster, because its key exists nowhere else. It blocks the deletion
// of the Secret and of its namespace. Only an administrator removes it.
const Finalizer = "csr-controller-manager.io/only-copy-of-a-ca-key"

// Pair is a CA in PEM: a key, and certificates. One of the certificates belongs to the key.
type Pair struct{ Cert, Key []byte }

// Empty reports whether there is no pair.
func (p Pair) Empty() bool { return len(p.Cert) == 0 && len(p.Key) == 0 }

// Equal reports whether p and other hold the same bytes.
func (p Pair) Equal(other Pair) bool {
	return bytes.Equal(p.Cert, other.Cert) && bytes.Equal(p.Key, other.Key)
}

// Load returns p as an Authority, see ca.Load.
func (p Pair) Load() (*ca.Authority, error) { return ca.Load(p.Cert, p.Key, nil) }

// under returns p with the certificates of roots, the content of ca.crt, that continue its chain. They are then
// stored with the pair. If the chain does not end in roots, they belong to an earlier CA, and under returns p
// unchanged.
func (p Pair) under(roots []byte) Pair {
	authority, err := ca.Load(p.Cert, p.Key, roots)
	switch roots = bytes.TrimSpace(roots); {
	case len(roots) == 0, errors.Is(err, ca.ErrNoChain):
		return p
	case err != nil || authority.Unread(): // all of it comes along, so that what is wrong with it is seen
		if !bytes.Contains(p.Cert, roots) {
			p.Cert = slices.Concat(bytes.TrimRight(p.Cert, "\n"), []byte("\n"), roots, []byte("\n"))
		}
		return p
	}
	certs, _ := ca.ParseCertificates(p.Cert) // Load has read both
	above, _ := ca.ParseCertificates(roots)
	for _, cert := range above {
		// A second certificate for the signing key could be mistaken for the signing certificate.
		if bytes.Equal(cert.RawSubjectPublicKeyInfo, authority.Certificate().RawSubjectPublicKeyInfo) ||
			slices.ContainsFunc(certs, cert.Equal) {
			continue
		}
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
		p.Cert = slices.Concat(bytes.TrimRight(p.Cert, "\n"), []byte("\n"), block)
	}
	return p
}

// Permit limits the use of the signing pair. The zero value permits nothing.
type Permit struct {
	// Authority is the name of the SigningAuthority.
	Authority string `json:"authority"`
	// KeyID is the key ID of the pair that may sign. Empty, as in a Secret of an earlier version, means any pair.
	KeyID string `json:"keyID,omitempty"`
	// Signers are the signer names whose verifiers are proven to trust the signing pair.
	Signers []string `json:"signers"`
	// LifetimeCap, if not zero, is the maximum lifetime of new certificates, whatever their profile says.
	LifetimeCap time.Duration `json:"lifetimeCap,omitempty"`
}

// Equal reports whether p and other permit the same.
func (p Permit) Equal(other Permit) bool {
	return p.Authority == other.Authority && p.KeyID == other.KeyID && p.LifetimeCap == other.LifetimeCap && slices.Equal(p.Signers, other.Signers)
}

// Ring is the content of a Secret whose signing CA is rotated: the signing pair, the candidate and the retiring pair.
// The rotation writes it and the signer reads it. It is one object, so that neither sees a partial change.
type Ring struct {
	// TLS is the pair for readers of any Secret of that type, and for an owner who supplies a CA. Outside of a
	// rotation it is the signing pair. Any other pair there is the owner's request to rotate to it.
	TLS Pair
	// Signing is the pair that signs. Its verifiers trust it.
	Signing Pair
	// Candidate is the pair that signs once its verifiers trust it.
	Candidate Pair
	// Retiring is the pair that signed before. It must be trusted until all its certificates have expired.
	Retiring Pair
	// Permit applies to Signing.
	Permit Permit
}

// ParseRing parses the data of a Secret. Missing pairs stay empty. TLS contains the certificates of ca.crt that its
// chain needs.
func ParseRing(data map[string][]byte) (Ring, error) {
	ring := Ring{
		TLS:       Pair{data[corev1.TLSCertKey], data[corev1.TLSPrivateKeyKey]}.under(data[rootsKey]),
		Signing:   Pair{data[signingCert], data[signingKey]},
		Candidate: Pair{data[candidateCert], data[candidateKey]},
		Retiring:  Pair{data[retiringCert], data[retiringKey]},
	}
	if text := data[permitKey]; len(text) > 0 {
		if err := json.Unmarshal(text, &ring.Permit); err != nil {
			return Ring{}, fmt.Errorf("read %s: %w", permitKey, err)
		}
	}
	return ring, nil
}

// WriteTo writes r to data, and keeps foreign keys. It removes a ca.crt in which the chain of TLS does not end,
// because a reader without a guard would refuse the pair, or the certificate from before a renewal, with which it would sign.
func (r Ring) WriteTo(data map[string][]byte) error {
	permit, err := json.Marshal(r.Permit)
	if err != nil {
		return fmt.Errorf("write %s: %w", permitKey, err)
	}
	if r.Permit.Authority == "" {
		permit = nil
	}
	for key, value := range map[string][]byte{
		signingCert: r.Signing.Cert, signingKey: r.Signing.Key,
		candidateCert: r.Candidate.Cert, candidateKey: r.Candidate.Key,
		retiringCert: r.Retiring.Cert, retiringKey: r.Retiring.Key,
		permitKey: permit,
	} {
		if len(value) == 0 {
			delete(data, key)
		} else {
			data[key] = value
		}
	}
	// A Secret of this type must have both keys. They may be empty, but not null.
	data[corev1.TLSCertKey] = append([]byte{}, r.TLS.Cert...)
	data[corev1.TLSPrivateKeyKey] = append([]byte{}, r.TLS.Key...)
	if roots := data[rootsKey]; len(roots) > 0 {
		anchored, err := ca.Load(r.TLS.Cert, r.TLS.Key, roots)
		alone, _ := r.TLS.Load()
		renewed := err == nil && alone != nil && alone.Certificate().NotAfter.After(anchored.Certificate().NotAfter)
		if errors.Is(err, ca.ErrNoChain) || renewed {
			delete(data, rootsKey)
		}
	}
	return nil
}
