package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
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

// status prints the status of objs.
func (r *rotation) status(ctx context.Context, objs []v1alpha1.SigningAuthority) error {
	report := &statusReport{}
	for i := range objs {
		obj := &objs[i]
		item := authorityReport{
			Name: obj.Name, Signers: obj.Spec.Signers, Requested: requested(obj), Status: obj.Status,
			Allowed: append([]v1alpha1.Operation{}, v1alpha1.Allowed(obj.Status.Phase)...), // never null
		}
		if obj.Status.Retiring != nil {
			item.NotMoved = r.notMoved(ctx, obj)
		}
		report.Items = append(report.Items, item)
	}
	if *r.asJSON {
		return writeJSON(r.out, report)
	}
	page := statusPage{explain.NewPage(r.now())}
	for i := range report.Items {
		page.authority(&report.Items[i])
	}
	_, err := io.WriteString(r.out, page.String())
	return err
}

// statusPage is the status as text.
type statusPage struct{ *explain.Page }

func (p statusPage) authority(item *authorityReport) {
	status := &item.Status
	p.Title(fmt.Sprintf("SigningAuthority %s: %s, generation %d", item.Name, phase(status), status.Generation))
	p.Row("signs for", item.Signers...)
	if item.Requested != "" {
		p.Row("requested", item.Requested.Command())
	}
	if status.Intent != "" {
		p.Row("step", status.Intent)
	}
	if last := status.LastOperation; last != nil {
		p.Row("last", last.Name.Command()+", "+strings.ToLower(string(last.Result))+" "+p.Age(last.Time.Time))
		if last.Message != "" {
			p.Row("", last.Message)
		}
	}
	p.Row("allowed now", v1alpha1.AllowedText(status.Phase))
	if status.LastCompletedTime != nil {
		p.Row("completed", p.Age(status.LastCompletedTime.Time))
	}
	p.cas(status)
	if len(status.WaitingFor) > 0 {
		p.Title("Waiting:")
	}
	for _, each := range status.WaitingFor {
		p.Text("- " + each)
	}
	if item.NotMoved != nil {
		p.nodes(item.NotMoved)
	}
}

// cas writes the CAs, with what the administrator has stated about them.
func (p statusPage) cas(status *v1alpha1.SigningAuthorityStatus) {
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
			each.role, ca.KeyID, strconv.FormatInt(ca.Generation, 10), p.age(&ca.NotAfter), p.age(ca.SignsSince),
			strings.Join(notes, ", "),
		})
	}
	p.Table(rows)
}

// age returns the time since at, or until at, or nothing if at is not set.
func (p statusPage) age(at *metav1.Time) string {
	if at.IsZero() {
		return ""
	}
	return p.Age(at.Time)
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
		found.Problems = append(found.Problems, strings.TrimPrefix(check.ReadError(right, readErr), "unknown: "))
	}
	nodes, listErr := r.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if listErr != nil {
		nodes = &corev1.NodeList{}
		found.Problems = append(found.Problems, strings.TrimPrefix(check.ReadError("list nodes", listErr), "unknown: "))
	}
	existing := map[string]bool{}
	signsForNodes := slices.Contains(obj.Spec.Signers, certificatesv1.KubeAPIServerClientKubeletSignerName)
	for _, node := range nodes.Items {
		existing[node.Name] = true
		if signsForNodes && readErr == nil && newest[node.Name] == nil {
			found.Nodes = append(found.Nodes, nodeReport{Node: node.Name})
		}
	}
	for node, certificates := range newest {
		deleted := listErr == nil && !existing[node]
		found.Nodes = append(found.Nodes, certificates.ofOthers(obj.Status.Signing, node, deleted, r.now())...)
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

// nodes writes the nodes that have not moved.
func (p statusPage) nodes(found *notMoved) {
	rows, unknown := [][]string{{"NODE NOT MOVED YET", "SIGNER", "KEY ID", "EXPIRES"}}, false
	for _, node := range found.Nodes {
		name, keyID := node.Node, node.KeyID
		switch {
		case node.Deleted:
			name += " (Node deleted)"
		case keyID == "":
			keyID, unknown = "unknown", true
		}
		rows = append(rows, []string{name, strings.TrimPrefix(node.Signer, "kubernetes.io/"), keyID, p.age(node.Expires)})
	}
	p.Table(rows)
	if len(rows) == 1 && len(found.Problems) == 0 {
		p.Title("No node is known to use a certificate of the old CA.")
	}
	if unknown {
		p.Text("unknown: the manager has seen no certificate of this node yet.")
	}
	for _, problem := range found.Problems {
		p.Title("The list of nodes that have not moved is incomplete: " + problem)
	}
}
