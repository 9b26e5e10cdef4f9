package explain

import (
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// TestNodeAliveIsWhatTheManagerSaid checks that the manager's Event counts if only the manager knows whether a node is
// alive.
func TestNodeAliveIsWhatTheManagerSaid(t *testing.T) {
	t.Parallel()
	e := &Explainer{options: controllers.Options{Approver: &approver.Reconciler{}}}
	for name, test := range map[string]struct {
		said           *check.Statement
		decision, step string
		opinion        string
	}{
		"the manager has said nothing":        {nil, "What the rules say is unknown: who knows.", "Wait one minute", ""},
		"the manager has said something else": {&check.Statement{Reason: "NotExpected", Message: "of it"}, "What the rules say is unknown: who knows.", "Wait one minute", ""},
		"the manager has said NodeAlive": {
			&check.Statement{Reason: "NodeAlive", Message: "it is alive", At: explainNow.Add(-time.Minute)},
			"The request is not approved (NodeAlive), as the manager said 1m ago: it is alive.", approverReasons["NodeAlive"].todo, "NodeAlive",
		},
	} {
		f := &Findings{
			obj: &request{}, now: explainNow, State: csr.Pending, Rule: &approver.Rule{},
			Unwatched: true, Undecidable: unanswerable("who knows"), Said: test.said,
		}
		decision, _ := e.approval(f)
		opinion := f.ApprovalOpinion()
		if !strings.HasSuffix(decision, test.decision) || !strings.HasPrefix(e.nextStep(f).text, test.step) {
			t.Errorf("%s: %s Next: %s", name, decision, e.nextStep(f).text)
		}
		if opinion.Reason != test.opinion || (opinion.Err == nil) != (test.opinion != "") || e.difference(f) != "" {
			t.Errorf("%s: %+v, difference %q", name, opinion, e.difference(f))
		}
	}
}

// TestNotAuthorizedWithItsRoles checks that no role is bound for a requester that has the roles, such as a bootstrap token
// for another node.
func TestNotAuthorizedWithItsRoles(t *testing.T) {
	t.Parallel()
	e := &Explainer{options: controllers.Options{Approver: &approver.Reconciler{}}}
	for _, lacksRole := range []bool{true, false} {
		obj := explainRequest(t)
		f := &Findings{obj: obj, now: explainNow, State: csr.Pending, Rule: &approver.Rule{}, Request: &csr.Request{}, lacksRole: lacksRole}
		f.Decision = approver.Decision{Result: verdict.Wait.Because("NotAuthorized", "it may not")}
		next, opinion := e.nextStep(f), f.ApprovalOpinion()
		if strings.HasPrefix(next.command, "kubectl create clusterrolebinding") != lacksRole || (opinion.NextStep == "") != lacksRole {
			t.Errorf("lacks a role %t: %+v, %+v", lacksRole, next, opinion)
		}
	}
}
