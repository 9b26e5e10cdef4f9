package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

const (
	// listPage is how many objects are read at a time.
	listPage = 500
	// maxChecks bounds how many requests one listing checks against the rules. Each costs up to three calls.
	maxChecks = 100

	waitsForApproval    = "approval"
	waitsForCertificate = "a certificate"

	fromManager = "manager"
	fromRules   = "rules"
	notChecked  = "not checked"
)

// waiting is a request that waits. It holds no more than is printed, because there may be 100,000 of them.
type waiting struct {
	Name      string    `json:"name"`
	Node      string    `json:"node,omitempty"`
	Signer    string    `json:"signer"`
	Requester string    `json:"requester"`
	WaitsFor  string    `json:"waitsFor"`
	Since     time.Time `json:"since"`
	Reason    string    `json:"reason,omitempty"`
	// ReasonFrom is "manager" if the last Event has the reason, and "rules" if the rules give it now.
	ReasonFrom string `json:"reasonFrom,omitempty"`

	uid    types.UID
	said   *check.Statement
	newest bool // of its node
}

// reasonText returns the reason as it is printed.
func (w *waiting) reasonText() string {
	switch {
	case w.Reason == "":
		return notChecked
	case w.ReasonFrom == fromRules:
		return w.Reason + " (now)"
	default:
		return w.Reason
	}
}

// nodeGroup holds the requests of one node.
type nodeGroup struct {
	Node     string    `json:"node"`
	Requests int       `json:"requests"`
	Oldest   time.Time `json:"oldest"`
	Newest   waiting   `json:"newest"`
}

// groupByNode returns a group for each node, in the order of its oldest request. rows are sorted by age.
func groupByNode(rows []waiting) []nodeGroup {
	groups, index := []nodeGroup{}, map[string]int{}
	for _, row := range rows {
		i, known := index[row.Node]
		if !known {
			i = len(groups)
			index[row.Node] = i
			groups = append(groups, nodeGroup{Node: row.Node, Oldest: row.Since})
		}
		groups[i].Requests++
		groups[i].Newest = row
	}
	return groups
}

// lister lists the requests that wait.
type lister struct {
	reader    client.Reader
	explainer *explain.Explainer
	clock     clock.PassiveClock
	byNode    bool
	signer    string
	program   string
	aside     io.Writer

	warned map[string]bool
}

// warn writes text to aside, once.
func (l *lister) warn(text string) {
	if l.warned == nil {
		l.warned = map[string]bool{}
	}
	if !l.warned[text] {
		l.warned[text] = true
		_, _ = fmt.Fprintln(l.aside, text)
	}
}

// list returns the requests that wait, the oldest first, with their reasons.
func (l *lister) list(ctx context.Context) ([]waiting, error) {
	rows, err := l.requests(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(rows, func(a, b waiting) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Name, b.Name))
	})
	last := map[string]int{}
	for i := range rows {
		last[rows[i].Node] = i
	}
	for _, i := range last {
		rows[i].newest = true
	}
	if len(rows) > 0 {
		l.addEvents(ctx, rows)
	}
	l.addRules(ctx, rows)
	return rows, nil
}

// requests returns the requests that wait, in any order and without reasons.
func (l *lister) requests(ctx context.Context) ([]waiting, error) {
	var rows []waiting
	options := []client.ListOption{client.Limit(listPage)}
	if l.signer != "" {
		options = append(options, client.MatchingFields{"spec.signerName": l.signer})
	}
	for next := ""; ; {
		list := &certificatesv1.CertificateSigningRequestList{}
		switch err := l.reader.List(ctx, list, append(options, client.Continue(next))...); {
		case apierrors.IsForbidden(err):
			return nil, fmt.Errorf("may not list certificatesigningrequests: run this as a user who may: %w", err)
		case apierrors.IsResourceExpired(err):
			return nil, errors.New("list requests: the list took so long that the API server ended it; run the command again")
		case err != nil:
			return nil, fmt.Errorf("list requests: %w", err)
		}
		for i := range list.Items {
			if row, waits := l.waits(&list.Items[i]); waits {
				rows = append(rows, row)
			}
		}
		if next = list.Continue; next == "" {
			return rows, nil
		}
	}
}

// waits returns the row of obj, and whether obj waits for anything but the cleaner.
func (l *lister) waits(obj *certificatesv1.CertificateSigningRequest) (waiting, bool) {
	row := waiting{
		Name: obj.Name, Signer: obj.Spec.SignerName, Requester: csr.Shorten(obj.Spec.Username),
		Since: obj.CreationTimestamp.Time, uid: obj.UID,
	}
	switch csr.StateOf(obj) {
	case csr.Pending:
		row.WaitsFor = waitsForApproval
	case csr.Approved:
		row.WaitsFor = waitsForCertificate
		if at := csr.ApprovedAt(obj); !at.IsZero() {
			row.Since = at
		}
	default:
		return row, false
	}
	if req, err := l.explainer.Limits().Parse(obj); err == nil {
		row.Node = csr.Shorten(req.NodeName())
	}
	return row, true
}

// addEvents sets the reason of each row that the manager has written an Event about. It reads all Events about
// requests, page by page, because one call for each request would be many more.
func (l *lister) addEvents(ctx context.Context, rows []waiting) {
	byUID := make(map[types.UID]*waiting, len(rows))
	for i := range rows {
		byUID[rows[i].uid] = &rows[i]
	}
	for next := ""; ; {
		list := &corev1.EventList{}
		err := l.reader.List(ctx, list, client.InNamespace(corev1.NamespaceDefault), client.Limit(listPage),
			client.MatchingFields{"involvedObject.kind": "CertificateSigningRequest"}, client.Continue(next))
		if err != nil {
			l.warn(fmt.Sprintf("What the manager said is %s. The reasons are what the rules say now.",
				check.ReadError("list events in namespace "+corev1.NamespaceDefault, err)))
			return
		}
		for i := range list.Items {
			if row := byUID[list.Items[i].InvolvedObject.UID]; row != nil {
				row.hear(&list.Items[i])
			}
		}
		if next = list.Continue; next == "" {
			return
		}
	}
}

// hear sets the reason to that of event, if the controller in charge has written event, and if event is later than the
// known reason.
func (w *waiting) hear(event *corev1.Event) {
	inCharge := approver.Name
	if w.WaitsFor == waitsForCertificate {
		inCharge = signer.Name
	}
	said := check.LastStatement([]corev1.Event{*event}, inCharge)
	if said == nil || w.said != nil && !said.At.After(w.said.At) {
		return
	}
	w.said, w.Reason, w.ReasonFrom = said, csr.Shorten(said.Reason), fromManager
}

// addRules sets the reason of the rows without an Event to what the rules say now. It checks at most maxChecks rows,
// the oldest first; with byNode only the newest row of each node.
func (l *lister) addRules(ctx context.Context, rows []waiting) {
	checks, left := 0, 0
	for i := range rows {
		row := &rows[i]
		switch {
		case row.Reason != "" || l.byNode && !row.newest:
			continue
		case !l.explainer.Configured(row.Signer):
			row.Reason, row.ReasonFrom = "signer not configured", fromRules
			continue
		case checks == maxChecks:
			left++
			continue
		}
		checks++
		l.check(ctx, row)
	}
	if checks > 0 {
		l.warn("(now): the manager has written no Event about the request; this is what the rules say now.")
	}
	if left > 0 {
		l.warn(fmt.Sprintf("The rules were checked for %d requests; %d others show %q. To see more, use --signer or "+
			"--by-node, or %s explain NAME.", maxChecks, left, notChecked, l.program))
	}
}

// check sets the reason of row to what the rules say now.
func (l *lister) check(ctx context.Context, row *waiting) {
	obj := &certificatesv1.CertificateSigningRequest{}
	row.ReasonFrom = fromRules
	if err := l.reader.Get(ctx, client.ObjectKey{Name: row.Name}, obj); err != nil || obj.UID != row.uid {
		row.Reason = "deleted"
		return
	}
	row.Reason = reasonNow(l.explainer.Judge(ctx, obj))
}

// reasonNow returns the reason of f in one word or a few.
func reasonNow(f *explain.Findings) string {
	switch {
	case f.State == csr.Approved && !f.Served:
		return "signer not configured"
	case f.State == csr.Approved && f.Judged.Authority != nil:
		return "can be signed"
	case f.State == csr.Approved:
		return f.Judged.Reason
	case f.State != csr.Pending:
		return string(f.State)
	case f.Undecidable != nil:
		return "unknown"
	case f.Rule == nil:
		return "no rule"
	case f.Decision.Verdict == verdict.Approve:
		return "can be approved"
	default:
		return f.Decision.Reason
	}
}
