package check

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// CA signs client certificates that the API server must accept.
type CA struct {
	// Signers are the names of the signers that use the CA.
	Signers []string
	// Authority is nil if it can't be read, because of Err.
	Authority *ca.Authority
	Err       error
	// Certificate is the published certificate of a CA whose key can't be read, or nil. Sent holds the CA certificates
	// that follow each certificate that the CA issues.
	Certificate *x509.Certificate
	Sent        []*x509.Certificate
}

// Trust checks CAs. Reader must not be a cache: it reads one ConfigMap by name.
type Trust struct {
	Reader  client.Reader
	Cluster *rest.Config
	Audit   *audit.Log // gets a record of each probe
}

// published names where API servers publish the CAs that they trust for clients.
const published = trust.ExtensionKey + " of ConfigMap " + trust.ExtensionNamespace + "/" + trust.ExtensionName

// CAs reports whether the API server trusts each of cas. The proof is a certificate that is shown to it. The CAs that
// it publishes as trusted are further evidence, and never decide if there is a proof: all API servers write them to one
// ConfigMap, and an entry may be old. Without the key of a CA, a published certificate is the only evidence.
func (t Trust) CAs(ctx context.Context, cas []CA, now time.Time) []Result {
	trusted, err := t.Published(ctx)
	var results []Result
	for _, ca := range cas {
		results = append(results, t.check(ctx, ca, trusted, err, now))
	}
	return results
}

func (t Trust) check(ctx context.Context, c CA, trusted []*x509.Certificate, listErr error, now time.Time) Result {
	subject := "the CA of " + strings.Join(c.Signers, " and ")
	result := Result{Check: CATrusted, Subject: subject, Status: Unknown}
	if c.Authority == nil && c.Certificate != nil {
		return c.withoutKey(result, trusted, listErr)
	}
	if c.Authority == nil {
		result.Evidence = fmt.Sprintf("there is no CA to try: %v", c.Err)
		result.NextStep = "do what the evidence says, or run the command as a user who may read the CA"
		return result
	}
	sentence, in := authoritySentence(c.Authority, trusted, listErr)
	answer := t.prove(ctx, c.Authority, now)
	result.Evidence = answer.Evidence + "; " + sentence
	switch answer.Trust {
	case probe.Recognised:
		result.Status = OK
		if !in && listErr == nil {
			result.Evidence += ": the API server that was asked trusts it; check that all of them do"
		}
	case probe.Refused:
		result.Status = Failed
		result.NextStep = fmt.Sprintf("append this CA (key %s) to the --client-ca-file of every API server, or sign with "+
			"one that is in it", c.Authority.KeyID())
	default:
		result.NextStep = askAgain
	}
	return result
}

// prove issues a certificate by authority and shows it to the API server.
func (t Trust) prove(ctx context.Context, authority *ca.Authority, now time.Time) probe.Answer {
	shown, err := probe.Mint(ctx, authority, t.Audit, now)
	if err != nil {
		return probe.Answer{Evidence: fmt.Sprintf("no certificate to present: %v", err)}
	}
	return shown.Ask(ctx, t.Cluster)
}

// Published returns the CAs that the API servers publish as trusted for client certificates.
func (t Trust) Published(ctx context.Context) ([]*x509.Certificate, error) {
	obj := &corev1.ConfigMap{}
	key := client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}
	if err := t.Reader.Get(ctx, key, obj); err != nil {
		return nil, err
	}
	return ca.ParseCertificates([]byte(obj.Data[trust.ExtensionKey]))
}

// withoutKey judges c by its certificate alone: no certificate can be issued and shown to an API server.
func (c CA) withoutKey(result Result, trusted []*x509.Certificate, listErr error) Result {
	sentence, in := publishedSentence(c.Certificate, c.Sent, trusted, listErr)
	result.Evidence = fmt.Sprintf("%s; no API server was asked, because the key can't be read: %v", sentence, c.Err)
	if in {
		result.Status = OK
		return result
	}
	result.NextStep = fmt.Sprintf("check that the --client-ca-file of every API server has this CA (key %s); to prove "+
		"it, run the command as a user who may read the key", ca.KeyID(c.Certificate.RawSubjectPublicKeyInfo))
	return result
}

func authoritySentence(authority *ca.Authority, trusted []*x509.Certificate, err error) (sentence string, in bool) {
	sent, parseErr := ca.ParseCertificates(authority.AppendedPEM())
	if err == nil && parseErr != nil {
		return "the CA can't be compared with " + published, false
	}
	return publishedSentence(authority.Certificate(), sent, trusted, err)
}

// publishedSentence reports whether trusted holds the CA signing, with a sentence about it. sent holds the CA
// certificates that follow each issued certificate. err says why trusted could not be read.
func publishedSentence(
	signing *x509.Certificate, sent, trusted []*x509.Certificate, err error,
) (sentence string, in bool) {
	if err != nil {
		return published + " is " + ReadError("read it", err), false
	}
	lacks := " lacks it"
	for _, root := range trusted {
		at := slices.IndexFunc(sent, func(below *x509.Certificate) bool { return below.CheckSignatureFrom(root) == nil })
		switch {
		case trust.SameCA(root, signing):
			return published + " has it", true
		case at >= 0 && root.MaxPathLen >= 0 && at >= root.MaxPathLen:
			lacks = " has its issuer, whose path length does not permit this CA below it"
		case at >= 0:
			return published + " has its issuer, and certificates come with what is between", true
		case signing.CheckSignatureFrom(root) == nil:
			lacks = " has only its issuer, and certificates come without intermediates"
		case bytes.Equal(root.RawSubject, signing.RawSubject):
			lacks = " has one of that name, with another key"
		}
	}
	return published + lacks, false
}
