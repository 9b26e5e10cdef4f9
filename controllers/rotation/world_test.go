package rotation

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keyring"
)

// world is a cluster in memory: the Secret, what is published, API servers that follow it late, and a signer that sees the
// Secret late. Its rules are those of the real parts; what is tried with it is Next, and the order of notes and acts.
type world struct {
	now    time.Time
	spec   v1alpha1.SigningAuthoritySpec
	status v1alpha1.SigningAuthorityStatus
	// operation is the annotation.
	operation v1alpha1.Operation
	ring      keyring.Ring
	published []string
	// servers are the API servers, by what each trusts.
	servers [][]string
	kept    []string
	marks   map[string]time.Time
	sealed  map[string]bool
	// view is what the signer knows of the Secret.
	view    keyring.Ring
	issued  []certificate
	ends    map[string]time.Time
	made    int
	refused []string
	taken   []Action
	// accepted are the CAs whose certificates may break, as their owner said.
	accepted map[string]bool
	wrong    string
	// crash, if set, says before each write whether the process dies there.
	crash func() bool
}

type certificate struct {
	ca       string
	notAfter time.Time
}

func newWorld() *world {
	return &world{
		now:     time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		spec:    v1alpha1.SigningAuthoritySpec{Signers: []string{certificatesv1.KubeAPIServerClientKubeletSignerName}},
		servers: [][]string{nil, nil},
		marks:   map[string]time.Time{}, sealed: map[string]bool{}, ends: map[string]time.Time{}, accepted: map[string]bool{},
		crash: func() bool { return false },
	}
}

// pair makes a CA.
func (w *world) pair() keyring.Pair {
	w.made++
	name := "ca" + strconv.Itoa(w.made)
	w.ends[name] = w.now.Add(10 * 365 * 24 * time.Hour)
	return keyring.Pair{Cert: []byte(name), Key: []byte("key-" + name)}
}

func (w *world) facts(pair keyring.Pair) *CAFacts {
	if pair.Empty() {
		return nil
	}
	name := string(pair.Cert)
	return &CAFacts{KeyID: name, Fingerprint: name, Certificate: name, NotAfter: w.ends[name]}
}

func (w *world) trusted(name string, want bool) Proof {
	proof := Proof{Proven: len(w.servers) > 0}
	for i, trusts := range w.servers {
		if slices.Contains(trusts, name) != want {
			proof.Proven = false
			proof.Missing = append(proof.Missing, fmt.Sprintf("server %d", i))
		}
	}
	return proof
}

func (w *world) wanted() []string {
	var names []string
	for _, one := range Trusted(&w.status) {
		names = append(names, one.Certificate)
	}
	return names
}

func (w *world) permit() keyring.Permit {
	return keyring.Permit{Authority: "cluster", Signers: w.spec.Signers, LifetimeCap: 24 * time.Hour}
}

func (w *world) look() Facts {
	f := Facts{
		Now: w.now, Operation: w.operation, Published: slices.Equal(w.published, w.wanted()),
		Ring: RingFacts{TLS: w.facts(w.ring.TLS), Signing: w.facts(w.ring.Signing), Candidate: w.facts(w.ring.Candidate), Retiring: w.facts(w.ring.Retiring)},
	}
	f.Permitted = permitted(w.ring, w.permit())
	f.Candidate = w.trusted(string(w.ring.Candidate.Cert), true)
	f.Signing = w.trusted(string(w.ring.Signing.Cert), true)
	if retiring := string(w.ring.Retiring.Cert); retiring != "" {
		f.RetiringTrusted, f.RetiringRefused = w.trusted(retiring, true), w.trusted(retiring, false)
		f.Kept = slices.Contains(w.kept, retiring)
		f.Sealed = w.sealed[retiring]
		if mark := w.marks[retiring]; !mark.IsZero() {
			f.Outstanding = []v1alpha1.Outstanding{{Signer: "s", Count: 1, Until: metav1.NewTime(mark)}}
		}
	}
	return f
}

// reconcile is one look at the world with what follows, each write of which the process may not live to see. It says
// whether there was anything to do.
func (w *world) reconcile() bool {
	step := Next(&w.spec, &w.status, w.look())
	busy := step.Take || step.Action != None || !equality.Semantic.DeepEqual(step.Status, w.status)
	if w.crash() {
		return true
	}
	w.status = step.Status
	if step.Refused != "" {
		w.refused = append(w.refused, step.Refused)
	}
	if w.status.Retiring != nil && w.status.Retiring.OutstandingAcceptedAt != nil {
		w.accepted[w.status.Retiring.Certificate] = true
	}
	if w.crash() {
		return true
	}
	if step.Take {
		w.operation = ""
	}
	if step.Action != None && !w.crash() {
		w.act(step.Action)
	}
	return busy
}

func (w *world) act(action Action) {
	w.taken = append(w.taken, action)
	retiring := string(w.ring.Retiring.Cert)
	switch {
	case action == Switch && !w.trusted(string(w.ring.Candidate.Cert), true).Proven:
		w.wrong = "switched to a CA that not every API server trusts"
	case action == DestroyRetiring && !w.trusted(retiring, false).Proven:
		w.wrong = "destroyed a key that an API server still trusts"
	}
	switch {
	case turning[action] != nil:
		made := keyring.Pair{}
		if action == MakeCandidate {
			made = w.pair()
		}
		ring, err := turn(w.ring, action, made, w.permit())
		if err != nil {
			panic(err)
		}
		w.ring = ring
	case action == Publish:
		w.published = w.wanted()
	case action == Seal:
		w.sealed[retiring] = true
	case action == Unseal:
		w.sealed[retiring] = false
	case action == Prune:
		w.kept = slices.DeleteFunc(w.kept, func(name string) bool { return name == retiring })
	default:
		panic("what is " + action)
	}
}

// sign is the signer's work: by the Secret as it knows it, and by the ledger as that is.
func (w *world) sign(lifetime time.Duration) {
	name := string(w.view.Signing.Cert)
	if name == "" {
		return
	}
	if longest := w.view.Permit.LifetimeCap; longest > 0 {
		lifetime = min(lifetime, longest)
	}
	notAfter := w.now.Add(lifetime)
	if notAfter.After(w.marks[name]) {
		if w.sealed[name] {
			return
		}
		w.marks[name] = notAfter.Add(lifetime / 16)
	}
	w.issued = append(w.issued, certificate{name, notAfter})
}

// broken says what must never be.
func (w *world) broken() string {
	if w.wrong != "" {
		return w.wrong
	}
	for _, cert := range w.issued {
		if cert.notAfter.After(w.now) && !w.accepted[cert.ca] && !slices.Contains(w.published, cert.ca) {
			return fmt.Sprintf("a certificate of %s lives until %s, and %v is published", cert.ca, cert.notAfter, w.published)
		}
	}
	if s := w.status.Signing; s != nil && string(w.ring.Signing.Cert) != s.Certificate && string(w.ring.Retiring.Cert) != s.Certificate {
		return fmt.Sprintf("the key of %s, which signs, is lost: %s", s.Certificate, w)
	}
	if r := w.status.Retiring; r != nil && w.status.UnpublishedAt == nil && string(w.ring.Signing.Cert) != r.Certificate && string(w.ring.Retiring.Cert) != r.Certificate {
		return fmt.Sprintf("the key of %s, which may sign again, is lost: %s", r.Certificate, w)
	}
	return ""
}

func (w *world) String() string {
	return fmt.Sprintf("%s gen %d intent %q op %q tls %s signing %s candidate %s retiring %s published %v servers %v refused %s",
		w.status.Phase, w.status.Generation, w.status.Intent, w.operation, w.ring.TLS.Cert, w.ring.Signing.Cert, w.ring.Candidate.Cert,
		w.ring.Retiring.Cert, w.published, w.servers, strings.Join(w.refused, " | "))
}

// follow has every API server and the signer see what is there.
func (w *world) follow() {
	for i := range w.servers {
		w.servers[i] = slices.Clone(w.published)
	}
	w.view = w.ring
}

// settle goes on until there is nothing to do, with everybody following.
func (w *world) settle() error {
	for range 100 {
		w.follow()
		if !w.reconcile() {
			return nil
		}
	}
	return fmt.Errorf("never at rest: %s", w)
}
