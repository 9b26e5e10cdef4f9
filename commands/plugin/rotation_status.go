package plugin

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
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
	// NotMoved are the nodes that may use another CA than the one that signs. It is nil unless a CA retires.
	NotMoved *notMoved `json:"notMoved,omitempty"`
}

// notMoved holds the nodes that may use another CA than the one that signs.
type notMoved struct {
	Nodes []nodeReport `json:"nodes"`
	// Problems say why the list is not known.
	Problems []string `json:"problems,omitempty"`
}

// nodeReport is a node for which the CA that signs has issued no certificate of these signers, without kubernetes.io/.
type nodeReport struct {
	Node    string   `json:"node"`
	Signers []string `json:"signers"`
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
	roles := []string{"candidate", "renewed", "signing", "retiring"}
	for i, ca := range []*v1alpha1.CAStatus{status.Candidate, status.Renewed, status.Signing, status.Retiring} {
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
		for _, one := range ca.Earlier {
			rows = append(rows, []string{"earlier", ca.KeyID, strconv.FormatInt(ca.Generation, 10), p.age(one.NotAfter.Time), "", ""})
		}
	}
	p.table(rows)
}

// nodes writes the nodes that have not moved.
func (p *page) nodes(found *notMoved) {
	rows := [][]string{{"NODE NOT MOVED YET", "LACKS CERTIFICATES OF"}}
	for _, node := range found.Nodes {
		rows = append(rows, []string{node.Node, strings.Join(node.Signers, ", ")})
	}
	p.table(rows)
	if len(rows) == 1 && len(found.Problems) == 0 {
		p.title("No node lacks a certificate of the CA that signs.")
	}
	for _, problem := range found.Problems {
		p.title("The nodes that have not moved are not known: " + problem)
	}
}

// notMoved finds the nodes of the served cluster for which the CA that signs has not issued what obj serves.
func (r *rotation) notMoved(ctx context.Context, obj *v1alpha1.SigningAuthority) *notMoved {
	found := &notMoved{Nodes: []nodeReport{}}
	moved, readErr := r.moved(ctx, obj)
	listErr := each(ctx, r.served.CoreV1().Nodes().List, metav1.ListOptions{}, func(node *corev1.Node) {
		noted := moved[node.Name]
		if obj.Status.Signing != nil && node.Annotations[movingAnnotation] == obj.Status.Signing.KeyID {
			noted = "" // its certificates were issued, but perhaps its kubelet went back to the old ones
		}
		if lacks := lacking(obj, noted); readErr == nil && len(lacks) > 0 {
			found.Nodes = append(found.Nodes, nodeReport{node.Name, lacks})
		}
	})
	right := fmt.Sprintf("get ConfigMap %s in namespace %s", movedName(obj), obj.Spec.Secret.Namespace)
	for i, err := range []error{readErr, listErr} {
		if err != nil {
			found.Problems = append(found.Problems, strings.TrimPrefix(check.ReadError([]string{right, "list nodes"}[i], err), "unknown: "))
		}
	}
	return found
}

// movedName returns the name of the ConfigMap in which the manager, while a CA retires, notes the certificates of nodes from the CA
// that signs.
func movedName(obj *v1alpha1.SigningAuthority) string { return obj.Spec.Secret.Name + "-moved" }

// moved returns for each node of which signers it has certificates from the CA that signs: short names, separated by commas.
func (r *rotation) moved(ctx context.Context, obj *v1alpha1.SigningAuthority) (map[string]string, error) {
	found, err := r.CoreV1().ConfigMaps(obj.Spec.Secret.Namespace).Get(ctx, movedName(obj), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case obj.Status.Signing == nil || found.Data["keyID"] != obj.Status.Signing.KeyID: // it is of an earlier rotation
		return nil, nil
	}
	return found.Data, nil
}

// lacking returns the signers of kubelets that are not in moved, by short names. A kubelet that makes its own serving certificate
// lacks none: kubelet-serving counts only while certificates of the retiring CA are outstanding, or if obj serves nothing else.
func lacking(obj *v1alpha1.SigningAuthority, moved string) (lacks []string) {
	for _, signer := range obj.Spec.Signers {
		outstanding := slices.ContainsFunc(obj.Status.Outstanding, func(one v1alpha1.Outstanding) bool { return one.Signer == signer })
		optional := signer == certificatesv1.KubeletServingSignerName && len(obj.Spec.Signers) > 1 && !outstanding
		short := strings.TrimPrefix(signer, "kubernetes.io/")
		if builtin, _ := csr.BuiltinSigner(signer); builtin.OfKubelets && !optional && !slices.Contains(strings.Split(moved, ","), short) {
			lacks = append(lacks, short)
		}
	}
	return lacks
}
