package ca

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"slices"
)

// Chain says which certificates Issue puts after the leaf.
type Chain string

// The chains. The zero value is Intermediates.
const (
	// Intermediates are the signing certificate and its issuers, as far as they are known, but never one that is
	// self-signed: those who verify have that one already (RFC 8446 section 4.4.2).
	Intermediates Chain = "Intermediates"
	// None is the leaf alone, as of kube-controller-manager.
	None Chain = "None"
	// WithRoot is Intermediates and then the self-signed one, which must be known.
	WithRoot Chain = "WithRoot"
)

// Chains are all of them, the default first.
func Chains() []Chain { return []Chain{Intermediates, None, WithRoot} }

// WithChain returns an Authority like a that issues chain. It fails when chain wants a root that Load was not given.
func (a *Authority) WithChain(chain Chain) (*Authority, error) {
	end := len(a.chain)
	last := a.chain[end-1]
	switch chain {
	case "", Intermediates:
		if selfSigned(last) {
			end--
		}
	case None:
		end = 0
	case WithRoot:
		if !selfSigned(last) {
			return nil, fmt.Errorf("the chain is to end with its root, but ends with %q, whose issuer %q is not given", last.Subject, last.Issuer)
		}
	default:
		return nil, fmt.Errorf("no such chain: %q", chain)
	}
	with := *a
	with.appended = nil
	for _, cert := range a.chain[:end] {
		with.appended = append(with.appended, encode(cert.Raw)...)
	}
	return &with, nil
}

// WithAllGiven returns an Authority like a that puts every certificate that Load was given after a leaf. A verifier that
// trusts any of them then finds its way, whichever chain is configured: the holder of a leaf can append them too.
func (a *Authority) WithAllGiven() *Authority {
	with := *a
	with.appended = a.given
	return &with
}

// path is a certificate on the way up from the signing one, with what is below it.
type path struct {
	cert  *x509.Certificate
	below *path
	depth int // certificates below
}

// chainOf returns the shortest way from cert up to one of anchors, over certs, each verified to have issued the one
// before. Without anchors it is the way to a self-signed one, or else as far as it goes. What has no place in it is passed
// over, but an issuer by name that has not signed is an error, unless another one has. Validity in time is not looked at.
func chainOf(cert *x509.Certificate, certs, anchors []*x509.Certificate) ([]*x509.Certificate, error) {
	known := slices.Concat(certs, anchors)
	seen := []*x509.Certificate{cert}
	next := []*path{{cert: cert}}
	for i := 0; i < len(next); i++ { // breadth first, so that the first way is a shortest
		at := next[i]
		if at.ends(anchors) {
			return at.certs(), nil
		}
		issuers, err := at.issuers(known)
		if err != nil {
			return nil, err
		}
		for _, issuer := range issuers {
			if !slices.ContainsFunc(seen, issuer.Equal) {
				seen, next = append(seen, issuer), append(next, &path{issuer, at, at.depth + 1})
			}
		}
	}
	last := next[len(next)-1]
	if len(anchors) > 0 {
		return nil, fmt.Errorf("the chain does not end in a certificate of ca.crt: the issuer %q of %q is not there", last.cert.Issuer, last.cert.Subject)
	}
	return last.certs(), nil
}

// ends says whether p.cert is one of anchors, by name and key, or without anchors whether it can have nothing above it.
func (p *path) ends(anchors []*x509.Certificate) bool {
	if len(anchors) == 0 {
		return selfSigned(p.cert)
	}
	return slices.ContainsFunc(anchors, func(anchor *x509.Certificate) bool {
		return bytes.Equal(anchor.RawSubject, p.cert.RawSubject) && bytes.Equal(anchor.RawSubjectPublicKeyInfo, p.cert.RawSubjectPublicKeyInfo)
	})
}

// issuers are those of known that have issued p.cert. If there are only such as have not, but whose name is right, that is
// an error.
func (p *path) issuers(known []*x509.Certificate) ([]*x509.Certificate, error) {
	if selfSigned(p.cert) {
		return nil, nil
	}
	var found []*x509.Certificate
	var wrong error
	for _, issuer := range known {
		if !bytes.Equal(issuer.RawSubject, p.cert.RawIssuer) || issuer.Equal(p.cert) {
			continue
		}
		if err := p.issuedBy(issuer); err != nil {
			wrong = err
		} else {
			found = append(found, issuer)
		}
	}
	if len(found) > 0 {
		wrong = nil
	}
	return found, wrong
}

// issuedBy says why issuer, whose name is right, can't be above p.
func (p *path) issuedBy(issuer *x509.Certificate) error {
	if err := p.cert.CheckSignatureFrom(issuer); err != nil {
		return fmt.Errorf("certificate %q is not signed by the given %q: %w", p.cert.Subject, issuer.Subject, err)
	}
	if issuer.MaxPathLen >= 0 && p.depth >= issuer.MaxPathLen {
		return fmt.Errorf("certificate %q permits %d certificates between itself and a leaf, and there are %d (path length, RFC 5280 section 4.2.1.9)",
			issuer.Subject, issuer.MaxPathLen, p.depth+1)
	}
	return nil
}

// certs are the certificates from the bottom to p.
func (p *path) certs() []*x509.Certificate {
	var certs []*x509.Certificate
	for ; p != nil; p = p.below {
		certs = append(certs, p.cert)
	}
	slices.Reverse(certs)
	return certs
}

// selfSigned says whether nothing can be above cert.
func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawSubject, cert.RawIssuer) &&
		cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
}
