package rotation

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestRenewCertificate renews the certificate of a CA that ends a minute later. An API server with one of the two certificates
// accepts what was issued before and after, until the old certificate has ended. Then an administrator brings a certificate that
// ends later still.
func TestRenewCertificate(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	stop := r.feed(t)
	const name = "renewed"
	at := published(name)
	r.run(t, r.signing(t, name, time.Hour))
	old := kit.IssueCA(t, "growing old", kit.NewKey(t), nil, 100*time.Second)
	r.bringSigning(t, name, name, old)
	r.authority(t, name, name, at)
	maria := r.user(t, "maria", r.reaches(t, name, v1alpha1.Completed, nil).Signing)
	before := r.get(t, name).Status // with what the manager has noted since: the ledger was lost
	kit.Grant(t, "stranger", "csr-rotation-operator")
	kit.Equal(t, "end of a certificate before the renewal", maria.Leaf.NotAfter, old.Cert.NotAfter)

	stop()
	output, code := runRotation(t, "stranger", "renew-certificate", name, "--timeout", "10s")
	kit.Says(t, output, code, 1, "no API server publishes the renewed certificate in ConfigMap kube-system/extension-apiserver-authentication")
	waits := r.get(t, name).Status
	kit.Check(t, bytes.Equal(r.secret(t, name).Data["signing.crt"], old.PEM()) && r.bundle(t, at) == waits.Renewed.Certificate+string(old.PEM()),
		"the renewed certificate signs or is not published: %+v", waits)
	output, code = runRotation(t, "stranger", "start", name)
	kit.Says(t, output, code, 1, "rotation start is refused: a renewed certificate is being published")
	stop = r.feed(t)
	output, code = runRotation(t, "stranger", "wait", name, "--timeout", "30s")
	kit.Says(t, output, code, 0, "until the renewed certificate signs", "done: Completed, generation 1")
	after := r.get(t, name).Status
	r.hasEvent(t, name, "CertificateRenewed", "the CA "+before.Signing.KeyID+" signs with a certificate that ends at "+after.Signing.NotAfter.UTC().Format(time.RFC3339))
	kept := before.Signing.DeepCopy()
	kept.Certificate, kept.Fingerprint, kept.NotAfter = waits.Renewed.Certificate, waits.Renewed.Fingerprint, waits.Renewed.NotAfter
	kept.Earlier = []v1alpha1.EarlierCertificate{{Certificate: before.Signing.Certificate, NotAfter: before.Signing.NotAfter}}
	if !equality.Semantic.DeepEqual(after.Signing, kept) || after.Retiring != nil || after.Renewed != nil {
		t.Errorf("got %+v, want %+v", after, kept)
	}
	data := r.secret(t, name).Data
	kit.Check(t, string(data["tls.crt"]) == kept.Certificate && string(data["signing.crt"]) == kept.Certificate && bytes.Equal(data["tls.key"], data["signing.key"]) &&
		bytes.Equal(data["tls.key"], old.KeyPEM(t)) && len(data) == 5, "the Secret has %d keys", len(data))
	nora := r.userUntil(t, "nora", after.Signing, old.Cert.NotAfter)

	stop()
	renewed := kit.Must(ca.ParseCertificates([]byte(kept.Certificate)))(t)[0]
	for _, one := range []*x509.Certificate{renewed, old.Cert} {
		r.trustsOnly(t, one)
		r.isTakenFor(t, maria, "maria")
		r.isTakenFor(t, nora, "nora")
	}
	r.feed(t)
	kit.Within(t, time.Until(old.Cert.NotAfter)+kit.Patience, "the old certificate has ended", func(context.Context) error {
		status := r.get(t, name).Status
		return kit.OrError(r.bundle(t, at) == kept.Certificate && len(status.Signing.Earlier) == 0, "%+v", status)
	})
	r.isTakenFor(t, maria, "")
	kit.Eventually(t, "nora is known", func(ctx context.Context) error { // when the API server has read the file
		user, err := kit.WhoIs(ctx, r.Config, &nora)
		return kit.OrError(user == "nora", "%q, error %v", user, err)
	})

	later := kit.Must(kit.Must(ca.Load(data["tls.crt"], data["tls.key"], nil))(t).Renew(2*ca.DefaultAuthorityLifetime, time.Now()))(t)
	r.edit(t, name, later.CertificatePEM(), data["tls.key"])
	brought := r.reaches(t, name, v1alpha1.Completed, func(s *v1alpha1.SigningAuthorityStatus) bool {
		return s.Signing.Certificate == string(later.CertificatePEM()) && len(s.Signing.Earlier) == 1
	})
	kit.Check(t, brought.Generation == 1 && brought.InitiatedAt.Equal(before.InitiatedAt), "a rotation has begun: %+v", brought)
	_, held, err := publisher(t, r.Config).ClientCAs(t.Context())
	kit.Check(t, err == nil && slices.ContainsFunc(held, later.Certificate().Equal) && slices.ContainsFunc(held, renewed.Equal), "%d are published, error %v", len(held), err)
	r.isTakenFor(t, nora, "nora")
	r.isTakenFor(t, r.user(t, "otto", brought.Signing), "otto")
}

// TestRenewIntermediate checks that the manager does not renew what another CA must sign, and takes what an administrator brings.
func TestRenewIntermediate(t *testing.T) {
	kit.Parallel(t)
	r := startRotating(t)
	r.feed(t)
	const name = "intermediate"
	r.run(t, r.signing(t, name, time.Hour))
	root, key := kit.IssueCA(t, "root", kit.NewKey(t), nil, 48*time.Hour), kit.NewKey(t)
	old, later := kit.IssueCA(t, "between", key, root, time.Hour), kit.IssueCA(t, "between", key, root, 2*time.Hour)
	r.bring(t, name, &csrenv.CA{CertPEM: old.PEM(), KeyPEM: old.KeyPEM(t)})
	r.authority(t, name, name, published(name))
	before := r.reaches(t, name, v1alpha1.Completed, nil)
	maria := r.user(t, "maria", before.Signing)
	kit.Grant(t, "stranger", "csr-rotation-operator")
	output, code := runRotation(t, "stranger", "renew-certificate", name)
	kit.Says(t, output, code, 1, `rotation renew-certificate is refused: only "`+root.Cert.Subject.String()+`" can renew the certificate "`+old.Cert.Subject.String()+`"`)

	other := kit.IssueCA(t, "another subject", key, root, 2*time.Hour)
	r.edit(t, name, other.PEM(), old.KeyPEM(t))
	r.hasEvent(t, name, "RotationStuck", "it has the key of the signing CA, and a rotation needs a new key; a renewed certificate is accepted in Completed, with the same subject")
	r.edit(t, name, later.PEM(), old.KeyPEM(t))
	after := r.reaches(t, name, v1alpha1.Completed, func(s *v1alpha1.SigningAuthorityStatus) bool { return s.Signing.Certificate == string(later.PEM()) })
	kit.Check(t, after.Signing.KeyID == before.Signing.KeyID && strings.HasSuffix(r.bundle(t, published(name)), string(old.PEM())), "%+v", after)
	r.isTakenFor(t, maria, "maria")
	r.isTakenFor(t, r.user(t, "nora", after.Signing), "nora")
}

// bringSigning creates the Secret of an authority whose CA signs already and whose status is lost. A probe, which a CA that is
// brought must pass, needs a CA that does not end within ten minutes.
func (r *rotating) bringSigning(t *testing.T, secret, authority string, brought *kit.CA) {
	t.Helper()
	pair := keypair.Pair{Cert: brought.PEM(), Key: brought.KeyPEM(t)}
	obj := kit.SigningSecret(nil, nil)
	obj.Name = secret
	ring := keypair.Ring{TLS: pair, Signing: pair, Permit: keypair.Permit{
		Authority: authority, KeyID: ca.KeyID(brought.Cert.RawSubjectPublicKeyInfo), Signers: []string{userSigner, kubeletSigner},
	}}
	kit.NoError(t, ring.WriteTo(obj.Data))
	kit.NoError(t, r.admin.Create(t.Context(), obj))
}

// userUntil returns a certificate for a user that ends after end.
func (r *rotating) userUntil(t *testing.T, name string, one *v1alpha1.CAStatus, end time.Time) (pair tls.Certificate) {
	t.Helper()
	kit.Eventually(t, "a certificate that ends after "+end.String(), func(context.Context) error {
		pair = r.user(t, name, one)
		return kit.OrError(pair.Leaf.NotAfter.After(end), "it ends at %s", pair.Leaf.NotAfter)
	})
	return pair
}

// trustsOnly makes the API server trust one and no other certificate of its CA, and waits until it has read the file.
func (r *rotating) trustsOnly(t *testing.T, one *x509.Certificate) {
	t.Helper()
	mark := kit.NewCA(t)
	marked := signedBy(t, kit.Load(t, mark), pkix.Name{CommonName: "mark"}, time.Hour)
	kit.NoError(t, r.trust(string(trust.Bundle(time.Now(), one, kit.Certificate(t, mark)))))
	kit.Eventually(t, "the file is read", func(ctx context.Context) error {
		user, err := kit.WhoIs(ctx, r.Config, &marked)
		return kit.OrError(user == "mark", "%q, error %v", user, err)
	})
}
