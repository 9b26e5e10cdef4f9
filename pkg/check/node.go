package check

import (
	"context"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// The four steps that KEP-266 has an administrator look at, and what they are for.
const (
	StepRequested = "1 requested"
	StepApproved  = "2 approved"
	StepIssued    = "3 issued"
	StepAccepted  = "4 accepted"
	NodeWell      = "node"
)

// Opinion is what a controller of the configuration at hand would do with a request.
type Opinion struct {
	// Does is true if it would approve, or issue.
	Does bool
	// Reason and Message say why not. They are empty when nothing of the configuration is for such a request.
	Reason, Message string
	// Err is why it could not be found out.
	Err error
}

// Node finds out where the certificate of one node is stuck.
type Node struct {
	Name string
	// Reader must not be a cache.
	Reader client.Reader
	Trust  Trust
	// BootstrapGroups are those, beside system:bootstrappers, whose members make requests for nodes that join.
	BootstrapGroups []string
	// RequestLimits bound what is read of a request: the manager's, or DefaultLimits.
	RequestLimits csr.Limits
	// CAs are those that we can sign with, for the proof of the last step.
	CAs []CA
	// Approve and Issue are what we would do. They write nothing.
	Approve func(context.Context, *certificatesv1.CertificateSigningRequest) Opinion
	Issue   func(*certificatesv1.CertificateSigningRequest) Opinion
}

// Look goes through the steps at now, up to the one that stands, and looks at the Node. What could not be read is
// unknown.
func (n Node) Look(ctx context.Context, now time.Time) []Result {
	alive, sentence := n.alive(ctx, now)
	state := n.state(ctx, alive, sentence)
	all, err := n.requests(ctx)
	if err != nil {
		return []Result{{
			Check: StepRequested, Subject: n.Name, Status: Unknown,
			Evidence: ReadError("list certificatesigningrequests", err), NextStep: "ask as one who may list them",
		}, state}
	}
	results := n.client(ctx, all, alive, now)
	if serving, foreign := n.newest(all, certificatesv1.KubeletServingSignerName); serving != nil {
		steps := n.decided(ctx, serving, now)
		steps[0].Evidence += newer(foreign, now)
		results = append(results, steps...)
	}
	if state.Status == Failed && results[len(results)-1].Status == OK {
		state.NextStep = fmt.Sprintf("its certificate is not what keeps it: kubectl describe node %s, and the kubelet's log on the machine (journalctl -u kubelet)", n.Name)
	}
	return append(results, state)
}

// client goes through the steps of the client certificate of a node that is alive or not.
func (n Node) client(ctx context.Context, all []certificatesv1.CertificateSigningRequest, alive Status, now time.Time) []Result {
	obj, foreign := n.newest(all, certificatesv1.KubeAPIServerClientKubeletSignerName)
	if obj == nil {
		return []Result{n.noRequest(alive)}
	}
	results := []Result{{
		Check: StepRequested, Subject: obj.Name, Status: OK,
		Evidence: fmt.Sprintf("made %s ago by %q with groups %q", age(obj, now), csr.Shorten(obj.Spec.Username), csr.ShortenAll(obj.Spec.Groups)) +
			newer(foreign, now),
	}}
	results = append(results, n.decided(ctx, obj, now)...)
	if last := results[len(results)-1]; last.Check != StepIssued || last.Status != OK {
		return results
	}
	return append(results, n.accepted(ctx, obj, now))
}

// noRequest is the first step without a request: a node that is alive needs none, Ready or not, as requests are deleted
// after use.
func (n Node) noRequest(alive Status) Result {
	result := Result{Check: StepRequested, Subject: n.Name, Status: alive}
	switch alive {
	case OK:
		result.Evidence = "there is no request, and none is needed: it has a certificate that works, and requests are deleted after use"
	case Failed:
		result.Evidence = fmt.Sprintf("no request for %s%s is there: the kubelet has made none, or none lately", csr.NodeUserPrefix, n.Name)
	case Unknown:
		result.Evidence = "no request is there, and whether the node needs one is unknown"
	}
	if alive != OK {
		result.NextStep = "on the machine: does the kubelet run, can it reach the API server, is its clock right, has its bootstrap kubeconfig a token that is valid " +
			"(journalctl -u kubelet); without --node, this command says whether its group may create requests"
	}
	return result
}

// Stuck is the first result that is not OK, or nil.
func Stuck(results []Result) *Result {
	for i := range results {
		if results[i].Status != OK {
			return &results[i]
		}
	}
	return nil
}
