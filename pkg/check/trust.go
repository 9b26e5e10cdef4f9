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

// CA signs client certificates that the API server is to accept.
type CA struct {
	// Signers are those that it signs for.
	Signers []string
	// Authority is nil when there is none to be had, because of Err.
	Authority *ca.Authority
	Err       error
}

func (c CA) subject() string {
	return fmt.Sprintf("the CA of %s", strings.Join(c.Signers, " and "))
}

// Trust checks CAs. Reader must not be a cache: it reads one ConfigMap by name.
type Trust struct {
	Reader  client.Reader
	Cluster *rest.Config
	Audit   *audit.Log // gets a record of each probe
}

// CAs says of each of authorities whether the API server trusts it. The proof is a certificate that it is shown; what
// it publishes as trusted is evidence beside that, and never decides: it is what all API servers together trust, and
// none of them needs to have written it lately.
func (t Trust) CAs(ctx context.Context, authorities []CA, now time.Time) []Result {
	trusted, err := t.Published(ctx)
	var results []Result
	for _, one := range authorities {
		results = append(results, t.one(ctx, one, trusted, err, now))
	}
	return results
}

func (t Trust) one(ctx context.Context, one CA, trusted []*x509.Certificate, listErr error, now time.Time) Result {
	result := Result{Check: CATrusted, Subject: one.subject(), Status: Unknown}
	if one.Authority == nil {
		result.Evidence = fmt.Sprintf("there is no CA to try: %v", one.Err)
		result.NextStep = "make it available, or ask as one who may read it"
		return result
	}
	published, in := publishedSentence(one.Authority, trusted, listErr)
	answer := t.prove(ctx, one.Authority, now)
	result.Evidence = answer.Evidence + "; " + published
	switch answer.Trust {
	case probe.Recognised:
		result.Status = OK
		if !in && listErr == nil {
			result.Evidence += ": the API server that was asked trusts it, see that all do"
		}
	case probe.Refused:
		result.Status = Failed
		result.NextStep = fmt.Sprintf("append this CA (key %s) to the --client-ca-file of every API server, or sign with one that is in it", one.Authority.KeyID())
	default:
		result.NextStep = askAgain
	}
	return result
}

// prove shows the API server a certificate of authority.
func (t Trust) prove(ctx context.Context, authority *ca.Authority, now time.Time) probe.Answer {
	shown, err := probe.Mint(ctx, authority, t.Audit, now)
	if err != nil {
		return probe.Answer{Evidence: fmt.Sprintf("no certificate to ask with: %v", err)}
	}
	return shown.Ask(ctx, t.Cluster)
}

// Published are the CAs that the API servers publish as trusted for client certificates.
func (t Trust) Published(ctx context.Context) ([]*x509.Certificate, error) {
	published := &corev1.ConfigMap{}
	if err := t.Reader.Get(ctx, client.ObjectKey{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName}, published); err != nil {
		return nil, err
	}
	return ca.ParseCertificates([]byte(published.Data[trust.ExtensionKey]))
}

// publishedSentence says whether authority is among trusted.
func publishedSentence(authority *ca.Authority, trusted []*x509.Certificate, err error) (sentence string, in bool) {
	where := fmt.Sprintf("%s of ConfigMap %s/%s", trust.ExtensionKey, trust.ExtensionNamespace, trust.ExtensionName)
	if err != nil {
		return where + " is " + ReadError("read it", err), false
	}
	signing := authority.Certificate()
	sent, err := ca.ParseCertificates(authority.AppendedPEM())
	if err != nil {
		return "the CA can't be compared with " + where, false
	}
	lacks := " lacks it"
	for _, one := range trusted {
		at := slices.IndexFunc(sent, func(below *x509.Certificate) bool { return below.CheckSignatureFrom(one) == nil })
		switch {
		case trust.SameCA(one, signing):
			return where + " has it", true
		case at >= 0 && one.MaxPathLen >= 0 && at >= one.MaxPathLen:
			lacks = " has its issuer, whose path length does not permit this CA below it"
		case at >= 0:
			return where + " has its issuer, and certificates come with what is between", true
		case signing.CheckSignatureFrom(one) == nil:
			lacks = " has only its issuer, and certificates come without intermediates"
		case bytes.Equal(one.RawSubject, signing.RawSubject):
			lacks = " has one of that name, with another key"
		}
	}
	return where + lacks, false
}
