package plugin

import (
	"crypto/sha256"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
)

// Facts is what the object of a request says. Its texts are those of the object, shortened. Other programs and people
// may have chosen them, so they are not safe for a terminal.
type Facts struct {
	Name   string    `json:"name"`
	State  csr.State `json:"state"`
	Signer string    `json:"signer"`
	// Node is the node that the request is for.
	Node      string    `json:"node,omitempty"`
	Created   time.Time `json:"created"`
	Requester string    `json:"requester"`
	Groups    []string  `json:"groups,omitempty"`
	// MadeWith holds the SHA-256 of the client certificate with which the request was made.
	MadeWith []string `json:"madeWith,omitempty"`
	Subject  string   `json:"subject,omitempty"`
	// Could says what a client with this subject could do, if it is one of the cluster's own.
	Could string `json:"could,omitempty"`
	// Names are the subject alternative names.
	Names []string `json:"names,omitempty"`
	// Organizations are those of the subject: the groups of the user.
	Organizations []string `json:"organizations,omitempty"`
	Usages        []string `json:"usages"`
	Key           string   `json:"key,omitempty"`
	// Lifetime is what the request asks for, or empty.
	Lifetime string `json:"lifetime,omitempty"`
	// Dropped is what the request asks for and no certificate holds.
	Dropped     []string                                            `json:"dropped,omitempty"`
	Conditions  []certificatesv1.CertificateSigningRequestCondition `json:"conditions,omitempty"`
	Certificate *certificate                                        `json:"certificate,omitempty"`
	// Refusal says why the signer would refuse the request, as far as the object shows it with the default limits.
	Refusal *finding `json:"refusal,omitempty"`
	// Judged is what the manager's rules say about a pending request of a kubelet, or why a block list stops a request.
	Judged *finding `json:"judged,omitempty"`

	obj *certificatesv1.CertificateSigningRequest
	req *csr.Request // nil if Refusal says why it can't be parsed
	// passes reports that the rules let the request pass.
	passes bool
}

// certificate is the certificate that was issued.
type certificate struct {
	SHA256   string    `json:"sha256"`
	Issuer   string    `json:"issuer"`
	NotAfter time.Time `json:"notAfter"`
}

// finding is a reason of docs/reference/reasons.md and a sentence.
type finding struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// findingOf returns what the manager would say about decision.
func findingOf(decision judge.Decision) *finding {
	return &finding{decision.Reason, csr.ShortenTo(decision.Message, maxMessage)}
}

// maxMessage bounds a message in bytes, as the note of an Event is bounded.
const maxMessage = 1024

// factsOf returns the facts of obj.
func factsOf(obj *certificatesv1.CertificateSigningRequest) *Facts {
	req, err := csr.Parse(obj)
	f := &Facts{
		Name: csr.ShortenTo(obj.Name, csr.MaxName), State: csr.StateOf(obj), Signer: csr.ShortenTo(obj.Spec.SignerName, 571),
		Created: obj.CreationTimestamp.UTC(), Requester: csr.Shorten(obj.Spec.Username),
		Groups: csr.ShortenAll(obj.Spec.Groups), Usages: slices.Compact(slices.Sorted(slices.Values(texts(obj.Spec.Usages)))), Conditions: obj.Status.Conditions,
		Refusal: refusalOf(req, err), obj: obj, req: req,
	}
	if seconds := obj.Spec.ExpirationSeconds; seconds != nil {
		f.Lifetime = (time.Duration(*seconds) * time.Second).String()
	}
	if req != nil {
		f.Node, f.Subject, f.Could = csr.Shorten(req.NodeName()), req.SubjectText(), powerOf(req)
		f.MadeWith, f.Dropped = csr.ShortenAll(req.Requester.Certificates()), csr.ShortenAll(req.Dropped)
		f.Key = "SHA-256 " + req.KeyFingerprint()
		cert := req.Cert // whoever approves the request must see each of its names, and each group
		for _, organization := range cert.Subject.Organization {
			f.Organizations = append(f.Organizations, csr.Shorten(organization))
		}
		for _, name := range slices.Concat(cert.DNSNames, cert.EmailAddresses, ca.Texts(cert.IPAddresses), ca.Texts(cert.URIs)) {
			f.Names = append(f.Names, csr.Shorten(name))
		}
	}
	if certs, err := ca.ParseCertificates(obj.Status.Certificate); err == nil && len(certs) > 0 {
		leaf := certs[0]
		f.Certificate = &certificate{fmt.Sprintf("%x", sha256.Sum256(leaf.Raw)), csr.Shorten(leaf.Issuer.String()), leaf.NotAfter.UTC()}
	}
	return f
}

func texts(usages []certificatesv1.KeyUsage) []string {
	texts := make([]string, len(usages))
	for i, each := range usages {
		texts[i] = string(each)
	}
	return csr.ShortenAll(texts)
}

// refusalOf returns why a signer with the default profile never signs the request, or nil. err says why req is nil. The
// rules of a custom signer, and what depends on its CA, only the manager knows.
func refusalOf(req *csr.Request, err error) *finding {
	refused := (*csr.Refused)(nil)
	switch {
	case errors.As(err, &refused):
		return &finding{refused.Reason, refused.Message}
	case err != nil:
		return &finding{"InternalError", csr.Fault(err)}
	}
	if violation := req.Check(ca.Profile{}.OrDefault()); violation != nil {
		return &finding{violation.Reason, csr.ShortenTo(violation.Message, maxMessage)}
	}
	return nil
}

// powers are the rights of users and groups of the cluster, the most dangerous first: by Kubernetes' default bindings
// (plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go), its node authorizer and kubeadm. The last ones have what
// else is bound to them.
var powers = []struct{ pattern, could string }{
	{"O=system:masters", "everything"},
	{"O=kubeadm:cluster-admins", "everything, if kubeadm made the cluster"},
	{"CN=system:kube-controller-manager", "read every Secret, make a token of every ServiceAccount"},
	{"CN=system:kube-scheduler", "assign and delete every Pod"},
	{"CN=system:serviceaccount:*", "what this ServiceAccount may do, even after its deletion"},
	{"CN=system:node:*", "what this node may do, such as read the Secrets of its Pods"},
	{"CN=system:*", boundPower}, {"CN=kubeadm:*", boundPower}, {"O=system:*", boundPower}, {"O=kubeadm:*", boundPower},
}

const boundPower = "what is bound to it"

// powerOf returns in one line what a client with the certificate could do by each user name and group of Kubernetes and
// kubeadm in its subject, or an empty text.
func powerOf(req *csr.Request) string {
	if !req.ForClients() {
		return ""
	}
	parts := []pkix.Name{{CommonName: req.Cert.Subject.CommonName}}
	for _, group := range req.Cert.Subject.Organization {
		parts = append(parts, pkix.Name{Organization: []string{group}})
	}
	var all []string
	for _, power := range powers {
		parts = slices.DeleteFunc(parts, func(part pkix.Name) bool {
			has := ca.MatchesSubject(power.pattern, part)
			if has {
				all = append(all, check.Word(ca.SubjectText(part, 80))+": "+power.could)
			}
			return has
		})
	}
	text := strings.Join(csr.ShortenAll(all), "; ")
	if text != "" && !csr.VerifiedByAPIServers(req.SignerName) {
		return "if API servers trust the signer's CA: " + text
	}
	return text
}

// facts writes f.
func (p *page) facts(f *Facts) {
	p.title("Request")
	p.row("signer", quoted(f.Signer)...)
	p.row("node", quoted(f.Node)...)
	p.row("created", p.moment(f.Created))
	p.row("requester", quoted(f.Requester)...)
	p.row("groups", quoted(f.Groups...)...)
	p.row("made with", quoted(f.MadeWith...)...)
	p.row("subject", quoted(f.Subject)...)
	if len(f.Organizations) > 1 { // which the subject may be too short for
		p.row("organizations", quoted(f.Organizations...)...)
	}
	if f.Could != "" {
		p.row("could do", f.Could)
	}
	p.row("names", quoted(f.Names...)...)
	p.row("usages", quoted(f.Usages...)...)
	p.row("key", f.Key)
	if f.Lifetime != "" {
		p.row("lifetime", f.Lifetime)
	}
	if len(f.Dropped) > 0 {
		p.row("dropped", append(quoted(f.Dropped...), "(requested, and no certificate will contain it)")...)
	}
	if f.Judged != nil {
		say := "do not let it pass"
		if f.passes {
			say = "let it pass"
		}
		p.row("rules", fmt.Sprintf("%s (%s): %s", say, f.Judged.Reason, f.Judged.Message))
	}
	if len(f.Conditions) > 0 {
		p.title("Conditions")
	}
	for _, each := range f.Conditions {
		p.row(csr.Shorten(string(each.Type)), strconv.Quote(csr.Shorten(each.Reason))+", "+p.age(csr.ConditionTime(f.obj, each.Type)),
			strconv.Quote(csr.ShortenTo(each.Message, maxMessage)))
	}
	if cert := f.Certificate; cert != nil {
		p.title("Certificate")
		p.row("SHA-256", quoted(cert.SHA256)...)
		p.row("issuer", quoted(cert.Issuer)...)
		p.row("valid until", p.moment(cert.NotAfter))
	}
}
