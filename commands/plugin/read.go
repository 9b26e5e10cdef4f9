package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// each calls do for each object that list returns, page by page, because there may be 100,000.
func each[T any, L runtime.Object](
	ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, do func(*T),
) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	})
	return pages.EachListItem(ctx, options, func(obj runtime.Object) error {
		do(any(obj).(*T))
		return nil
	})
}

// requests calls do for each request that the options select.
func (c *cluster) requests(ctx context.Context, options metav1.ListOptions, do func(*certificatesv1.CertificateSigningRequest)) error {
	if err := each(ctx, c.CertificatesV1().CertificateSigningRequests().List, options, do); err != nil {
		return fmt.Errorf("list requests: %w", err)
	}
	return nil
}

// request returns the request called name. Its error says what to do.
func (c *cluster) request(ctx context.Context, name string) (*certificatesv1.CertificateSigningRequest, error) {
	obj, err := c.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no CertificateSigningRequest %q: the name is wrong, or the request was deleted; "+
			"the cleaner deletes an approved one after an hour", name)
	}
	if err != nil {
		return nil, fmt.Errorf("get request: %w", err)
	}
	return obj, nil
}

// ofNode calls do for each request for a certificate of node, by a signer of kubelets.
func (c *cluster) ofNode(ctx context.Context, node string, do func(*certificatesv1.CertificateSigningRequest)) error {
	return c.requests(ctx, metav1.ListOptions{}, func(obj *certificatesv1.CertificateSigningRequest) {
		builtin, _ := csr.BuiltinSigner(obj.Spec.SignerName)
		if builtin.OfKubelets && (csr.Limits{}).NodeOf(obj) == node {
			do(obj.DeepCopy()) // the page itself can be released
		}
	})
}

// The controllers that write Events about requests.
const approverName, signerName = "csr-approver", "csr-signer"

// inCharge returns the controller that acts next on a request in that state, or nothing.
func inCharge(state csr.State) string {
	return map[csr.State]string{csr.Pending: approverName, csr.Approved: signerName}[state]
}

// statement is an Event that says that a controller of the manager wrote it. Whoever may create Events in the namespace
// default can write one.
type statement struct {
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// controllers are the parts of the manager that write Events.
var controllers = []string{
	approverName, signerName, "csr-cleaner", "csr-rotation", "csr-self-check", "csr-block-list", "csr-static-inventory",
}

// events calls do for each statement in the Events in namespace that match selector, with the object that it is about. An
// empty namespace stands for all.
func (c *cluster) events(ctx context.Context, namespace, selector string, do func(about corev1.ObjectReference, said statement)) error {
	list := c.CoreV1().Events(namespace).List
	err := each(ctx, list, metav1.ListOptions{FieldSelector: selector}, func(event *corev1.Event) {
		said := statement{
			By: cmp.Or(event.ReportingController, event.Source.Component), Reason: csr.Shorten(event.Reason),
			Message: csr.ShortenTo(event.Message, maxMessage), At: event.EventTime.UTC(),
		}
		if event.Series != nil {
			said.At = event.Series.LastObservedTime.UTC()
		}
		if slices.Contains(controllers, said.By) {
			do(event.InvolvedObject, said)
		}
	})
	if err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	return nil
}

// said returns what the manager said about obj, the newest first.
func (c *cluster) said(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) ([]statement, error) {
	var all []statement
	// The API server stores Events about objects without a namespace in this namespace.
	err := c.events(ctx, metav1.NamespaceDefault, "involvedObject.uid="+string(obj.UID), func(_ corev1.ObjectReference, said statement) {
		all = append(all, said)
	})
	slices.SortStableFunc(all, newestFirst)
	return all, err
}

// warnings returns what the manager said lately about its own rights, its CAs and its lists, the newest first.
func (c *cluster) warnings(ctx context.Context) ([]statement, error) {
	all := []statement{}             // never null in JSON
	for _, by := range controllers { // the API server selects, because a cluster has many other Events
		selector := "type=Warning,involvedObject.kind!=CertificateSigningRequest,reportingComponent=" + by
		err := c.events(ctx, "", selector, func(about corev1.ObjectReference, said statement) {
			if c.now().Sub(said.At) <= saidAge {
				said.Message = csr.Shorten(about.Kind+" "+strings.TrimPrefix(about.Namespace+"/"+about.Name, "/")) + ": " + said.Message
				all = append(all, said)
			}
		})
		if err != nil {
			return all, err
		}
	}
	slices.SortStableFunc(all, newestFirst)
	return all, nil
}

func newestFirst(a, b statement) int { return b.At.Compare(a.At) }

// saidAge is how long a statement stands. The manager repeats a statement after 50 minutes while it still holds.
const saidAge = time.Hour

// current returns the newest of all that the controller in charge of obj made and that still stands at now, or nil.
func current(all []statement, obj *certificatesv1.CertificateSigningRequest, now time.Time) *statement {
	state := csr.StateOf(obj)
	i := slices.IndexFunc(all, func(said statement) bool { return said.By == inCharge(state) })
	if i < 0 || now.Sub(all[i].At) > saidAge || state == csr.Approved && all[i].At.Before(csr.ApprovedAt(obj)) {
		return nil
	}
	return &all[i]
}

// leader is what the Lease of a manager says.
type leader struct {
	Lease   string    `json:"lease"`
	Holder  string    `json:"holder,omitempty"`
	Renewed time.Time `json:"renewed"`
	// Alive reports whether the Lease is held and was renewed lately.
	Alive bool `json:"alive"`
}

// leaseAge is the age of a Lease whose holder counts as ended, whatever its duration says. A leader renews it every few
// seconds, by the clock of its machine.
const leaseAge = time.Minute

// leaders returns the Leases of managers: all in the namespace of the manager, and those in kube-system with the names
// that the manifests use.
func (c *cluster) leaders(ctx context.Context) ([]leader, error) {
	namespaces := []string{c.namespace}
	if c.namespace == "" {
		namespaces = []string{defaultNamespace, metav1.NamespaceSystem}
	}
	var found []leader
	for i, namespace := range namespaces {
		list := c.CoordinationV1().Leases(namespace).List
		err := each(ctx, list, metav1.ListOptions{}, func(lease *coordinationv1.Lease) {
			if namespace == metav1.NamespaceSystem && !strings.HasPrefix(lease.Name, "csr-") {
				return
			}
			one := leader{Lease: namespace + "/" + lease.Name, Holder: csr.Shorten(ptr.Deref(lease.Spec.HolderIdentity, ""))}
			if lease.Spec.RenewTime != nil {
				one.Renewed = lease.Spec.RenewTime.UTC()
			}
			one.Alive = one.Holder != "" && c.now().Sub(one.Renewed).Abs() <= leaseAge
			found = append(found, one)
		})
		// Most users may not read kube-system, where most clusters have no manager.
		if err != nil && (i == 0 || !apierrors.IsForbidden(err)) {
			return nil, fmt.Errorf("list leases in namespace %s: %w", namespace, err)
		}
	}
	return found, nil
}
