package check

import (
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/probe"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/trust"
)

// accepted says whether the API server would take the certificate of obj. It can't be asked with it, since only the node
// has the key; what is asked with instead is another certificate of the same CA, if we hold that.
func (n Node) accepted(ctx context.Context, obj *certificatesv1.CertificateSigningRequest, now time.Time) Result {
	result := Result{Check: StepAccepted, Subject: obj.Name, Status: Failed}
	certs, err := ca.ParseCertificates(obj.Status.Certificate)
	if err != nil || len(certs) == 0 {
		result.Status, result.Evidence, result.NextStep = Unknown, "there is no certificate to look at", askAgain
		return result
	}
	leaf := certs[0]
	if wrong := n.wrong(obj, leaf, now); wrong != "" {
		result.Evidence = "the API server answers Unauthorized: " + wrong
		result.NextStep = "have the kubelet make a new request: move its client certificate away and restart it; see that the clocks agree"
		return result
	}
	for _, one := range n.CAs {
		if one.Authority != nil && one.Authority.Signed(leaf) {
			if answer := n.Trust.Prove(ctx, one.Authority, now); answer.Trust != probe.Unknown {
				return proven(result, one.Authority, answer)
			}
		}
	}
	return n.chained(ctx, result, leaf, certs[1:], now)
}

// wrong says what is wrong with leaf itself.
func (n Node) wrong(obj *certificatesv1.CertificateSigningRequest, leaf *x509.Certificate, now time.Time) string {
	user := csr.NodeUserPrefix + n.Name
	switch {
	case now.After(leaf.NotAfter):
		return "the certificate has run out at " + leaf.NotAfter.UTC().Format(time.RFC3339)
	case now.Before(leaf.NotBefore):
		return "the certificate is not valid before " + leaf.NotBefore.UTC().Format(time.RFC3339)
	case leaf.Subject.CommonName != user || !slices.Contains(leaf.Subject.Organization, csr.NodeGroup):
		return fmt.Sprintf("the certificate is for %q, not for %s in %s", ca.SubjectText(leaf.Subject, 256), user, csr.NodeGroup)
	case !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageClientAuth):
		return "the certificate is not for client authentication"
	case !n.ownKey(obj, leaf):
		return "the certificate is for another key than the one that was asked for"
	}
	return ""
}

func (n Node) ownKey(obj *certificatesv1.CertificateSigningRequest, leaf *x509.Certificate) bool {
	req, err := n.RequestLimits.Parse(obj)
	return err == nil && req.KeyIn(leaf)
}

func proven(result Result, authority *ca.Authority, answer probe.Answer) Result {
	result.Evidence = answer.Evidence
	if answer.Trust == probe.Recognised {
		result.Status = OK
		return result
	}
	result.NextStep = fmt.Sprintf("append its CA (key %s) to the --client-ca-file of every API server", authority.KeyID())
	return result
}

// chained looks for the issuer of leaf among what the API servers publish as trusted.
func (n Node) chained(ctx context.Context, result Result, leaf *x509.Certificate, intermediates []*x509.Certificate, now time.Time) Result {
	where := fmt.Sprintf("%s of ConfigMap %s/%s", trust.ExtensionKey, trust.ExtensionNamespace, trust.ExtensionName)
	trusted, err := n.Trust.Published(ctx)
	if err != nil {
		result.Status, result.Evidence = Unknown, "its CA is not at hand to try, and "+where+" is "+ReadError("read it", err)
		result.NextStep = "ask as one who may read that ConfigMap or the signing Secret"
		return result
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for _, one := range trusted {
		roots.AddCert(one)
	}
	for _, one := range intermediates {
		between.AddCert(one)
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		result.Evidence = fmt.Sprintf("the API server answers Unauthorized: issuer %q is not trusted by %s: %v", leaf.Issuer, where, err)
		result.NextStep = "append that CA to the --client-ca-file of every API server, or sign with one that is in it"
		return result
	}
	result.Status = OK
	result.Evidence = fmt.Sprintf("issuer %q is in %s; the API server was not asked, as that CA is not at hand", leaf.Issuer, where)
	return result
}
