package keypair

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// Creation describes the CA that is created if its Secret does not exist.
type Creation struct {
	Algorithm ca.Algorithm
	Lifetime  time.Duration
}

// create creates the Secret at, which does not exist, with a new CA, if this process is the leader and no CA of that Secret
// is in use. It never changes a Secret. The next read of the Secret loads it. If it is still missing then, create runs again.
// A rotation creates its Secret itself.
func (k *KeyPair) create(ctx context.Context, at Secret) {
	if k.Create == nil || k.guarded || !k.leads() {
		return
	}
	now, err := k.CheckClock(ctx)
	if err != nil {
		now = k.Clock.Now() // is good enough to see that a CA is in use
	}
	if _, unusable := k.Authority(now); unusable == nil {
		return
	}
	if err != nil {
		k.notCreated(err)
		return
	}
	secret, authority, err := k.prepare(at, now)
	if err != nil {
		k.notCreated(err)
		return
	}
	ctx = log.IntoContext(ctx, k.Log)
	record := func(event audit.Event, message string) {
		cert := authority.Certificate()
		key := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		k.Audit.Write(ctx, now, event, audit.Record{
			Name: at.String(), Subject: cert.Subject.String(), KeySHA256: hex.EncodeToString(key[:]),
			Serial: cert.SerialNumber.Text(16), IssuerKeyID: authority.KeyID(),
			NotBefore: cert.NotBefore, NotAfter: cert.NotAfter, Message: message,
		})
	}
	record(audit.CACreated, "") // before the Secret is stored, so that no CA exists without a record
	switch err := call.Write(context.WithoutCancel(ctx), k.client.Create, secret); {
	case err == nil:
		k.created(at.reference(secret.UID), authority)
	case report.Refused(err):
		record(audit.Discarded, err.Error())
		k.notCreated(err)
	default: // another writer was faster, or a call that had no answer has stored the Secret
		record(audit.Uncertain, err.Error())
		if !apierrors.IsAlreadyExists(err) {
			k.notCreated(err)
		}
	}
}

// prepare makes a CA and its Secret. Its common name is random in part, so that no other generation has it.
func (k *KeyPair) prepare(at Secret, now time.Time) (*corev1.Secret, *ca.Authority, error) {
	const namePart = 32 // of X.520's 64 letters
	random := make([]byte, 4)
	_, _ = rand.Read(random) // never fails
	name := at.Name[:min(len(at.Name), namePart)]
	authority, keyPEM, err := ca.New(ca.NewOptions{
		CommonName: fmt.Sprintf("csr-controller-manager:%s:%x", name, random),
		Algorithm:  k.Create.Algorithm,
		Lifetime:   k.Create.Lifetime,
	}, now)
	if err != nil {
		return nil, nil, err
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: at.Namespace, Name: at.Name, Finalizers: []string{Finalizer}},
		Type:       corev1.SecretTypeTLS,
		Data: map[string][]byte{
			corev1.TLSCertKey: authority.CertificatePEM(), corev1.TLSPrivateKeyKey: keyPEM, rootsKey: authority.CertificatePEM(),
		},
	}, authority, nil
}

// missing returns why there is no Secret to read.
func (k *KeyPair) missing() *Unavailable {
	_, unusable := k.Authority(k.Clock.Now())
	k.mu.Lock()
	defer k.mu.Unlock()
	problem := func(format string, args ...any) *Unavailable {
		return unavailable("CAMissing", "%s does not exist"+format, append([]any{k.name}, args...)...)
	}
	switch {
	case k.guarded:
		return problem(": the leader creates it for a new SigningAuthority; " +
			"kubectl get signingauthorities -o wide shows what it waits for").awaited()
	case k.Create == nil:
		return problem(": create it with type %s", corev1.SecretTypeTLS)
	case unusable == nil:
		return problem(": its CA is still in use, so no new CA is created; restore the Secret")
	case k.notMade != nil:
		return problem(" and can't be created: %v", k.notMade)
	}
	return problem(" yet: the leader creates it").awaited()
}

// notCreated reports that the CA could not be created.
func (k *KeyPair) notCreated(err error) {
	k.mu.Lock()
	k.notMade = err
	k.mu.Unlock()
	problem := unavailable("CAMissing", "%s does not exist and can't be created: %v", k.name, err)
	problem.action = "Create" // an Event of its own, beside the one that the Secret does not exist yet
	k.Refuse(problem)
}

// created reports the new CA. object is the Secret that holds it.
func (k *KeyPair) created(object client.Object, authority *ca.Authority) {
	k.mu.Lock()
	k.object, k.notMade = object, nil
	k.mu.Unlock()
	k.Log.Info("Created signing CA", "source", k.name, "issuerKeyID", authority.KeyID(), "notAfter", authority.Certificate().NotAfter)
	k.event("Create", corev1.EventTypeNormal, "CACreated",
		fmt.Sprintf("created a CA with key %s, %q, valid until %s: every verifier of its certificates must trust it",
			authority.KeyID(), authority.Certificate().Subject, authority.Certificate().NotAfter.Format(time.RFC3339)))
}
