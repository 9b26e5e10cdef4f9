package parity

import (
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

// outcome is the result of a request, without values that differ from run to run.
type outcome struct {
	State       string
	Conditions  []string
	Certificate *certificate `json:",omitempty"`
	User        string       `json:",omitempty"`
}

// certificate describes status.certificate. A recorded certificate is compared with one from other keys.
type certificate struct {
	Version            int
	Subject            string
	RawSubject         string
	Issuer             string
	DNS, Email         []string
	IPs, URIs          []string
	KeyUsage           int
	ExtKeyUsage        []int
	Extensions         []string
	SignatureAlgorithm string
	KeyIDs             string
	PublicKeyRequested bool
	SerialBits         string
	Validity           string
	Backdated          string
	Surplus            string
}

// stateOf returns the state of obj in the notation of row.want.
func stateOf(obj *certificatesv1.CertificateSigningRequest) string {
	if obj == nil {
		return gone
	}
	var parts []string
	for _, condition := range obj.Status.Conditions {
		parts = append(parts, string(condition.Type))
	}
	if len(obj.Status.Certificate) > 0 {
		parts = append(parts, "Issued")
	}
	return strings.Join(parts, " ")
}

// outcomeOf reads obj. Its certificate was issued between from and to, by a CA that expires at one of ends.
func outcomeOf(obj *certificatesv1.CertificateSigningRequest, from, to time.Time, ends []time.Time) outcome {
	found := outcome{State: stateOf(obj)}
	if obj == nil {
		return found
	}
	for _, condition := range obj.Status.Conditions {
		filled := !condition.LastUpdateTime.IsZero() && !condition.LastTransitionTime.IsZero()
		found.Conditions = append(found.Conditions, fmt.Sprintf("%s=%s %s: %s (times filled: %t)",
			condition.Type, condition.Status, condition.Reason, condition.Message, filled))
	}
	if len(obj.Status.Certificate) > 0 {
		found.Certificate = certificateOf(obj, from, to, ends)
	}
	return found
}

func certificateOf(obj *certificatesv1.CertificateSigningRequest, from, to time.Time, ends []time.Time) *certificate {
	block, rest := pem.Decode(obj.Status.Certificate)
	if block == nil {
		return &certificate{Surplus: "no PEM"}
	}
	found := &certificate{}
	if block.Type != "CERTIFICATE" || len(block.Headers) > 0 || len(rest) > 0 {
		found.Surplus = fmt.Sprintf("%s %v and %d bytes more", block.Type, block.Headers, len(rest))
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return &certificate{Surplus: err.Error()}
	}
	found.content(cert)
	found.Validity = cert.NotAfter.Sub(cert.NotBefore).String()
	for _, end := range ends {
		if cert.NotAfter.Equal(end) {
			found.Validity = "until the CA ends"
		}
	}
	// Certificates hold whole seconds.
	found.Backdated = fmt.Sprintf("%s before creation", from.Sub(cert.NotBefore).Round(time.Second))
	issued := cert.NotBefore.Add(5 * time.Minute)
	if !issued.Before(from.Add(-2*time.Second)) && !issued.After(to.Add(2*time.Second)) {
		found.Backdated = "5m0s"
	}
	found.PublicKeyRequested = sameKey(obj.Spec.Request, cert)
	return found
}

func (c *certificate) content(cert *x509.Certificate) {
	c.Version, c.Subject, c.RawSubject, c.Issuer = cert.Version, cert.Subject.String(), hex.EncodeToString(cert.RawSubject), cert.Issuer.String()
	c.DNS, c.Email = cert.DNSNames, cert.EmailAddresses
	for _, ip := range cert.IPAddresses {
		c.IPs = append(c.IPs, ip.String())
	}
	for _, uri := range cert.URIs {
		c.URIs = append(c.URIs, uri.String())
	}
	c.KeyUsage, c.SignatureAlgorithm = int(cert.KeyUsage), cert.SignatureAlgorithm.String()
	for _, usage := range cert.ExtKeyUsage {
		c.ExtKeyUsage = append(c.ExtKeyUsage, int(usage))
	}
	for _, extension := range cert.Extensions {
		value := hex.EncodeToString(extension.Value)
		if extension.Id.String() == "2.5.29.35" {
			value = "of the CA" // it depends on the CA's key; KeyIDs says whether it is present
		}
		c.Extensions = append(c.Extensions, fmt.Sprintf("%s critical=%t %s", extension.Id, extension.Critical, value))
	}
	c.KeyIDs = fmt.Sprintf("authority %d bytes, subject %d bytes", len(cert.AuthorityKeyId), len(cert.SubjectKeyId))
	c.SerialBits = "1 to 128"
	if bits := cert.SerialNumber.BitLen(); bits < 1 || bits > 128 || cert.SerialNumber.Sign() < 0 {
		c.SerialBits = fmt.Sprint(bits)
	}
}

func sameKey(request []byte, cert *x509.Certificate) bool {
	block, _ := pem.Decode(request)
	if block == nil {
		return false
	}
	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	return err == nil && string(parsed.RawSubjectPublicKeyInfo) == string(cert.RawSubjectPublicKeyInfo)
}

// read returns the outcome of the row.
func (p *pass) read(t *testing.T, r row, key string, obj *certificatesv1.CertificateSigningRequest) outcome {
	t.Helper()
	found := outcomeOf(obj, p.from[key], time.Now(), p.ends)
	if found.Certificate == nil {
		return found
	}
	if r.endedAgo != 0 || r.certificate != nil {
		found.Certificate = &certificate{Surplus: "as stored"}
		if r.certificate != nil && string(r.certificate) != string(obj.Status.Certificate) {
			found.Certificate.Surplus = "replaced"
		}
	}
	if r.use { // the user that the API server identifies by the certificate
		cfg := rest.AnonymousClientConfig(p.Config)
		cfg.CertData, cfg.KeyData = obj.Status.Certificate, privatePEM(r.key)
		user, err := kubelet.WhoAmI(t.Context(), cfg)
		found.User = fmt.Sprintf("%s in %v, error %v", user.Username, user.Groups, err)
	}
	return found
}
