package ca

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"
)

// mostRelated bounds the certificates among which chains are searched. x509.Certificate.Verify gives up after 100
// signatures, and Load calls it for each of them.
const mostRelated = 20

// ErrNoChain is wrapped by errors of Load if verifiers accept no chain of the CA at any time.
var ErrNoChain = errors.New("no chain leads")

// path is a chain that x509.Certificate.Verify accepts at some time.
type path struct {
	certs        []*x509.Certificate // the signing certificate first, the root last
	begins, ends *x509.Certificate   // the certificate that becomes valid last, and the one that expires first
	selfSigned   bool                // reports whether the root is its own issuer
	rooted       bool                // reports whether the root is its own issuer or in ca.crt
	// The certificates again, for Verify.
	roots, intermediates *x509.CertPool
}

func newPath(certs []*x509.Certificate, anchored bool) path {
	root := len(certs) - 1
	own := selfSigned(certs[root])
	return path{
		certs:         certs,
		begins:        slices.MaxFunc(certs, func(a, b *x509.Certificate) int { return a.NotBefore.Compare(b.NotBefore) }),
		ends:          slices.MinFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }),
		selfSigned:    own,
		rooted:        own || anchored,
		roots:         poolOf(certs[root:]),
		intermediates: poolOf(certs[:root]),
	}
}

func poolOf(certs []*x509.Certificate) *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range certs {
		pool.AddCert(cert)
	}
	return pool
}

// verify returns why a verifier that trusts only the root of p refuses leaf with this chain at now, or nil. Verify
// accepts a chain for any of its KeyUsages, so each usage of leaf needs a call. An empty list would mean serverAuth.
func (p path) verify(leaf *x509.Certificate, now time.Time) error {
	usages := leaf.ExtKeyUsage
	if len(usages) == 0 {
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}
	for i := range usages {
		options := x509.VerifyOptions{Roots: p.roots, Intermediates: p.intermediates, CurrentTime: now, KeyUsages: usages[i : i+1]}
		if _, err := leaf.Verify(options); err != nil {
			return err
		}
	}
	return nil
}

// findPaths returns the chains of signing, certificates of key, that x509.Certificate.Verify accepts at some time, the
// preferred one first. They end in one of anchors. If there are none, they end in a self-signed certificate, or in one
// whose issuer is missing.
func findPaths(key crypto.Signer, signing, certs, anchors []*x509.Certificate) ([]path, error) {
	related := relatedTo(signing, slices.Concat(certs, anchors))
	if len(related) > mostRelated {
		return nil, fmt.Errorf("%d certificates have the name of %q or of its issuers, and at most %d are read: "+
			"remove those that no chain needs", len(related), signing[0].Subject, mostRelated)
	}
	roots, others := splitRoots(related, anchors)
	var found []path
	var why error
	for _, cert := range signing {
		leaf, err := probeLeaf(cert, key)
		if err != nil {
			return nil, err
		}
		for _, cert := range related { // a chain begins to be valid when one of its certificates does
			at := cert.NotBefore.Add(time.Nanosecond) // never zero, which would mean the local clock
			chains, _ := verify(leaf, validAt(at, roots), validAt(at, others), at)
			for _, chain := range chains {
				if !slices.ContainsFunc(found, func(known path) bool { return slices.Equal(known.certs, chain[1:]) }) {
					found = append(found, newPath(chain[1:], len(anchors) > 0))
				}
			}
		}
		_, err = verify(leaf, roots, others, newPath(related, false).begins.NotBefore)
		why = cmp.Or(why, err)
	}
	if len(found) == 0 {
		end := "its root"
		if len(anchors) > 0 {
			end, why = "a certificate of ca.crt", cmp.Or(missingIssuer(related), why)
		}
		return nil, fmt.Errorf("%w from %q to %s: %w", ErrNoChain, signing[0].Subject, end, why)
	}
	slices.SortStableFunc(found, preferred)
	return found, nil
}

// preferred orders paths: first those to a known root, of these the one that ends last, and then the shortest.
func preferred(a, b path) int {
	switch {
	case a.rooted == b.rooted:
		return cmp.Or(b.ends.NotAfter.Compare(a.ends.NotAfter), cmp.Compare(len(a.certs), len(b.certs)))
	case a.rooted:
		return -1
	default:
		return 1
	}
}

// splitRoots splits related into the certificates in which a chain may end and the others.
func splitRoots(related, anchors []*x509.Certificate) (roots, others []*x509.Certificate) {
	for _, cert := range related {
		isRoot := slices.ContainsFunc(anchors, cert.Equal)
		if len(anchors) == 0 {
			isRoot = selfSigned(cert) || !slices.ContainsFunc(related, func(issuer *x509.Certificate) bool {
				return issuer != cert && signedBy(cert, issuer)
			})
		}
		if isRoot {
			roots = append(roots, cert)
		} else {
			others = append(others, cert)
		}
	}
	return roots, others
}

// verify returns the chains of leaf from others to roots that a verifier accepts at that time for some usage.
func verify(leaf *x509.Certificate, roots, others []*x509.Certificate, at time.Time) ([][]*x509.Certificate, error) {
	return leaf.Verify(x509.VerifyOptions{
		Roots: poolOf(roots), Intermediates: poolOf(others), CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
}

// missingIssuer returns an error that names a certificate of related whose issuer is not in related, or nil.
func missingIssuer(related []*x509.Certificate) error {
	for _, cert := range related {
		named := func(issuer *x509.Certificate) bool { return bytes.Equal(issuer.RawSubject, cert.RawIssuer) }
		if !slices.ContainsFunc(related, named) {
			return fmt.Errorf("the issuer %q of %q is missing", cert.Issuer, cert.Subject)
		}
	}
	return nil
}

// validAt returns those of certs that are valid at that time. The others would use up Verify's bound on signatures.
func validAt(at time.Time, certs []*x509.Certificate) (valid []*x509.Certificate) {
	for _, cert := range certs {
		if !at.Before(cert.NotBefore) && !at.After(cert.NotAfter) {
			valid = append(valid, cert)
		}
	}
	return valid
}

// relatedTo returns signing and those of given that may be in a chain of it, by their names, each once.
func relatedTo(signing, given []*x509.Certificate) (related []*x509.Certificate) {
	for queue := signing; len(queue) > 0; queue = queue[1:] {
		if slices.ContainsFunc(related, queue[0].Equal) {
			continue
		}
		related = append(related, queue[0])
		for _, cert := range given {
			if bytes.Equal(cert.RawSubject, queue[0].RawIssuer) {
				queue = append(queue[:len(queue):len(queue)], cert)
			}
		}
	}
	return related
}

// probeLeaf returns a certificate that key signs as cert. It shows whether verifiers accept certificates of cert, and it
// never leaves this package: its own key is the key of the CA.
func probeLeaf(cert *x509.Certificate, key crypto.Signer) (*x509.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "chain search"}, BasicConstraintsValid: true,
		NotAfter: time.Date(9999, time.December, 31, 23, 59, 59, 0, time.UTC), // RFC 5280 section 4.1.2.5
	}
	der, err := x509.CreateCertificate(rand.Reader, template, cert, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign with the private key: %w", err)
	}
	return x509.ParseCertificate(der)
}

// signedBy reports whether issuer has the name of cert's issuer and has signed cert. A signature of an algorithm that
// crypto/x509 does not verify any more counts: Verify refuses the chain.
func signedBy(cert, issuer *x509.Certificate) bool {
	if !bytes.Equal(issuer.RawSubject, cert.RawIssuer) {
		return false
	}
	err := issuer.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature)
	return err == nil || errors.As(err, new(x509.InsecureAlgorithmError))
}

// selfSigned reports whether cert is its own issuer.
func selfSigned(cert *x509.Certificate) bool { return signedBy(cert, cert) }
