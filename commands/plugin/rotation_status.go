package plugin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
)

// statusReport is what rotation status prints.
type statusReport struct {
	Items []authorityReport `json:"items"`
}

// authorityReport is the status of one SigningAuthority.
type authorityReport struct {
	Name    string   `json:"name"`
	Signers []string `json:"signers"`
	// Requested is the operation that the manager has not picked up yet.
	Requested v1alpha1.Operation `json:"requested,omitempty"`
	// Allowed are the operations that the phase allows.
	Allowed []v1alpha1.Operation            `json:"allowed"`
	Status  v1alpha1.SigningAuthorityStatus `json:"status"`
	// NotMoved are the nodes that use another CA than the one that signs. It is nil unless a CA retires.
	NotMoved *notMoved `json:"notMoved,omitempty"`
}

// status prints the status.
func (r *rotation) status(ctx context.Context) error {
	report, err := r.report(ctx)
	if err != nil {
		return err
	}
	if r.output == "json" {
		return writeJSON(r.out, report)
	}
	page := statusPage{now: r.now()}
	for i := range report.Items {
		if i > 0 {
			page.line("")
		}
		page.authority(&report.Items[i])
	}
	_, err = r.out.Write(page.text.Bytes())
	return err
}

// report reads the status of the authorities.
func (r *rotation) report(ctx context.Context) (*statusReport, error) {
	objs, err := r.named(ctx)
	if err != nil {
		return nil, err
	}
	report := &statusReport{}
	for i := range objs {
		obj := &objs[i]
		item := authorityReport{
			Name: obj.Name, Signers: obj.Spec.Signers, Requested: requested(obj), Status: obj.Status,
			Allowed: append([]v1alpha1.Operation{}, v1alpha1.Allowed(obj.Status.Phase)...),
		}
		if obj.Status.Retiring != nil {
			item.NotMoved = r.notMoved(ctx, obj)
		}
		report.Items = append(report.Items, item)
	}
	return report, nil
}

// statusPage is the table.
type statusPage struct {
	text bytes.Buffer
	now  time.Time
}

func (p *statusPage) line(format string, args ...any) {
	p.text.WriteString(oneLine(fmt.Sprintf(format, args...)) + "\n")
}

// prose writes text after label, in lines of a terminal.
func (p *statusPage) prose(label, text string) { p.text.WriteString(ascii.Wrap(label, oneLine(text))) }

// table writes an empty line and rows. The first row is the heading. It writes nothing if there is no other row.
func (p *statusPage) table(rows [][]string) {
	if len(rows) < 2 {
		return
	}
	for _, row := range rows {
		for i := range row {
			row[i] = cmp.Or(row[i], "-")
		}
	}
	p.line("")
	_ = writeTable(&p.text, rows) // a Buffer takes all
}

func (p *statusPage) authority(item *authorityReport) {
	status := &item.Status
	p.line("SigningAuthority %s: %s, generation %d", item.Name, phase(status), status.Generation)
	p.prose("signs for: ", strings.Join(item.Signers, ", "))
	if item.Requested != "" {
		p.line("requested: %s", item.Requested.Command())
	}
	if status.Intent != "" {
		p.line("current step: %s", status.Intent)
	}
	p.lastOperation(status.LastOperation)
	p.prose("allowed now: ", v1alpha1.AllowedText(status.Phase))
	if status.LastCompletedTime != nil {
		p.line("last rotation completed: %s", p.since(status.LastCompletedTime))
	}
	p.cas(status)
	if len(status.WaitingFor) > 0 {
		p.line("")
		p.line("Waiting:")
		for _, each := range status.WaitingFor {
			p.prose("- ", each)
		}
	}
	rows := [][]string{{"API SERVER", "ANSWER", "SINCE", "EVIDENCE"}}
	for _, server := range status.APIServers {
		rows = append(rows, []string{server.Address, server.Trust, p.since(server.Since), server.Evidence})
	}
	p.table(rows)
	rows = [][]string{{"VALID CERTIFICATES OF THE RETIRING CA", "UNTIL"}}
	for _, outstanding := range status.Outstanding {
		rows = append(rows, []string{cmp.Or(outstanding.Signer, "issued by others"), p.end(outstanding.Until.Time)})
	}
	p.table(rows)
	rows = [][]string{{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, condition := range status.Conditions {
		rows = append(rows, []string{condition.Type, string(condition.Status), condition.Reason, condition.Message})
	}
	p.table(rows)
	if item.NotMoved != nil {
		p.nodes(item.NotMoved)
	}
}

// lastOperation writes the result of the operation that was requested last.
func (p *statusPage) lastOperation(last *v1alpha1.OperationStatus) {
	if last == nil {
		return
	}
	at := metav1.NewTime(last.Time.Time)
	p.line("last operation: %s, %s %s", last.Name.Command(), strings.ToLower(string(last.Result)), p.since(&at))
	if last.Message != "" {
		p.prose("  ", last.Message)
	}
}

// cas writes the CAs, with what the administrator has stated about them.
func (p *statusPage) cas(status *v1alpha1.SigningAuthorityStatus) {
	rows := [][]string{{"CA", "KEY ID", "GEN", "EXPIRES", "SIGNS SINCE", "NOTES"}}
	for _, each := range []struct {
		role string
		ca   *v1alpha1.CAStatus
	}{{"candidate", status.Candidate}, {"signing", status.Signing}, {"retiring", status.Retiring}} {
		ca := each.ca
		if ca == nil {
			continue
		}
		var notes []string
		for _, statement := range []struct {
			text string
			at   *metav1.Time
		}{
			{"adopted", ca.AdoptedAt}, {"attested", ca.AttestedAt}, {"trust confirmed", ca.TrustConfirmedAt},
			{"outstanding accepted", ca.OutstandingAcceptedAt},
		} {
			if statement.at != nil {
				notes = append(notes, statement.text)
			}
		}
		rows = append(rows, []string{
			each.role, ca.KeyID, strconv.FormatInt(ca.Generation, 10), p.end(ca.NotAfter.Time), p.ago(ca.SignsSince),
			strings.Join(notes, ", "),
		})
	}
	p.table(rows)
}

// end returns the text for the instant when a certificate or a CA expires.
func (p *statusPage) end(at time.Time) string {
	return fmt.Sprintf("%s (%s)", p.instant(at), p.left(at))
}

// left returns the text for the time until a certificate or a CA expires.
func (p *statusPage) left(at time.Time) string {
	if left := at.Sub(p.now); left > 0 {
		return "in " + duration.HumanDuration(left)
	}
	return "expired"
}

func (p *statusPage) ago(at *metav1.Time) string {
	if at == nil {
		return ""
	}
	return duration.HumanDuration(p.now.Sub(at.Time)) + " ago"
}

func (p *statusPage) since(at *metav1.Time) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", p.instant(at.Time), duration.HumanDuration(p.now.Sub(at.Time)))
}

// instant returns at to the minute, or to the day if it is more than two days away. The other formats have the seconds.
func (p *statusPage) instant(at time.Time) string {
	if at.Sub(p.now).Abs() > 48*time.Hour {
		return at.UTC().Format(time.DateOnly)
	}
	return at.UTC().Format("2006-01-02T15:04Z")
}

// notMoved holds the nodes that use another CA than the one that signs.
type notMoved struct {
	Nodes []nodeReport `json:"nodes"`
	// Problems say why the list is incomplete.
	Problems []string `json:"problems,omitempty"`
}

// nodeReport is the newest certificate of a node.
type nodeReport struct {
	Node string `json:"node"`
	// Signer, KeyID and Expires are empty if the manager has seen no certificate of the node.
	Signer  string       `json:"signer,omitempty"`
	KeyID   string       `json:"keyID,omitempty"`
	Expires *metav1.Time `json:"expires,omitempty"`
	// Deleted reports that the Node object is gone.
	Deleted bool `json:"deleted,omitempty"`
}

// certificates are the newest certificates of a node, by signer, as the manager stores them.
type certificates map[string]struct {
	KeyID    string    `json:"keyID"`
	NotAfter time.Time `json:"notAfter"`
}

// ofOthers returns the certificates of node that are valid at now and come from another CA than signing.
func (c certificates) ofOthers(signing *v1alpha1.CAStatus, node string, deleted bool, now time.Time) (found []nodeReport) {
	for signer, one := range c {
		if !now.After(one.NotAfter) && (signing == nil || one.KeyID != signing.KeyID) {
			found = append(found, nodeReport{
				Node: node, Signer: signer, KeyID: one.KeyID, Expires: &metav1.Time{Time: one.NotAfter}, Deleted: deleted,
			})
		}
	}
	return found
}

// notMoved finds the nodes that have not moved. It leaves out what the user may not read, and notes the problem.
func (r *rotation) notMoved(ctx context.Context, obj *v1alpha1.SigningAuthority) *notMoved {
	found := &notMoved{Nodes: []nodeReport{}}
	newest, readErr := r.newest(ctx, obj)
	if readErr != nil {
		right := fmt.Sprintf("get ConfigMaps %s-nodes-00 to -0f in namespace %s", obj.Spec.Secret.Name, obj.Spec.Secret.Namespace)
		found.Problems = append(found.Problems, withRight(readErr, right).Error())
	}
	nodes, listErr := r.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if listErr != nil {
		nodes = &corev1.NodeList{}
		found.Problems = append(found.Problems, withRight(listErr, "list nodes").Error())
	}
	existing := map[string]bool{} // stays empty after an error
	for _, node := range nodes.Items {
		existing[node.Name] = true
	}
	for node, certificates := range newest {
		deleted := listErr == nil && !existing[node]
		found.Nodes = append(found.Nodes, certificates.ofOthers(obj.Status.Signing, node, deleted, r.now())...)
	}
	signsForNodes := slices.Contains(obj.Spec.Signers, certificatesv1.KubeAPIServerClientKubeletSignerName)
	for name := range existing {
		if signsForNodes && readErr == nil && newest[name] == nil {
			found.Nodes = append(found.Nodes, nodeReport{Node: name})
		}
	}
	slices.SortFunc(found.Nodes, func(a, b nodeReport) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Signer, b.Signer)) })
	return found
}

// newest returns the certificates of each node that the manager has noted, in the ConfigMaps NAME-nodes-00 to -0f beside
// the Secret NAME.
func (r *rotation) newest(ctx context.Context, obj *v1alpha1.SigningAuthority) (map[string]certificates, error) {
	all := map[string]certificates{}
	for shard := range 16 {
		name := fmt.Sprintf("%s-nodes-%02x", obj.Spec.Secret.Name, shard)
		noted, err := r.CoreV1().ConfigMaps(obj.Spec.Secret.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for node, text := range noted.Data {
			var of certificates
			if err := json.Unmarshal([]byte(text), &of); err != nil {
				return nil, fmt.Errorf("ConfigMap %s: %w", name, err)
			}
			all[node] = of
		}
	}
	return all, nil
}

// withRight returns an error that names the missing right, if err says that it is missing.
func withRight(err error, right string) error {
	if apierrors.IsForbidden(err) {
		return errors.New("you need the right to " + right)
	}
	return err
}

// nodes writes the nodes that have not moved.
func (p *statusPage) nodes(found *notMoved) {
	rows, unknown := [][]string{{"NODE NOT MOVED YET", "SIGNER", "KEY ID", "EXPIRES"}}, false
	for _, node := range found.Nodes {
		name, keyID, expires := node.Node, node.KeyID, ""
		switch {
		case node.Deleted:
			name += " (Node deleted)"
		case keyID == "":
			keyID, unknown = "unknown", true
		}
		if node.Expires != nil {
			expires = p.left(node.Expires.Time)
		}
		rows = append(rows, []string{name, strings.TrimPrefix(node.Signer, "kubernetes.io/"), keyID, expires})
	}
	p.table(rows)
	if len(rows) == 1 && len(found.Problems) == 0 {
		p.line("")
		p.line("No node is known to use a certificate of the old CA.")
	}
	if unknown {
		p.line("unknown: the manager has seen no certificate of this node yet.")
	}
	for _, problem := range found.Problems {
		p.line("")
		p.line("The list of nodes that have not moved is incomplete: %s", problem)
	}
}
