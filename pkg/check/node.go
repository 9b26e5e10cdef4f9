package check

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// The four steps of KEP-266 for an administrator, and the Node itself.
const (
	StepRequested = "1 requested"
	StepApproved  = "2 approved"
	StepIssued    = "3 issued"
	StepAccepted  = "4 accepted"
	NodeWell      = "node"
)

// request shortens signatures.
type request = certificatesv1.CertificateSigningRequest

// Opinion holds what a controller with this configuration would do with a request.
type Opinion struct {
	// Does reports that it would approve, or issue.
	Does bool
	// Reason and Message say why not. They are empty if the configuration has no rule or signer for the request.
	Reason, Message string
	// Err says why the opinion is unknown.
	Err error
	// NextStep says what to do about Reason or Err. It may be empty.
	NextStep string
}

// Node finds the step at which the certificate of one node is stuck.
type Node struct {
	Name string
	// Reader must not be a cache.
	Reader client.Reader
	Trust  Trust
	// BootstrapGroups are the groups, in addition to system:bootstrappers, whose members make requests for nodes that
	// join.
	BootstrapGroups []string
	// RequestLimits limit how much of a request is read. They are the manager's, or DefaultLimits.
	RequestLimits csr.Limits
	// CAs are the CAs of the signer, for the proof of the last step.
	CAs []CA
	// Approve and Issue return what the approver and the signer would do. They write nothing.
	Approve func(context.Context, *request) Opinion
	Issue   func(context.Context, *request) Opinion

	now time.Time
}

// Check goes through the steps at now, up to the first one that is not done, and checks the Node. An object that it
// can't read leaves its step Unknown.
func (n Node) Check(ctx context.Context, now time.Time) []Result {
	n.now = now
	alive, sentence := n.alive(ctx)
	state := n.state(ctx, alive, sentence)
	all, err := n.requests(ctx)
	if err != nil {
		return []Result{{
			Check: StepRequested, Subject: n.Name, Status: Unknown,
			Evidence: ReadError("list certificatesigningrequests", err), NextStep: "run the command as a user who may list them",
		}, state}
	}
	results := n.client(ctx, all, alive)
	if serving, foreign := n.newest(all, certificatesv1.KubeletServingSignerName); serving != nil {
		steps := n.decided(ctx, serving)
		steps[0].Evidence += n.newer(foreign)
		results = append(results, steps...)
	}
	if state.Status == Failed && results[len(results)-1].Status == OK {
		state.NextStep = "its certificate is not the reason: " + n.lookAt(state)
	}
	return append(results, state)
}

// lookAt returns where to find out why the node does not work.
func (n Node) lookAt(state Result) string {
	const journal = "the kubelet's log on the machine (journalctl -u kubelet)"
	if strings.HasPrefix(state.Evidence, noNode) {
		return "read " + journal
	}
	return fmt.Sprintf("kubectl describe node %s, and %s", n.Name, journal)
}

// noNode begins the evidence if the Node does not exist.
const noNode = "there is no such Node"

// Stuck returns the first result that is not OK, or nil.
func Stuck(results []Result) *Result {
	for i := range results {
		if results[i].Status != OK {
			return &results[i]
		}
	}
	return nil
}

// client returns the results of the steps of the client certificate. alive says whether the node is alive.
func (n Node) client(ctx context.Context, all []request, alive Status) []Result {
	obj, foreign := n.newest(all, certificatesv1.KubeAPIServerClientKubeletSignerName)
	if obj == nil {
		return []Result{n.noRequest(alive)}
	}
	results := []Result{{
		Check: StepRequested, Subject: obj.Name, Status: OK,
		Evidence: fmt.Sprintf("made %s ago by %q with groups %q%s",
			n.age(obj), csr.Shorten(obj.Spec.Username), csr.ShortenAll(obj.Spec.Groups), n.newer(foreign)),
	}}
	results = append(results, n.decided(ctx, obj)...)
	if last := results[len(results)-1]; last.Check != StepIssued || last.Status != OK {
		return results
	}
	return append(results, n.accepted(ctx, obj))
}

// noRequest returns the result of the first step if there is no request. A node that is alive needs none, Ready or not:
// requests are deleted after use.
func (n Node) noRequest(alive Status) Result {
	result := Result{Check: StepRequested, Subject: n.Name, Status: alive}
	switch alive {
	case OK:
		result.Evidence = "there is no request, and none is needed: it has a certificate that works, and requests are " +
			"deleted after use"
		return result
	case Failed:
		result.Evidence = fmt.Sprintf("no request for %s%s is there: the kubelet has made none, or none lately",
			csr.NodeUserPrefix, n.Name)
	case Unknown:
		result.Evidence = "no request is there, and whether the node needs one is unknown"
	}
	result.NextStep = "on the machine: does the kubelet run, can it reach the API server, is its clock right, has its " +
		"bootstrap kubeconfig a token that is valid (journalctl -u kubelet); without --node, this command says whether its " +
		"group may create requests"
	return result
}

// leaseDuration is the duration of a kubelet's Lease that has none of its own (pkg/kubelet/apis/config,
// NodeLeaseDurationSeconds).
const leaseDuration = 40 * time.Second

// alive reports whether the kubelet has renewed its Lease. It can only do that with a valid certificate.
func (n Node) alive(ctx context.Context) (Status, string) {
	lease := &coordinationv1.Lease{}
	err := n.Reader.Get(ctx, client.ObjectKey{Namespace: corev1.NamespaceNodeLease, Name: n.Name}, lease)
	switch {
	case apierrors.IsNotFound(err) || err == nil && lease.Spec.RenewTime == nil:
		return Failed, "it has no Lease"
	case err != nil:
		return Unknown, "its Lease is " + ReadError("get leases", err)
	}
	allowed := leaseDuration
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil {
		allowed = time.Duration(*seconds) * time.Second
	}
	since := n.now.Sub(lease.Spec.RenewTime.Time)
	sentence := fmt.Sprintf("its Lease was renewed %s ago", duration.HumanDuration(since))
	if since > allowed {
		return Failed, sentence
	}
	return OK, sentence
}

// state reports whether the Node exists and is Ready. alive and sentence say whether its kubelet is alive.
func (n Node) state(ctx context.Context, alive Status, sentence string) Result {
	result := Result{Check: NodeWell, Subject: n.Name, Status: Failed}
	node := &corev1.Node{}
	switch err := n.Reader.Get(ctx, client.ObjectKey{Name: n.Name}, node); {
	case apierrors.IsNotFound(err):
		result.Evidence = noNode + ", and " + sentence
		result.NextStep = "it appears once the kubelet has a certificate and has registered"
		return result
	case err != nil:
		result.Status, result.NextStep = Unknown, "run the command as a user who may"
		result.Evidence = ReadError("get nodes", err) + "; " + sentence
		return result
	}
	ready := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
	const said = "Ready when it last said so, but "
	switch {
	case ready && alive == OK:
		result.Status, result.Evidence = OK, "Ready, and "+sentence
	case ready && alive == Unknown:
		result.Status, result.Evidence = Unknown, said+sentence
		result.NextStep = "run the command as a user who may get leases in " + corev1.NamespaceNodeLease
	case ready:
		result.Evidence, result.NextStep = said+sentence, "read the kubelet's log on the machine (journalctl -u kubelet)"
	default:
		result.Evidence, result.NextStep = "not Ready; "+sentence, "kubectl describe node "+n.Name
	}
	return result
}

// page is how many objects are read at a time.
const page = 500

// requests returns the requests for the node's certificates by any requester, and all requests of the node itself.
func (n Node) requests(ctx context.Context) ([]request, error) {
	user := csr.NodeUserPrefix + n.Name
	var found []request
	for next := ""; ; {
		list := &certificatesv1.CertificateSigningRequestList{}
		if err := n.Reader.List(ctx, list, client.Limit(page), client.Continue(next)); err != nil {
			return nil, err
		}
		for _, obj := range list.Items {
			if obj.Spec.Username == user || n.asksFor(&obj, user) {
				found = append(found, obj)
			}
		}
		if next = list.Continue; next == "" {
			return found, nil
		}
	}
}

func (n Node) asksFor(obj *request, user string) bool {
	req, err := n.RequestLimits.Parse(obj)
	return err == nil && req.Cert.Subject.CommonName == user
}

// newest returns the youngest credible request for signer, or the youngest one if none is credible. foreign is a
// younger request of another requester.
func (n Node) newest(all []request, signer string) (found, foreign *request) {
	for i := range all {
		obj := &all[i]
		switch {
		case obj.Spec.SignerName != signer:
		case n.credible(obj):
			found = younger(found, obj)
		default:
			foreign = younger(foreign, obj)
		}
	}
	switch {
	case found == nil:
		return foreign, nil
	case foreign != nil && younger(found, foreign) == found:
		return found, nil
	}
	return found, foreign
}

// younger returns the younger request. It returns the first one if both are as old, and the other one if the first is
// nil.
func younger(first, other *request) *request {
	if first == nil || first.CreationTimestamp.Before(&other.CreationTimestamp) {
		return other
	}
	return first
}

// credible reports whether the node itself or a member of a bootstrap group has made obj. Other requesters can write
// the name of the node, too.
func (n Node) credible(obj *request) bool {
	return obj.Spec.Username == csr.NodeUserPrefix+n.Name || slices.ContainsFunc(obj.Spec.Groups, func(group string) bool {
		return isBootstrapGroup(group) || slices.Contains(n.BootstrapGroups, group)
	})
}

// newer returns the part of a sentence that mentions foreign, which may be nil.
func (n Node) newer(foreign *request) string {
	if foreign == nil {
		return ""
	}
	return fmt.Sprintf("; passed over: the newer request %s, made %s ago by %q, who is neither the node nor in a "+
		"bootstrap group", foreign.Name, n.age(foreign), csr.Shorten(foreign.Spec.Username))
}

func (n Node) age(obj *request) string {
	return duration.HumanDuration(n.now.Sub(obj.CreationTimestamp.Time))
}

// approverName and signerName are the controllers that write Events about requests.
const approverName, signerName = "csr-approver", "csr-signer"

// events returns the last Event about obj, as part of a sentence.
func (n Node) events(ctx context.Context, obj client.Object) string {
	text, _ := n.readEvents(ctx, obj)
	return text
}

// compared returns the last Event about obj as part of a sentence. If the last Event of controller differs from
// opinion, it says so. action is what a success does: "approve" or "sign".
func (n Node) compared(
	ctx context.Context, obj client.Object, controller string, opinion Opinion, action string,
) string {
	text, all := n.readEvents(ctx, obj)
	if opinion.Err == nil && opinion.Reason != "" && text == eventText(opinion.Reason, opinion.Message) {
		text = "; Event " + opinion.Reason + " says the same"
	}
	if difference := LastStatement(all, controller).Difference(opinion, action, n.now); difference != "" {
		text += ". " + difference
	}
	return text
}

// readEvents returns the Events about obj, and the last one as part of a sentence.
func (n Node) readEvents(ctx context.Context, obj client.Object) (string, []corev1.Event) {
	list := &corev1.EventList{}
	err := n.Reader.List(ctx, list, client.InNamespace(corev1.NamespaceDefault),
		client.MatchingFields{"involvedObject.uid": string(obj.GetUID())})
	if err != nil {
		return "; Events " + ReadError("list events", err), nil
	}
	if len(list.Items) == 0 {
		return "; there is no Event about it", nil
	}
	last := slices.MaxFunc(list.Items, func(a, b corev1.Event) int { return EventTime(&a).Compare(EventTime(&b)) })
	return eventText(last.Reason, last.Message), list.Items
}

func eventText(reason, message string) string { return fmt.Sprintf("; Event %s: %s", reason, message) }
