package signer

import (
	"context"
	"crypto/sha256"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// Answers of an API server to a write.
var (
	errDown      = errors.New("down")
	errConflict  = apierrors.NewConflict(requests, "csr-1", errDown)
	errGone      = apierrors.NewNotFound(requests, "csr-1")
	errForbidden = apierrors.NewForbidden(requests, "csr-1", errDown)
	errInvalid   = apierrors.NewInvalid(schema.GroupKind{Group: "certificates.k8s.io", Kind: "CertificateSigningRequest"}, "csr-1", nil)
	errTooLarge  = apierrors.NewRequestEntityTooLargeError("limit is 3145728")
)

// shows sets what the API server shows after a failed write.
func (w *world) shows(what string) {
	w.read = func(obj *request) error {
		switch what {
		case "unchanged":
		case "changed", "remade":
			obj.ResourceVersion = "8"
		case "stored":
			obj.Status, obj.ResourceVersion = w.written[0].DeepCopy().Status, "8"
		case "stored, remade":
			obj.Status = w.written[0].DeepCopy().Status
		case "another's certificate":
			all(version("8"), certificate("another"))(obj)
		case "another CA's certificate":
			made := newRoot(day)
			other := must(ca.Load(made.cert, made.key, nil))
			issued := must(other.Issue(w.Signers[obj.Spec.SignerName].Profile, must(csr.Parse(w.served)).Cert, now))
			all(version("8"), certificate(string(issued.PEM)))(obj)
		case "a former leader's certificate":
			issued := must(w.authority().Issue(w.Signers[obj.Spec.SignerName].Profile, must(csr.Parse(w.served)).Cert, now))
			all(version("8"), certificate(string(issued.PEM)))(obj)
		case "another's failure":
			condition("Failed", "True")(obj)
		case "gone":
			return errGone
		case "no answer":
			return errDown
		default:
			w.t.Errorf("read, though nothing is known of it: %q", what)
		}
		if strings.HasSuffix(what, "remade") {
			obj.UID = "another"
		}
		return nil
	}
}

const doesNotFit = "RequestTooLarge: the request does not fit into an object with its certificate: the API server refused it as too large; " +
	"make a request with fewer names, labels or annotations"

// TestEndOfACertificate checks that the audit log has the outcome of every certificate, whatever the write and the read
// after it answered. Only an outcome that cannot be known is recorded as uncertain.
func TestEndOfACertificate(t *testing.T) {
	t.Parallel()
	const (
		isConflict = "error: update status: Operation cannot be fulfilled on …"
		isGone     = "error: update status: certificatesigningrequests.certificates.k8s.io \"csr-1\" not found"
		isDown     = "error: update status: down"
		isRefused  = "again 1s\nWarning NotStored the API server refuses to store the certificate of this request: …"
		isTooLarge = "Failed " + doesNotFit
		second     = "Warning SecondSigner another program has stored the certificate of this request, issued by "
		disable    = ", but this manager signs for SIGNER too: disable that signer in one of the two, and check the issuer of this certificate"
	)
	etcd := apierrors.NewInternalError(errors.New("etcdserver: request is too large"))
	client := apierrors.NewInternalError(errors.New("rpc error: code = ResourceExhausted desc = " +
		"trying to send message larger than max (2099474 vs. 2097152)"))
	unauthorized := apierrors.NewUnauthorized("no")
	for name, test := range map[string]struct {
		write error
		shows string // empty means that no read is expected
		end   string // what is recorded after Signed
		want  string // after the certificate
	}{
		"stored":                                  {nil, "", "", ""},
		"conflict, changed":                       {errConflict, "changed", "Discarded", ""},
		"conflict, stored by an earlier attempt":  {errConflict, "stored", "Stored", ""},
		"conflict with another signer":            {errConflict, "another's certificate", "Discarded", second + "an unknown CA" + disable},
		"conflict with another CA":                {errConflict, "another CA's certificate", "Discarded", second + `the CA "CN=CA"` + disable},
		"conflict with a former leader":           {errConflict, "a former leader's certificate", "Discarded", ""},
		"conflict, no change":                     {errConflict, "unchanged", "Uncertain", isConflict},
		"conflict, no answer":                     {errConflict, "no answer", "Uncertain", isConflict},
		"conflict, another request":               {errConflict, "remade", "Uncertain", isConflict},
		"not found":                               {errGone, "gone", "Uncertain", ""},
		"not found, though it is there":           {errGone, "unchanged", "Uncertain", isGone},
		"not found, though it is stored":          {errGone, "stored", "Stored", ""},
		"unauthorized":                            {unauthorized, "unchanged", "Uncertain", "error: update status: no"},
		"forbidden":                               {errForbidden, "unchanged", "Discarded, NotSigned NotStored", isRefused},
		"forbidden, stored by an earlier attempt": {errForbidden, "stored", "Stored", ""},
		"forbidden, no answer":                    {errForbidden, "no answer", "Uncertain, NotSigned NotStored", isRefused},
		"invalid":                                 {errInvalid, "unchanged", "Discarded, NotSigned NotStored", isRefused},
		"invalid, stored by an earlier attempt":   {errInvalid, "stored", "Stored", ""},
		"no answer, stored":                       {errDown, "stored", "Stored", ""},
		"no answer, stored by another signer":     {errDown, "another's certificate", "Discarded", isDown + "\n" + second + "…"},
		"no answer, changed":                      {errDown, "changed", "Discarded", isDown},
		"no answer, another request":              {errDown, "remade", "Uncertain", isDown},
		"no answer, deleted":                      {errDown, "gone", "Uncertain", ""},
		"no answer, no change":                    {errDown, "unchanged", "Uncertain", isDown},
		"no answer at all":                        {errDown, "no answer", "Uncertain", isDown},

		// The Failed condition is small enough for an object.
		"the API server refuses the size": {errTooLarge, "unchanged", "Discarded, NotSigned RequestTooLarge", isTooLarge},
		"etcd refuses the size":           {etcd, "unchanged", "Discarded, NotSigned RequestTooLarge", isTooLarge},
		"etcd's client refuses the size":  {client, "unchanged", "Discarded, NotSigned RequestTooLarge", isTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, signer := newCounted(t)
			w.shows(test.shows)
			w.update = func(sent *request) error {
				if len(sent.Status.Certificate) == 0 {
					return nil
				}
				return test.write
			}
			is(t, w.reconcile(), strings.TrimSuffix("certificate\n"+strings.ReplaceAll(test.want, "SIGNER", signer), "\n"), w.pair)
			is(t, w.recorded(), strings.TrimSuffix("Signed, "+test.end, ", "), w.pair)
			sum := sha256.Sum256(w.leaf(w.written[0]).Raw)
			for i, record := range w.records(audit.Signed, audit.Stored, audit.Discarded, audit.Uncertain) {
				if record.CertificateSHA256 != hex.EncodeToString(sum[:]) || i > 0 && record.Message != test.write.Error() {
					t.Errorf("record %+v", record)
				}
			}
			discarded, issued := strings.HasPrefix(test.end, "Discarded"), test.end == "" || test.end == "Stored"
			if got := valueOf(discardedTotal.WithLabelValues(signer)); (got == 1) != discarded || got > 1 {
				t.Errorf("%v are counted as discarded", got)
			}
			if got := valueOf(outcomesTotal.WithLabelValues(signer, "Issued", "")); (got == 1) != issued || got > 1 {
				t.Errorf("%v are counted as issued", got)
			}
			if got := valueOf(foreignTotal.WithLabelValues(signer)); (got == 1) != strings.Contains(test.want, second) || got > 1 {
				t.Errorf("%v are counted as another signer's", got)
			}
		})
	}
}

// TestEndOfAFailure checks each fault of the write of a Failed condition, and of the cache. The outcome is reported once it is
// stored, and never before. What was not stored is written again.
func TestEndOfAFailure(t *testing.T) {
	t.Parallel()
	const (
		stored     = badClientUsages
		tried      = "tried " + badClientUsages
		isConflict = "\nerror: update status: Operation cannot be fulfilled on …"
		isGone     = "\nerror: update status: certificatesigningrequests.certificates.k8s.io \"csr-1\" not found"
		isDown     = "\nerror: update status: down"
		isRefused  = "\nagain 1s\nWarning NotStored the API server refuses to store the Failed condition (SignerValidationFailure: usages did not…"
	)
	for name, test := range map[string]struct {
		write error
		shows string
		want  string
	}{
		"stored":                               {nil, "", stored},
		"conflict, no change":                  {errConflict, "unchanged", tried + isConflict},
		"changed meanwhile":                    {errConflict, "changed", tried},
		"not found, still there":               {errGone, "unchanged", tried + isGone},
		"deleted meanwhile":                    {errGone, "gone", tried},
		"forbidden":                            {errForbidden, "unchanged", tried + isRefused},
		"invalid":                              {errInvalid, "unchanged", tried + isRefused},
		"too large, too":                       {errTooLarge, "unchanged", tried + isRefused},
		"no answer, not stored":                {errDown, "unchanged", tried + isDown},
		"no answer at all":                     {errDown, "no answer", tried + isDown},
		"no answer, stored":                    {errDown, "stored", stored},
		"stored by the request made anew":      {errDown, "stored, remade", tried + isDown},
		"another Failed condition of a person": {errDown, "another's failure", tried + isDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, usages("magic"))
			w.shows(test.shows)
			w.writeFault = test.write
			is(t, w.reconcile(), test.want, w.pair)
			if test.want != stored {
				w.writeFault = nil
				is(t, w.reconcile(), stored, w.pair)
			}
		})
	}
	check(t, map[string]row{
		"gone from the cache": {world: func(w *world) { w.getFault = errGone }},
		"cannot be read":      {world: func(w *world) { w.getFault = errDown }, want: "error: down"},
		"a certificate and a failure that are too large": {
			world: func(w *world) { w.writeFault = errTooLarge },
			want: "certificate\ntried Failed " + doesNotFit +
				"\nagain 1s\nWarning NotStored the API server refuses to store the Failed condition (RequestTooLarge: …"},
		// The API server validates the payload at every update. So it never stores the condition of a malformed request.
		"malformed, invalid": {
			change: content(nil), world: func(w *world) { w.writeFault = errInvalid }, want: noPEM + "\nagain 1s"},
		"malformed, forbidden": {
			change: content(nil), world: func(w *world) { w.writeFault = errForbidden },
			want: "tried " + noPEM + "\nagain 1s\nWarning NotStored the API server refuses to store the Failed condition (Malformed: …"},
	})
}

// TestARefusedWriteIsTriedForEver checks the pauses while an admission policy refuses the write, and that the certificate or the
// Failed condition is stored once it permits it.
func TestARefusedWriteIsTriedForEver(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]edit{"certificate": all(), badClientUsages: usages("magic")} {
		w := newWorld(t, change)
		for _, w.writeFault = range []error{errForbidden, errInvalid} {
			for _, age := range []time.Duration{0, 2 * time.Minute, time.Hour} {
				w.clock.SetTime(now.Add(age))
				if result, err := w.Reconcile(w.ctx, w.key); err != nil || result.RequeueAfter != csr.Pause(age) {
					t.Errorf("%s, %v, at the age of %s: %+v, error %v", want, w.writeFault, age, result, err)
				}
			}
		}
		taken(w.recorder)
		w.writeFault = nil
		is(t, w.reconcile(), want, w.pair)
	}
}

// TestWritesOutliveTheManager checks that a recorded certificate is stored even if the manager stops meanwhile. The
// world checks that the write and the read after it have enough time.
func TestWritesOutliveTheManager(t *testing.T) {
	t.Parallel()
	for _, change := range []edit{all(), usages("magic")} {
		w := newWorld(t, change)
		reads := 0
		w.writeFault = errDown
		w.read = func(*request) error {
			reads++
			return errDown
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := w.Reconcile(ctx, w.key); err == nil || len(w.written) != 1 || reads != 1 {
			t.Errorf("%d writes, %d reads, error %v", len(w.written), reads, err)
		}
	}
}

// TestEachAttemptIssuesACertificate checks that nothing of a failed attempt is kept.
func TestEachAttemptIssuesACertificate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	different := map[string]bool{}
	for _, fault := range []error{apierrors.NewInternalError(errDown), errDown, errForbidden, nil} {
		w.writeFault = fault
		is(t, w.reconcile(), "certificate…", w.pair)
		different[w.last().SerialNumber.String()] = true
	}
	const want = "Signed, Uncertain, Signed, Uncertain, Signed, Discarded, NotSigned NotStored, Signed"
	if got := w.recorded(); len(different) != 4 || got != want {
		t.Errorf("%d certificates: %s", len(different), got)
	}
}

// TestAMismatchIsNeverStored removes a signer's rules for requests, like a defect in them. The finished certificate
// must be discarded, counted, recorded and reported at each attempt, and nothing may be written.
func TestAMismatchIsNeverStored(t *testing.T) {
	t.Parallel()
	w, name := newCounted(t, usages("client auth"))
	judged := w.Judge(w.ctx, w.served)
	judged.Request.Cert.Subject.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 10}, Value: "system:masters"}}
	for range 2 {
		if result, err := w.sign(w.ctx, w.served, judged); err != nil || result.RequeueAfter != time.Second || len(w.written) > 0 {
			t.Errorf("%+v, error %v, wrote %d", result, err, len(w.written))
		}
	}
	told := strings.Join(taken(w.recorder), "\n")
	if !strings.HasPrefix(told, "Warning CertificateMismatch the issued certificate differs from the judged request: subject is") {
		t.Errorf("told %s", told)
	}
	mismatches, discarded := valueOf(mismatchesTotal.WithLabelValues(name)), valueOf(discardedTotal.WithLabelValues(name))
	if mismatches != 2 || discarded != 2 {
		t.Errorf("counted as a mismatch %v times, as discarded %v times", mismatches, discarded)
	}
	is(t, w.recorded(), "Discarded CertificateMismatch, NotSigned CertificateMismatch, Discarded CertificateMismatch", w.pair)
	if first := w.records()[0]; first.Serial == "" || first.IssuerKeyID != w.authority().KeyID() {
		t.Errorf("%+v", first)
	}
}

// TestLifetimesAreReported checks the gauge that alerts use. A CA that ends soon shortens it; a requester's own lifetime does
// not. A lifetime that is cut is reported and counted once the certificate is stored.
func TestLifetimesAreReported(t *testing.T) {
	t.Parallel()
	w, signer := newCounted(t)
	const cut = "\nWarning LifetimeCut the certificate expires 8735h55m0s early, at 2026-03-02T12:00:00Z, because its CA expires then: replace the CA"
	for _, test := range []struct {
		ca     time.Duration
		wish   *int32
		fault  error
		want   string
		gauge  time.Duration
		counts string // issued and cut
	}{
		{10 * year, nil, nil, "certificate", year, "1 0"},
		{10 * year, new(int32(600)), nil, "certificate", year, "2 0"},
		{day, nil, errDown, "certificate\nerror: update status: down", year, "2 0"},
		{day, nil, nil, "certificate" + cut, day + 5*time.Minute, "3 1"},
	} {
		w.load(test.ca)
		w.writeFault = test.fault
		w.served = object(signerName(signer), func(obj *request) { obj.Spec.ExpirationSeconds = test.wish })
		is(t, w.reconcile(), test.want, w.pair)
		if got := valueOf(issuedLifetimeSeconds.WithLabelValues(signer)); got != test.gauge.Seconds() {
			t.Errorf("%v seconds, want %s", got, test.gauge)
		}
		issued, cut := valueOf(outcomesTotal.WithLabelValues(signer, "Issued", "")), valueOf(lifetimeCutTotal.WithLabelValues(signer))
		is(t, fmt.Sprint(issued, cut), test.counts, w.pair)
	}
}

// ledgerFunc implements Ledger.
type ledgerFunc func(keyID, signerName string, notAfter time.Time) error

func (f ledgerFunc) Cover(_ context.Context, keyID, signerName string, notAfter time.Time) error {
	return f(keyID, signerName, notAfter)
}

// guarded returns a world with a CA that ends after lifetime and may sign for one signer. cover is the ledger.
func guarded(t *testing.T, lifetime time.Duration, permit keypair.Permit, cover ledgerFunc) *world {
	t.Helper()
	w := newWorld(t)
	w.use(keypair.New(keypair.Guarded{Secret: keypair.Secret{Namespace: "ns", Name: "ca"}, Ledger: cover}))
	signing := newRoot(lifetime)
	permit.Authority = "cluster"
	ring := keypair.Ring{Signing: keypair.Pair{Cert: signing.cert, Key: signing.key}, Permit: permit}
	stored := &corev1.Secret{Type: corev1.SecretTypeTLS, Data: map[string][]byte{}}
	stored.Namespace, stored.Name = "ns", "ca"
	if err := ring.WriteTo(stored.Data); err != nil {
		t.Fatal(err)
	}
	w.pair.Offer(stored)
	taken(w.recorder)
	return w
}

// TestCoveredBeforeItIsSigned checks that the ledger records the same end as the certificate, and records it first.
func TestCoveredBeforeItIsSigned(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		lifetime, longest time.Duration // of the CA, and by the permit
		want              time.Duration // of the certificate
		told              string
	}{
		"the profile's lifetime":   {10 * year, 0, year - 5*time.Minute, "certificate"},
		"the permit's cap":         {10 * year, day, day - 5*time.Minute, "certificate"},
		"a cap above the profile":  {10 * year, 9999 * time.Hour, year - 5*time.Minute, "certificate"},
		"cut by the end of the CA": {time.Hour, day, time.Hour, "certificate\nWarning LifetimeCut …"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var covered []string
			permit := keypair.Permit{Signers: []string{kubeletClient}, LifetimeCap: test.longest}
			w := guarded(t, test.lifetime, permit, func(keyID, signerName string, notAfter time.Time) error {
				covered = append(covered, keyID, signerName, notAfter.Sub(now).String())
				return nil
			})
			w.update = func(*request) error {
				if diff := cmp.Diff([]string{w.authority().KeyID(), kubeletClient, test.want.String()}, covered); diff != "" {
					t.Errorf("covered before the write (-want +got):\n%s", diff)
				}
				return nil
			}
			is(t, w.reconcile(), test.told, w.pair)
			if cert := w.last(); !cert.NotAfter.Equal(now.Add(test.want)) {
				t.Errorf("issued until %s", cert.NotAfter)
			}
		})
	}
}

// TestNothingIsSignedThatIsNotCovered checks that a failed ledger write is retried and reported once. If the permit does not name
// its signer, a request waits, and the ledger is not asked.
func TestNothingIsSignedThatIsNotCovered(t *testing.T) {
	t.Parallel()
	const lost = "; the ledger was deleted or does not exist yet: check that the rotation controller runs, " +
		"which creates it and counts earlier certificates as outstanding (kubectl get signingauthorities -o wide)"
	for fault, todo := range map[error]string{
		errors.New("no route"):                                       "",
		fmt.Errorf("issue by key a: %w", ledger.ErrSealed):           "",
		fmt.Errorf("read the account of a: %w", ledger.ErrNoAccount): lost,
	} {
		w := guarded(t, day, keypair.Permit{Signers: []string{kubeletClient}}, func(string, string, time.Time) error { return fault })
		again := "error: " + fault.Error()
		is(t, w.reconcile(), again+"\nWarning LedgerUnavailable the certificate is not signed, because the CA's ledger cannot record it: "+
			fault.Error()+todo, w.pair)
		is(t, w.reconcile(), again, w.pair)
	}
	w := guarded(t, day, keypair.Permit{Signers: []string{kubeletServing}}, nil)
	is(t, w.reconcile(), "again 1s\nWarning CANotProven the CA in Secret ns/ca is not proven…", w.pair)
}
