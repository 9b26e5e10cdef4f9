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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// The controllers that write Events about requests.
const approverName, signerName = "csr-approver", "csr-signer"

// statement is an Event that says that a controller of the manager wrote it. Whoever may create Events in the namespace
// default can write one.
type statement struct {
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// listPage is how many objects are read at a time.
const listPage = 500

// controllers are the parts of the manager that write Events.
var controllers = []string{
	approverName, signerName, "csr-cleaner", "csr-rotation", "csr-self-check", "csr-block-list", "csr-static-inventory",
}

// events calls each for every statement in the Events in namespace that match selector. An empty namespace stands for
// all.
func (c *cluster) events(
	ctx context.Context, namespace, selector string, each func(event *corev1.Event, said statement),
) error {
	for next := ""; ; {
		list, err := c.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{
			FieldSelector: selector, Limit: listPage, Continue: next,
		})
		if err != nil {
			return fmt.Errorf("list events: %w", err)
		}
		for i := range list.Items {
			event := &list.Items[i]
			by := cmp.Or(event.ReportingController, event.Source.Component)
			if !slices.Contains(controllers, by) {
				continue
			}
			each(event, statement{
				By: by, Reason: csr.Shorten(event.Reason), Message: csr.ShortenTo(event.Message, 1024), At: eventTime(event).UTC(),
			})
		}
		if next = list.Continue; next == "" {
			return nil
		}
	}
}

// eventTime returns when event happened last. The manager writes Events of events.k8s.io/v1, which set these fields.
func eventTime(event *corev1.Event) time.Time {
	if event.Series != nil {
		return event.Series.LastObservedTime.Time
	}
	return event.EventTime.Time
}

// said returns what the manager said about obj, the newest first.
func (c *cluster) said(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) ([]statement, error) {
	var all []statement
	selector := fields.Set{"involvedObject.uid": string(obj.UID)}.String()
	// The API server stores Events about objects without a namespace in this namespace.
	err := c.events(ctx, corev1.NamespaceDefault, selector, func(_ *corev1.Event, said statement) { all = append(all, said) })
	slices.SortStableFunc(all, func(a, b statement) int { return b.At.Compare(a.At) })
	return all, err
}

// warnings returns what the manager said lately about its own rights, its CAs and its lists, the newest first.
func (c *cluster) warnings(ctx context.Context) ([]statement, error) {
	all := []statement{} // never null
	for _, by := range controllers {
		selector := "type=Warning,involvedObject.kind!=CertificateSigningRequest,reportingComponent=" + by
		err := c.events(ctx, "", selector, func(event *corev1.Event, said statement) {
			if said.By == by && c.now().Sub(said.At) <= saidAge {
				about := event.InvolvedObject
				said.Message = csr.Shorten(about.Kind+" "+strings.TrimPrefix(about.Namespace+"/"+about.Name, "/")) + ": " + said.Message
				all = append(all, said)
			}
		})
		if err != nil {
			return all, err
		}
	}
	slices.SortStableFunc(all, func(a, b statement) int { return b.At.Compare(a.At) })
	return all, nil
}

// inCharge returns the controller that acts next on a request in that state, or nothing.
func inCharge(state csr.State) string {
	return map[csr.State]string{csr.Pending: approverName, csr.Approved: signerName}[state]
}

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
		list, err := c.CoordinationV1().Leases(namespace).List(ctx, metav1.ListOptions{})
		switch {
		case apierrors.IsForbidden(err) && i > 0: // most users may not read kube-system, where most clusters have no manager
			continue
		case err != nil:
			return nil, fmt.Errorf("list leases in namespace %s: %w", namespace, err)
		}
		for _, lease := range list.Items {
			if namespace != metav1.NamespaceSystem || strings.HasPrefix(lease.Name, "csr-") {
				found = append(found, c.leaderOf(&lease))
			}
		}
	}
	return found, nil
}

func (c *cluster) leaderOf(lease *coordinationv1.Lease) leader {
	found := leader{Lease: lease.Namespace + "/" + lease.Name, Holder: csr.Shorten(ptr.Deref(lease.Spec.HolderIdentity, ""))}
	if lease.Spec.RenewTime != nil {
		found.Renewed = lease.Spec.RenewTime.UTC()
	}
	found.Alive = found.Holder != "" && c.now().Sub(found.Renewed).Abs() <= leaseAge
	return found
}

// requests calls each for every request, page by page, because there may be 100,000.
func (c *cluster) requests(ctx context.Context, options metav1.ListOptions, each func(*certificatesv1.CertificateSigningRequest)) error {
	options.Limit = listPage
	for {
		list, err := c.CertificatesV1().CertificateSigningRequests().List(ctx, options)
		if err != nil {
			return fmt.Errorf("list requests: %w", err)
		}
		for i := range list.Items {
			each(&list.Items[i])
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return nil
		}
	}
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
