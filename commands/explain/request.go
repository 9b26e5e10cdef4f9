package explain

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// asked writes the content of the request.
func asked(p *page, f *Findings) {
	record := audit.Of(f.obj, f.Request)
	p.title("Request")
	p.row("signer", quote(record.Signer))
	if record.Requester.Username == "" {
		p.row("requester", "unknown: the API server writes it into the request when it stores the request")
	} else {
		p.row("requester", quote(record.Requester.Username))
		p.row("groups", quoteAll(record.Requester.Groups)...)
		if ids := record.Requester.CredentialIDs; len(ids) > 0 {
			p.row("credential", quoteAll(ids)...)
		}
	}
	if f.Request == nil {
		p.row("payload", "cannot be parsed: "+sentence(f.unreadable.Error()))
	} else {
		p.row("subject", quote(record.Subject))
		subjectAltNames(p, record)
	}
	p.row("usages", usages(f.obj.Spec.Usages)...)
	if f.Request != nil {
		p.row("key", describeKey(f.Request.Cert.PublicKey)+", SHA-256 "+record.KeySHA256)
	}
	p.row("requested lifetime", f.lifetime())
	if f.Request != nil && len(f.Request.Dropped) > 0 {
		p.row("dropped", append(quoteAll(f.Request.Dropped), "(requested, and no certificate will contain it)")...)
	}
}

// lifetime returns the lifetime that the request asks for.
func (f *Findings) lifetime() string {
	if seconds := f.obj.Spec.ExpirationSeconds; seconds != nil {
		return hours(time.Duration(*seconds) * time.Second)
	}
	if f.preview == nil {
		return "not set"
	}
	return fmt.Sprintf("not set (default %s)", hours(f.preview.NotAfter.Sub(f.preview.NotBefore)+f.preview.Cut))
}

func subjectAltNames(p *page, record audit.Record) {
	none := true
	for _, kind := range []struct {
		label string
		names []string
	}{
		{"DNS names", record.DNSNames}, {"IP addresses", record.Addresses}, {"emails", record.Emails}, {"URIs", record.URIs},
	} {
		if len(kind.names) > 0 {
			none = false
			p.row(kind.label, quoteAll(kind.names)...)
		}
	}
	if none {
		p.row("other names", "none")
	}
}

func usages(asked []certificatesv1.KeyUsage) []string {
	lines := quoteAll(asked)
	for i := range min(len(asked), maxItems) {
		if _, _, unknown := csr.X509Usages(asked[i : i+1]); len(unknown) > 0 {
			lines[i] += " (unknown to Kubernetes)"
		}
	}
	return lines
}

func describeKey(public crypto.PublicKey) string {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return fmt.Sprintf("RSA of %d bits", key.N.BitLen())
	case *ecdsa.PublicKey:
		return "ECDSA " + key.Curve.Params().Name
	case ed25519.PublicKey:
		return "Ed25519"
	default:
		return "of an unknown type"
	}
}

// conditions writes all conditions of the request, also those of other controllers and of people.
func conditions(p *page, f *Findings) {
	if len(f.obj.Status.Conditions) == 0 {
		return
	}
	p.title("Conditions")
	for i, condition := range f.obj.Status.Conditions {
		if i == maxItems {
			p.row("others", fmt.Sprintf("%d more", len(f.obj.Status.Conditions)-maxItems))
			return
		}
		label := string(condition.Type)
		switch condition.Type {
		case certificatesv1.CertificateApproved, certificatesv1.CertificateDenied, certificatesv1.CertificateFailed:
		default:
			label = quote(label)
		}
		text := "reason " + quote(condition.Reason)
		if condition.Status != corev1.ConditionTrue {
			text = "status " + quote(string(condition.Status)) + ", " + text
		}
		if !condition.LastUpdateTime.IsZero() {
			text += ", " + moment(condition.LastUpdateTime.Time, f.now)
		}
		p.row(label, text, quote(condition.Message))
	}
}

// certificate writes the certificate that was issued.
func certificate(p *page, f *Findings) {
	if len(f.obj.Status.Certificate) == 0 {
		return
	}
	p.title("Certificate")
	cert, err := issued(f)
	if err != nil {
		p.row("cannot be parsed", sentence(err.Error()))
		return
	}
	p.row("serial", "0x"+cert.SerialNumber.Text(16))
	p.row("SHA-256", fmt.Sprintf("%x", sha256.Sum256(cert.Raw)))
	p.row("issuer", quote(cert.Issuer.String()))
	p.row("subject", quote(cert.Subject.String()))
	p.row("valid from", moment(cert.NotBefore, f.now))
	p.row("valid until", moment(cert.NotAfter, f.now))
	key := "not the key of the request, so the requester cannot use the certificate"
	if f.Request == nil {
		key = "unknown: the request cannot be parsed"
	} else if f.Request.KeyIn(cert) {
		key = "the key of the request"
	}
	p.row("key", key)
	var signedBy string
	switch {
	case f.unread != nil:
		signedBy = f.unreadCA()
	case f.authority == nil:
		signedBy = "unknown: the signer has no CA to compare with"
	case f.authority.Signed(cert):
		signedBy = "the CA that signs now, with key " + f.authority.KeyID()
	default:
		signedBy = "another CA; the CA that signs now has key " + f.authority.KeyID()
	}
	p.row("signed by", signedBy)
}

// issued returns the first certificate in status.
func issued(f *Findings) (*x509.Certificate, error) {
	certs, err := ca.ParseCertificates(f.obj.Status.Certificate)
	if err == nil && len(certs) == 0 {
		err = fmt.Errorf("status.certificate contains no PEM block of type CERTIFICATE")
	}
	if err != nil {
		return nil, err
	}
	return certs[0], nil
}
