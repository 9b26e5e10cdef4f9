package commands

import (
	"bytes"
	"cmp"
	"context"
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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// status prints a page for each of objs.
func (r *rotation) status(ctx context.Context, objs []v1alpha1.SigningAuthority) error {
	for i := range objs {
		page := statusPage{now: r.clock.Now()}
		if i > 0 {
			page.line("")
		}
		page.authority(&objs[i])
		if objs[i].Status.Retiring != nil {
			page.nodes(r.stayed(ctx, &objs[i]))
		}
		if _, err := r.out.Write(page.text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// statusPage is what a person reads.
type statusPage struct {
	text bytes.Buffer
	now  time.Time
}

func (p *statusPage) line(format string, args ...any) {
	p.text.WriteString(oneLine(fmt.Sprintf(format, args...)) + "\n")
}

// table writes an empty line and rows, of which the first is the heading. It writes nothing if that is the only one.
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

func (p *statusPage) authority(obj *v1alpha1.SigningAuthority) {
	status := &obj.Status
	p.line("SigningAuthority %s: %s, generation %d", obj.Name, phase(status), status.Generation)
	p.line("signs for %s", strings.Join(obj.Spec.Signers, ", "))
	if pending := obj.Annotations[v1alpha1.OperationAnnotation]; pending != "" {
		p.line("asked for: %s", pending)
	}
	if status.Intent != "" {
		p.line("at: %s", status.Intent)
	}
	p.line("allowed now: %s", v1alpha1.AllowedText(status.Phase))
	if status.LastCompletedAt != nil {
		p.line("last rotation completed: %s", p.since(status.LastCompletedAt))
	}
	p.cas(status)
	if len(status.WaitingFor) > 0 {
		p.line("")
		p.line("Waits for")
		for _, each := range status.WaitingFor {
			p.line("- %s", each)
		}
	}
	rows := [][]string{{"API SERVER", "ANSWER", "SINCE", "EVIDENCE"}}
	for _, server := range status.APIServers {
		rows = append(rows, []string{server.Address, server.Trust, p.since(server.Since), server.Evidence})
	}
	p.table(rows)
	rows = [][]string{{"STILL ON THE RETIRING CA", "AT MOST", "UNTIL"}}
	for _, outstanding := range status.Outstanding {
		count := "unknown"
		if outstanding.Count > 0 {
			count = strconv.FormatInt(outstanding.Count, 10)
		}
		rows = append(rows, []string{cmp.Or(outstanding.Signer, "issued by others"), count, p.end(outstanding.Until.Time)})
	}
	p.table(rows)
	rows = [][]string{{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, condition := range status.Conditions {
		rows = append(rows, []string{condition.Type, string(condition.Status), condition.Reason, condition.Message})
	}
	p.table(rows)
}

// cas writes the CAs, with what their owner has said of them.
func (p *statusPage) cas(status *v1alpha1.SigningAuthorityStatus) {
	rows := [][]string{{"CA", "KEY ID", "GENERATION", "ENDS", "SIGNS SINCE", "OWNER"}}
	for _, each := range []struct {
		role string
		ca   *v1alpha1.CAStatus
	}{{"candidate", status.Candidate}, {"signing", status.Signing}, {"retiring", status.Retiring}} {
		ca := each.ca
		if ca == nil {
			continue
		}
		var owner []string
		for _, statement := range []struct {
			text string
			at   *metav1.Time
		}{
			{"brought it", ca.AdoptedAt}, {"attested", ca.AttestedAt}, {"confirmed its trust", ca.TrustConfirmedAt},
			{"accepts that it breaks", ca.OutstandingAcceptedAt},
		} {
			if statement.at != nil {
				owner = append(owner, statement.text)
			}
		}
		rows = append(rows, []string{
			each.role, ca.KeyID, strconv.FormatInt(ca.Generation, 10), p.end(ca.NotAfter.Time), p.since(ca.SignsSince),
			strings.Join(owner, ", "),
		})
	}
	p.table(rows)
}

// end returns the text for the end of a certificate or a CA.
func (p *statusPage) end(at time.Time) string {
	text := at.UTC().Format(time.RFC3339)
	if left := at.Sub(p.now); left > 0 {
		return fmt.Sprintf("%s (in %s)", text, duration.HumanDuration(left))
	}
	return text + " (over)"
}

func (p *statusPage) since(at *metav1.Time) string {
	if at == nil {
		return ""
	}
	return fmt.Sprintf("%s (%s)", at.UTC().Format(time.RFC3339), duration.HumanDuration(p.now.Sub(at.Time)))
}

// stayed holds the nodes that have not moved to the CA that signs.
type stayed struct {
	// certificates are the newest ones of nodes, if another CA has issued them.
	certificates []ledger.Certificate
	// unknown are the nodes without a certificate in the list.
	unknown []string
	// deleted are nodes with a certificate, and no Node.
	deleted map[string]bool
	// problems are why the list is incomplete.
	problems []error
}

// stayed finds the nodes that have not moved. It leaves out what it may not read, and notes the problem.
func (r *rotation) stayed(ctx context.Context, obj *v1alpha1.SigningAuthority) *stayed {
	s := &stayed{deleted: map[string]bool{}}
	secret := types.NamespacedName{Namespace: obj.Spec.Secret.Namespace, Name: obj.Spec.Secret.Name}
	newest, err := ledger.NewNodes(nil, r.api, secret, r.clock).Read(ctx) // nothing is written without Flush
	if err != nil {
		right := fmt.Sprintf("get on the configmaps %s-nodes-00 to -0f in namespace %s", secret.Name, secret.Namespace)
		s.problems = append(s.problems, withRight(err, right))
	}
	known := sets.New[string]()
	for _, certificate := range newest {
		known.Insert(certificate.Node)
		if signing := obj.Status.Signing; signing == nil || certificate.KeyID != signing.KeyID {
			s.certificates = append(s.certificates, certificate)
		}
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := r.api.List(ctx, nodes); err != nil {
		s.problems = append(s.problems, withRight(err, "list on nodes"))
		return s
	}
	existing := sets.New[string]()
	for i := range nodes.Items {
		existing.Insert(nodes.Items[i].Name)
	}
	for _, certificate := range s.certificates {
		s.deleted[certificate.Node] = !existing.Has(certificate.Node)
	}
	signsForNodes := slices.Contains(obj.Spec.Signers, certificatesv1.KubeAPIServerClientKubeletSignerName)
	if signsForNodes && (err == nil || len(newest) > 0) {
		s.unknown = sets.List(existing.Difference(known))
	}
	return s
}

// withRight returns an error that names the missing right, if err says that it is missing.
func withRight(err error, right string) error {
	if apierrors.IsForbidden(err) {
		return errors.New("you may not: it needs " + right)
	}
	return err
}

// nodes writes the nodes that have not moved.
func (p *statusPage) nodes(s *stayed) {
	rows := [][]string{{"NOT MOVED YET", "SIGNER", "KEY ID", "ENDS"}}
	for _, certificate := range s.certificates {
		name, signer := certificate.Node, strings.TrimPrefix(certificate.Signer, "kubernetes.io/")
		if s.deleted[name] {
			name += " (no Node any more)"
		}
		rows = append(rows, []string{name, signer, certificate.KeyID, p.end(certificate.NotAfter)})
	}
	for _, name := range s.unknown {
		rows = append(rows, []string{name, "", "unknown", ""})
	}
	p.table(rows)
	if len(rows) == 1 && len(s.problems) == 0 {
		p.line("")
		p.line("No node is known to have stayed on the old CA.")
	}
	if len(s.unknown) > 0 {
		p.line("unknown: no certificate of it was seen since the manager keeps the list.")
	}
	for _, problem := range s.problems {
		p.line("")
		p.line("The list of nodes that have not moved is incomplete: %s", fmt.Sprint(problem))
	}
}
