package explain

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"slices"
	"strconv"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// renewalsPage is how many requests are read at a time, and maxRenewalsRead bounds how many are read.
	renewalsPage, maxRenewalsRead = 50, 20_000
)

// link has the part of a request that connects it with others in a chain of renewals.
type link struct {
	name, signer string
	created      time.Time
	state        csr.State
	with         []string // the SHA-256 of the certificates with which the request was made
	issued       string   // the SHA-256 of its own certificate; empty if it has none
}

// links finds requests by the certificates that connect them.
type links struct {
	issued, with map[string][]link // by SHA-256, the oldest first
	unread       error             // why they are not known
	incomplete   bool              // there are more than maxRenewalsRead requests
}

func linkOf(obj *certificatesv1.CertificateSigningRequest) link {
	of := link{
		name: obj.Name, signer: obj.Spec.SignerName, created: obj.CreationTimestamp.Time, state: csr.StateOf(obj),
		with: csr.Requester{Extra: obj.Spec.Extra}.Certificates(),
	}
	if block, _ := pem.Decode(obj.Status.Certificate); block != nil {
		sum := sha256.Sum256(block.Bytes)
		of.issued = hex.EncodeToString(sum[:])
	}
	return of
}

// readRenewals reads the stored requests if the request of f can be part of a chain of renewals. No controller keeps
// what connects the requests, so it reads them from the API server.
func (e *Explainer) readRenewals(ctx context.Context, f *Findings) {
	if self := linkOf(f.obj); self.issued == "" && len(self.with) == 0 {
		return
	}
	f.renewals = &links{}
	var all []link
	for next := ""; ; {
		list := &certificatesv1.CertificateSigningRequestList{}
		f.renewals.unread = e.reader.List(ctx, list, client.Limit(renewalsPage), client.Continue(next))
		for i := range list.Items {
			all = append(all, linkOf(&list.Items[i]))
		}
		next = list.Continue
		f.renewals.incomplete = next != "" && len(all) >= maxRenewalsRead
		if f.renewals.unread != nil || next == "" || f.renewals.incomplete {
			break
		}
	}
	f.renewals.index(all)
}

// index sets the maps of l.
func (l *links) index(all []link) {
	slices.SortFunc(all, func(a, b link) int {
		return cmp.Or(a.created.Compare(b.created), cmp.Compare(a.name, b.name))
	})
	l.issued, l.with = map[string][]link{}, map[string][]link{}
	for _, each := range all {
		if each.issued != "" {
			l.issued[each.issued] = append(l.issued[each.issued], each)
		}
		for _, sum := range each.with {
			l.with[sum] = append(l.with[sum], each)
		}
	}
}

// before returns the requests that got a certificate with which of was made.
func (l *links) before(of link) []link {
	var found []link
	for _, sum := range of.with {
		found = append(found, l.issued[sum]...)
	}
	return found
}

// after returns the requests that were made with the certificate of of.
func (l *links) after(of link) []link {
	if of.issued == "" {
		return nil
	}
	return l.with[of.issued]
}

// chain returns the links that next leads to from start, the nearest first and each once, at most maxItems. more
// reports that there are others. A signer can store any certificate, so the links may form a circle.
func chain(start link, next func(link) []link) (found []link, more bool) {
	seen := map[string]bool{start.name: true}
	queue := []link{start}
	for len(queue) > 0 {
		for _, each := range next(queue[0]) {
			if seen[each.name] {
				continue
			}
			if len(found) == maxItems {
				return found, true
			}
			seen[each.name] = true
			found, queue = append(found, each), append(queue, each)
		}
		queue = queue[1:]
	}
	return found, false
}

// renewals writes the chain of renewals: the certificates before the certificate of the request, and those after it.
func renewals(p *page, f *Findings) {
	l := f.renewals
	if l == nil {
		return
	}
	p.title("Renewals")
	if l.unread != nil {
		p.row("chain", unknown(l.unread, "list certificatesigningrequests"))
		return
	}
	self := linkOf(f.obj)
	earlier, more := chain(self, l.before)
	l.writeBefore(p, f, "made with", self)
	for _, each := range earlier {
		l.writeBefore(p, f, "earlier", each)
	}
	if more {
		p.row("earlier", fmt.Sprintf("more: only %d requests are shown", maxItems))
	}
	later, more := chain(self, l.after)
	for _, each := range later {
		l.writeAfter(p, f, each)
	}
	switch {
	case more:
		p.row("later", fmt.Sprintf("more: only %d requests are shown", maxItems))
	case len(later) == 0 && self.issued != "" && !l.incomplete:
		p.row("later", "none: no stored request was made with this certificate")
	}
	if l.incomplete {
		p.row("unknown", fmt.Sprintf("there are more requests than the %d that were read", maxRenewalsRead))
	}
}

// writeBefore writes each certificate with which of was made, and the requests that it was issued for.
func (l *links) writeBefore(p *page, f *Findings, label string, of link) {
	for _, sum := range of.with {
		values := []string{strconv.Quote(sum)}
		for _, from := range l.issued[sum] {
			if len(values) > maxItems {
				break
			}
			values = append(values, "certificate of "+from.text(f.now))
		}
		switch {
		case len(values) > 1:
		case l.incomplete:
			values = append(values, "unknown: not all requests were read")
		default:
			values = append(values, "of no stored request: the request was deleted, or there was none")
		}
		p.row(label, values...)
	}
}

// writeAfter writes of, which was made with the certificate of the request of f or of a later one.
func (l *links) writeAfter(p *page, f *Findings, of link) {
	text := of.text(f.now) + ", made with certificate"
	for _, sum := range of.with {
		text += " " + sum[:16]
	}
	if of.issued == "" {
		p.row("later", string(of.state)+" "+text)
		return
	}
	p.row("later", strconv.Quote(of.issued), "certificate of "+text)
}

// text returns the request of l in words.
func (l link) text(now time.Time) string {
	return fmt.Sprintf("request %s, created %s, signer %s", quote(l.name), moment(l.created, now), quote(l.signer))
}
