package plugin

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
	"k8s.io/utils/ptr"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/kubeletclient"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/serving"
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

// statement is an Event that says that a controller of the manager wrote it. Other users can write Events too, so it is only
// quoted.
type statement struct {
	By      string `json:"by"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
	// At is when the Event was created. The API server sets this time. The other times are those of the writer.
	At time.Time `json:"at"`
}

// controllers are the parts of the manager that write Events.
var controllers = []string{
	approverName, signerName, "csr-cleaner", "csr-rotation", "csr-self-check", "csr-block-list", "csr-static-inventory",
}

// events calls do for each statement in the Events in namespace that match selector, with the object that it is about.
func (c *cluster) events(ctx context.Context, namespace, selector string, do func(about corev1.ObjectReference, said statement)) error {
	list := c.CoreV1().Events(namespace).List
	err := each(ctx, list, metav1.ListOptions{FieldSelector: selector}, func(event *corev1.Event) {
		by := cmp.Or(event.ReportingController, event.Source.Component)
		if slices.Contains(controllers, by) {
			do(event.InvolvedObject, statement{
				By: by, Reason: csr.Shorten(event.Reason), Message: csr.ShortenTo(event.Message, maxMessage), At: event.CreationTimestamp.UTC(),
			})
		}
	})
	if err != nil {
		return fmt.Errorf("list events: %w", err)
	}
	return nil
}

// mostQuoted bounds the Events that are quoted.
const mostQuoted = 20

// quote adds said to all, which is sorted, the newest first. It keeps the newest ones.
func quote(all []statement, said statement) []statement {
	i, _ := slices.BinarySearchFunc(all, said, func(a, b statement) int { return b.At.Compare(a.At) })
	all = slices.Insert(all, i, said)
	return all[:min(len(all), mostQuoted)]
}

// said returns the newest Events about the request obj, the newest first.
func (c *cluster) said(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) (all []statement, err error) {
	// The manager writes Events about objects without a namespace into this namespace.
	err = c.events(ctx, metav1.NamespaceDefault, "involvedObject.uid="+string(obj.UID), func(_ corev1.ObjectReference, said statement) {
		all = quote(all, said)
	})
	return all, err
}

// warnings returns the newest Events of the last hour about the manager's own rights, its CAs and its lists, the newest
// first. The manager writes them into its namespace and into default.
func (c *cluster) warnings(ctx context.Context) ([]statement, error) {
	all := []statement{} // never null in JSON
	for _, namespace := range slices.Compact([]string{metav1.NamespaceDefault, cmp.Or(c.namespace, defaultNamespace)}) {
		for _, by := range controllers { // the API server selects, because a cluster has many other Events
			selector := "type=Warning,involvedObject.kind!=CertificateSigningRequest,reportingComponent=" + by
			err := c.events(ctx, namespace, selector, func(about corev1.ObjectReference, said statement) {
				if c.now().Sub(said.At) <= saidAge {
					said.Message = csr.Shorten(about.Kind+" "+strings.TrimPrefix(about.Namespace+"/"+about.Name, "/")) + ": " + said.Message
					all = quote(all, said)
				}
			})
			if err != nil {
				return all, err
			}
		}
	}
	return all, nil
}

// saidAge is how long a warning is quoted. The manager repeats it after 50 minutes while it still holds.
const saidAge = time.Hour

// maxRequestAge is the default of approval.nodeClient.maxRequestAge: a kubelet no longer waits for an older request.
const maxRequestAge = 15 * time.Minute

// judge sets what the manager's rules say about a pending request of a kubelet. It calls the functions that the manager calls,
// with their defaults and with facts that this user may read. If a fact can't be read, the request does not pass.
func (c *cluster) judge(ctx context.Context, f *Facts) {
	ask := map[string]func(context.Context, *csr.Request) (judge.Decision, error){
		certificatesv1.KubeAPIServerClientKubeletSignerName: c.judgeClient, certificatesv1.KubeletServingSignerName: c.judgeServing,
	}[f.obj.Spec.SignerName]
	if ask == nil || f.req == nil || f.State != csr.Pending {
		return
	}
	decision, err := ask(ctx, f.req)
	if err != nil {
		decision = judge.Wait.Because("InventoryUnavailable", "it is unknown: %v", err)
	}
	f.Judged, f.passes = findingOf(decision), decision.Verdict == judge.Approve
}

// judgeClient judges a request for a client certificate. A first certificate passes only if there is neither a Node nor a Lease
// of that name: one look at a Lease does not show whether the node is dead. It is not known whether the requester still exists.
func (c *cluster) judgeClient(ctx context.Context, req *csr.Request) (judge.Decision, error) {
	var allowed []kubeletclient.Permission
	for _, permission := range (kubeletclient.Policy{RenewOnly: true}).Permissions(req) {
		may, err := c.may(ctx, req.Requester, permission)
		if err != nil {
			return judge.Decision{}, fmt.Errorf("review permission %s of the requester: %w", string(permission), err)
		}
		if may {
			allowed = append(allowed, permission)
		}
	}
	facts, policy := bootstrap.Facts{Now: c.now(), Exists: true}, bootstrap.Policy{MaxRequestAge: maxRequestAge}
	if slices.Contains(allowed, kubeletclient.NodeClient) {
		known, err := c.once("node "+req.NodeName(), func() (bool, error) { return c.hasNode(ctx, req.NodeName()) })
		if err != nil {
			return judge.Decision{}, err
		}
		if !known {
			facts.Node = bootstrap.NodeNone
		}
	}
	return policy.Judge(req, facts, allowed...), nil
}

// once returns the answer of ask to question. It asks once, because a requester can make many requests.
func (c *cluster) once(question string, ask func() (bool, error)) (bool, error) {
	answer, known := c.answers[question]
	if known {
		return answer, nil
	}
	answer, err := ask()
	if err == nil {
		c.answers[question] = answer
	}
	return answer, err
}

// hasNode reports whether there is a Node or a Lease of that name.
func (c *cluster) hasNode(ctx context.Context, name string) (found bool, err error) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()}
	err = errors.Join(each(ctx, c.CoreV1().Nodes().List, options, func(*corev1.Node) { found = true }),
		each(ctx, c.CoordinationV1().Leases(corev1.NamespaceNodeLease).List, options, func(*coordinationv1.Lease) { found = true }))
	return found, err
}

// may reports whether the requester has permission.
func (c *cluster) may(ctx context.Context, who csr.Requester, permission kubeletclient.Permission) (bool, error) {
	return c.once(fmt.Sprintf("%q %q", permission, who), func() (bool, error) {
		review, err := c.AuthorizationV1().SubjectAccessReviews().Create(ctx, who.Review(permission.Attributes()), metav1.CreateOptions{})
		if err != nil {
			return false, err
		}
		return review.Status.Allowed, nil
	})
}

// judgeServing judges a request for a serving certificate. Requests of nodes on which an API server runs do not pass: the
// manager's setting that permits them is not known.
func (c *cluster) judgeServing(ctx context.Context, req *csr.Request) (judge.Decision, error) {
	policy := serving.Policy{}
	if refused := policy.Check(req); refused.Made() {
		return refused, nil
	}
	if c.objects == nil {
		objects, err := c.readObjects(ctx)
		if err != nil {
			return judge.Decision{}, err
		}
		c.objects = objects
	}
	facts, err := c.objects.Facts(req)
	if err != nil {
		return judge.Decision{}, err
	}
	return policy.Judge(req, facts), nil
}

// readObjects reads what has names and addresses. Of several API servers, the certificate of the one that answers is known.
func (c *cluster) readObjects(ctx context.Context) (*serving.Cluster, error) {
	found := &serving.Cluster{}
	endpoints := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=kubernetes"}
	err := errors.Join(
		each(ctx, c.CoreV1().Nodes().List, metav1.ListOptions{}, func(obj *corev1.Node) { found.Nodes = append(found.Nodes, obj) }),
		each(ctx, c.CoreV1().Services(metav1.NamespaceAll).List, metav1.ListOptions{},
			func(obj *corev1.Service) { found.Services = append(found.Services, obj) }),
		each(ctx, c.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).List, endpoints,
			func(obj *discoveryv1.EndpointSlice) { found.EndpointSlices = append(found.EndpointSlices, obj) }),
	)
	if at, hostErr := url.Parse(c.host); hostErr == nil && at.Hostname() != "" {
		found.APIServerHosts = []string{at.Hostname()}
	}
	if shown := c.shown.Load(); shown != nil {
		found.APIServerCertificates = []*x509.Certificate{shown}
	}
	return found, err
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
