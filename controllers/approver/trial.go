package approver

import (
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// opinions bounds how many requests' verdicts a dry run keeps. They are dropped with their request.
	opinions = 1 << 20
	// longestOpinion bounds the sentence of each, in bytes.
	longestOpinion = 512
)

// trial is what a dry run has thought of each request. The zero value is ready.
type trial struct {
	mu    sync.Mutex
	since time.Time  // whole seconds, as creation times are
	last  *lru.Cache // name → opinion
}

// opinion is the last verdict about one request.
type opinion struct {
	Decision
	uid    types.UID
	signer string
	// final is a verdict after which nothing else would have been thought of it.
	final bool
	// compared is that it has been counted.
	compared bool
}

// known says whether there is an opinion at all.
func (o opinion) known() bool { return o.uid != "" }

// open says whether there is anything left to do for a request that another approver has decided or not.
func (o opinion) open(decided bool) bool { return !o.compared && (decided || !o.final) }

// of returns the opinion about obj; it is the zero one if there is none. Another request of the same name was deleted undecided if it has not
// been compared.
func (t *trial) of(obj *certificatesv1.CertificateSigningRequest, now time.Time) opinion {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.last == nil {
		t.since, t.last = now.Truncate(time.Second), lru.New(opinions)
	}
	last, known := t.get(obj.Name)
	if known && last.uid != obj.UID {
		t.last.Remove(obj.Name)
		if !last.compared {
			last.countUndecided()
		}
		return opinion{}
	}
	return last
}

func (t *trial) get(name string) (opinion, bool) {
	if t.last == nil {
		return opinion{}, false
	}
	found, known := t.last.Get(name)
	if !known {
		return opinion{}, false
	}
	return found.(opinion), true
}

// before says whether obj is older than the trial: what was decided about it then was decided without us.
func (t *trial) before(obj *certificatesv1.CertificateSigningRequest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return obj.CreationTimestamp.Time.Before(t.since)
}

// note remembers decision: one that would have been written is final.
func (t *trial) note(obj *certificatesv1.CertificateSigningRequest, decision Decision) opinion {
	t.mu.Lock()
	defer t.mu.Unlock()
	decision.Message = strings.Clone(csr.ShortenTo(decision.Message, longestOpinion))
	last := opinion{
		Decision: decision, uid: obj.UID, signer: obj.Spec.SignerName,
		final: decision.Verdict == Approve || decision.Verdict == Deny,
	}
	t.last.Add(obj.Name, last)
	return last
}

// compared notes that obj has been, and says whether that is news.
func (t *trial) compared(obj *certificatesv1.CertificateSigningRequest) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.get(obj.Name)
	if !known || last.uid != obj.UID || last.compared {
		return false
	}
	last.compared = true
	t.last.Add(obj.Name, last)
	return true
}

// gone forgets the request of that name, and says whether it was never decided.
func (t *trial) gone(name string) (opinion, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last, known := t.get(name)
	if known {
		t.last.Remove(name)
	}
	return last, known && !last.compared
}
