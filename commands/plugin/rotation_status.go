package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
)

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

// notMoved holds the nodes that use another CA than the one that signs.
type notMoved struct {
	Nodes []nodeReport `json:"nodes"`
	// Problems say why the list is incomplete.
	Problems []string `json:"problems,omitempty"`
}

// nodeReport is the newest certificate of a node. Signer, KeyID and Expires are empty if the manager has seen none.
type nodeReport struct {
	Node    string       `json:"node"`
	Signer  string       `json:"signer,omitempty"`
	KeyID   string       `json:"keyID,omitempty"`
	Expires *metav1.Time `json:"expires,omitempty"`
	// Deleted reports that the Node object is gone.
	Deleted bool `json:"deleted,omitempty"`
}

// status prints the status of objs.
func (r *rotation) status(ctx context.Context, objs []v1alpha1.SigningAuthority, asJSON bool) error {
	var items []*authorityReport
	for i := range objs {
		obj := &objs[i]
		item := &authorityReport{
			Name: obj.Name, Signers: obj.Spec.Signers, Requested: requested(obj), Status: obj.Status,
			Allowed: append([]v1alpha1.Operation{}, v1alpha1.Allowed(obj.Status.Phase)...), // never null
		}
		if obj.Status.Retiring != nil {
			item.NotMoved = r.notMoved(ctx, obj)
		}
		items = append(items, item)
	}
	return r.write(r.out, asJSON, map[string]any{"items": items}, func(p *page) {
		for _, item := range items {
			p.authority(item)
		}
	})
}

func (p *page) authority(item *authorityReport) {
	status := &item.Status
	p.title(fmt.Sprintf("SigningAuthority %s: %s, generation %d", item.Name, phase(status), status.Generation))
	p.row("signs for", item.Signers...)
	if item.Requested != "" {
		p.row("requested", item.Requested.Command())
	}
	if status.Intent != "" {
		p.row("step", status.Intent)
	}
	if last := status.LastOperation; last != nil {
		p.row("last", last.Name.Command()+", "+strings.ToLower(string(last.Result))+" "+p.age(last.Time.Time))
		if last.Message != "" {
			p.row("", last.Message)
		}
	}
	p.row("allowed now", v1alpha1.AllowedText(status.Phase))
	if status.LastCompletedTime != nil {
		p.row("completed", p.age(status.LastCompletedTime.Time))
	}
	p.cas(status)
	if len(status.WaitingFor) > 0 {
		p.title("Waiting:")
	}
	for _, each := range status.WaitingFor {
		p.line("  - " + each)
	}
	if item.NotMoved != nil {
		p.nodes(item.NotMoved)
	}
}

// cas writes the CAs, with what the administrator has stated about them.
func (p *page) cas(status *v1alpha1.SigningAuthorityStatus) {
	rows := [][]string{{"CA", "KEY ID", "GEN", "EXPIRES", "SIGNS SINCE", "NOTES"}}
	roles := []string{"candidate", "signing", "retiring"}
	for i, ca := range []*v1alpha1.CAStatus{status.Candidate, status.Signing, status.Retiring} {
		if ca == nil {
			continue
		}
		var notes []string
		texts := []string{"adopted", "attested", "trust confirmed", "outstanding accepted"}
		for j, at := range []*metav1.Time{ca.AdoptedAt, ca.AttestedAt, ca.TrustConfirmedAt, ca.OutstandingAcceptedAt} {
			if at != nil {
				notes = append(notes, texts[j])
			}
		}
		rows = append(rows, []string{
			roles[i], ca.KeyID, strconv.FormatInt(ca.Generation, 10), p.age(ca.NotAfter.Time), p.age(ptr.Deref(ca.SignsSince, metav1.Time{}).Time), strings.Join(notes, ", "),
		})
	}
	p.table(rows)
}

// nodes writes the nodes that have not moved.
func (p *page) nodes(found *notMoved) {
	rows := [][]string{{"NODE NOT MOVED YET", "SIGNER", "KEY ID", "EXPIRES"}}
	for _, node := range found.Nodes {
		name := node.Node
		if node.Deleted {
			name += " (Node deleted)"
		}
		signer, keyID := strings.TrimPrefix(node.Signer, "kubernetes.io/"), cmp.Or(node.KeyID, "none seen by the manager yet")
		rows = append(rows, []string{name, signer, keyID, p.age(ptr.Deref(node.Expires, metav1.Time{}).Time)})
	}
	p.table(rows)
	if len(rows) == 1 && len(found.Problems) == 0 {
		p.title("No node is known to use a certificate of the old CA.")
	}
	for _, problem := range found.Problems {
		p.title("The list of nodes that have not moved is incomplete: " + problem)
	}
}

// notMoved finds the nodes that have not moved. It leaves out what the user may not read, and notes the problem.
func (r *rotation) notMoved(ctx context.Context, obj *v1alpha1.SigningAuthority) *notMoved {
	found := &notMoved{Nodes: []nodeReport{}}
	existing, seen := sets.New[string](), sets.New[string]()
	listErr := each(ctx, r.CoreV1().Nodes().List, metav1.ListOptions{}, func(node *corev1.Node) { existing.Insert(node.Name) })
	readErr := r.eachNoted(ctx, obj.Spec.Secret, func(node string, newest certificates) {
		seen.Insert(node)
		for signer, one := range newest {
			if !r.now().After(one.NotAfter.Time) && (obj.Status.Signing == nil || one.KeyID != obj.Status.Signing.KeyID) {
				deleted := listErr == nil && !existing.Has(node)
				found.Nodes = append(found.Nodes, nodeReport{node, signer, one.KeyID, &one.NotAfter, deleted})
			}
		}
	})
	if readErr == nil && slices.Contains(obj.Spec.Signers, certificatesv1.KubeAPIServerClientKubeletSignerName) {
		for node := range existing.Difference(seen) {
			found.Nodes = append(found.Nodes, nodeReport{Node: node})
		}
	}
	right := fmt.Sprintf("get ConfigMaps %s-nodes-00 to -0f in namespace %s", obj.Spec.Secret.Name, obj.Spec.Secret.Namespace)
	for i, err := range []error{readErr, listErr} {
		if err != nil {
			found.Problems = append(found.Problems, strings.TrimPrefix(check.ReadError([]string{right, "list nodes"}[i], err), "unknown: "))
		}
	}
	slices.SortFunc(found.Nodes, func(a, b nodeReport) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Signer, b.Signer)) })
	return found
}

// certificates are the newest certificates of a node, by signer, as the manager stores them.
type certificates map[string]struct {
	KeyID    string      `json:"keyID"`
	NotAfter metav1.Time `json:"notAfter"`
}

// eachNoted calls do for each node whose certificates the manager has noted, in the ConfigMaps NAME-nodes-00 to -0f beside
// the Secret NAME.
func (r *rotation) eachNoted(ctx context.Context, secret v1alpha1.SecretReference, do func(node string, newest certificates)) error {
	for shard := range 16 {
		name := fmt.Sprintf("%s-nodes-%02x", secret.Name, shard)
		noted, err := r.CoreV1().ConfigMaps(secret.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		for node, text := range noted.Data {
			var newest certificates
			if err := json.Unmarshal([]byte(text), &newest); err != nil {
				return fmt.Errorf("ConfigMap %s: %w", name, err)
			}
			do(node, newest)
		}
	}
	return nil
}
