// Package probe finds out whether an API server accepts the client certificates of a CA, by showing it one. It decides
// nothing from errors: what could not be asked is Unknown.
package probe

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// SubjectPrefix begins the common name of every probe. Nothing may be granted to such a user.
const SubjectPrefix = "csr-controller-manager.io:trust-probe:"

// lifetime and ca.Backdate together are the ten minutes that a probe is valid at most.
const lifetime = 10*time.Minute - ca.Backdate

// Certificate is a client certificate for a subject of our own, without a group and without rights.
type Certificate struct {
	// Subject is its common name, which no other certificate has.
	Subject string
	// ID is how the API server names it in a user's extra, under credentialID.
	ID string
	// NotBefore is from when on it can be used, and NotAfter when it can't be any more.
	NotBefore, NotAfter time.Time

	certPEM, keyPEM []byte
}

// Mint issues a Certificate by authority, valid from ca.Backdate before now on, and writes it to log before it returns.
func Mint(ctx context.Context, authority *ca.Authority, log *audit.Log, now time.Time) (*Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key: %w", err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	random := make([]byte, 8) // a longer name would pass X.520's bound of 64 letters
	_, _ = rand.Read(random)  // never fails
	request := ca.Request{
		PublicKey:   key.Public(),
		Subject:     pkix.Name{CommonName: SubjectPrefix + hex.EncodeToString(random)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	profile, err := ca.NewProfile(ca.ProfileConfig{Lifetime: lifetime})
	if err != nil {
		return nil, err
	}
	issued, err := authority.Issue(profile, request, now.Truncate(time.Second)) // as a certificate has it
	if err != nil {
		return nil, fmt.Errorf("issue a trust probe: %w", err)
	}
	cert, err := record(ctx, authority, log, now, issued)
	if err != nil {
		return nil, err
	}
	cert.keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})
	return cert, nil
}

// record writes what was issued to log.
func record(ctx context.Context, authority *ca.Authority, log *audit.Log, now time.Time, issued *ca.Issued) (*Certificate, error) {
	block, _ := pem.Decode(issued.PEM)
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read trust probe: %w", err)
	}
	key := sha256.Sum256(leaf.RawSubjectPublicKeyInfo)
	log.Write(ctx, now, audit.TrustProbe, audit.Record{
		Subject:     leaf.Subject.String(),
		Usages:      []string{"digital signature", "client auth"},
		KeySHA256:   hex.EncodeToString(key[:]),
		Serial:      issued.Serial.Text(16),
		IssuerKeyID: authority.KeyID(),
		NotBefore:   &issued.NotBefore,
		NotAfter:    &issued.NotAfter,
	})
	fingerprint := sha256.Sum256(leaf.Raw)
	return &Certificate{
		Subject:   leaf.Subject.CommonName,
		ID:        "X509SHA256=" + hex.EncodeToString(fingerprint[:]),
		NotBefore: leaf.NotBefore,
		NotAfter:  leaf.NotAfter,
		certPEM:   issued.PEM,
	}, nil
}
