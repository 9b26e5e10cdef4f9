package commands

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ledger"
)

// stayed are the nodes whose newest certificate is not of the CA that signs, and those that nothing is known of.
type stayed struct {
	certificates []ledger.Certificate
	unknown      []string
	// deleted are nodes with a certificate, and no Node.
	deleted map[string]bool
	// problems are why something is missing here.
	problems []error
}

// stayed finds the nodes that have not moved. What it may not read it leaves out, and says so.
func (r *rotation) stayed(ctx context.Context, obj *v1alpha1.SigningAuthority) *stayed {
	s := &stayed{deleted: map[string]bool{}}
	secret := types.NamespacedName{Namespace: obj.Spec.Secret.Namespace, Name: obj.Spec.Secret.Name}
	newest, err := ledger.NewNodes(nil, r.api, secret, r.clock).Read(ctx) // nothing is written without Flush
	if err != nil {
		s.problems = append(s.problems, explained(err, "get on the configmaps "+secret.Name+"-nodes-00 to -0f in namespace "+secret.Namespace))
	}
	for _, certificate := range newest {
		if signing := obj.Status.Signing; signing == nil || certificate.KeyID != signing.KeyID {
			s.certificates = append(s.certificates, certificate)
		}
	}
	nodes := &metav1.PartialObjectMetadataList{}
	nodes.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NodeList"))
	if err := r.api.List(ctx, nodes); err != nil {
		s.problems = append(s.problems, explained(err, "list on nodes"))
		return s
	}
	exists := map[string]bool{}
	for i := range nodes.Items {
		exists[nodes.Items[i].Name] = true
	}
	for _, certificate := range s.certificates {
		s.deleted[certificate.Node] = !exists[certificate.Node]
	}
	if slices.Contains(obj.Spec.Signers, certificatesv1.KubeAPIServerClientKubeletSignerName) && (err == nil || len(newest) > 0) {
		s.unknown = without(exists, newest)
	}
	return s
}

// without returns the sorted names of the nodes that have none of certificates.
func without(nodes map[string]bool, certificates []ledger.Certificate) []string {
	remaining := maps.Clone(nodes)
	for _, certificate := range certificates {
		delete(remaining, certificate.Node)
	}
	return slices.Sorted(maps.Keys(remaining))
}

// explained says what to grant if that is what is missing.
func explained(err error, right string) error {
	if apierrors.IsForbidden(err) {
		return errors.New("you may not: it needs " + right)
	}
	return err
}

// nodes lists who has not moved.
func (p *statusPage) nodes(s *stayed) {
	rows := [][]string{{"NOT MOVED YET", "SIGNER", "KEY ID", "ENDS"}}
	for _, one := range s.certificates {
		name := one.Node
		if s.deleted[name] {
			name += " (no Node any more)"
		}
		rows = append(rows, []string{name, strings.TrimPrefix(one.Signer, "kubernetes.io/"), one.KeyID, p.end(one.NotAfter)})
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
