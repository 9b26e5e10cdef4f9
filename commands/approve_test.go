package commands

import (
	"bytes"
	"crypto/x509/pkix"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// approvable returns the findings about a request that the rules approve, changed by modify.
func approvable(modify ...func(*explain.Findings)) *explain.Findings {
	f := &explain.Findings{
		State: csr.Pending, Rule: &approver.Rule{}, Served: true,
		Request:  &csr.Request{Cert: ca.Request{Subject: pkix.Name{CommonName: "system:node:a"}}},
		Decision: approver.Decision{Result: verdict.Approve.Because("AutoApproved", "Auto approving.")},
	}
	for _, change := range modify {
		change(f)
	}
	return f
}

func refusing(reason, message string) func(*explain.Findings) {
	return func(f *explain.Findings) {
		f.Decision = approver.Decision{Result: verdict.Wait.Because(reason, "%s", message)}
	}
}

// unwatched is a decision that depends on whether the node is alive, which only the running manager knows.
func unwatched(f *explain.Findings) {
	refusing("NodeAlive", "it may be alive")(f)
	f.Undecidable, f.Unwatched = errors.New("alive?"), true
}

func TestAssessment(t *testing.T) {
	t.Parallel()
	refusedByRule := func(why ...refusal) assessment { return assessment{node: "a", refusals: why} }
	for name, test := range map[string]struct {
		found, authorized *explain.Findings
		want              assessment
		never             string // the beginning of the reason why it is never approved
	}{
		"rules approve": {found: approvable(), want: assessment{node: "a", approves: "Auto approving."}},
		"rule refuses":  {found: approvable(refusing("NodeAlive", "it is alive")), want: refusedByRule(refusal{"NodeAlive", "it is alive"})},
		"not authorized, and nothing else": {
			found: approvable(refusing("NotAuthorized", "no right")), authorized: approvable(),
			want: refusedByRule(refusal{"NotAuthorized", "no right"}),
		},
		"not authorized, and another rule refuses": {
			found: approvable(refusing("NotAuthorized", "no right")), authorized: approvable(refusing("NodeAlive", "it is alive")),
			want: refusedByRule(refusal{"NotAuthorized", "no right"}, refusal{"NodeAlive", "it is alive"}),
		},
		"not authorized for good": {
			found: approvable(refusing("NotAuthorized", "bound")), authorized: approvable(refusing("NotAuthorized", "bound")),
			want: refusedByRule(refusal{"NotAuthorized", "bound"}),
		},
		"no rule for the signer": {
			found: approvable(func(f *explain.Findings) { f.Rule, f.Decision = nil, approver.Decision{} }),
			want:  refusedByRule(refusal{"NoRule", "no rule of this configuration approves requests for signer example.com/a"}),
		},
		"rate-limited by the manager": {
			found: approvable(func(f *explain.Findings) { f.Said = &check.Statement{Reason: "RateLimited", Message: "too many"} }),
			want:  refusedByRule(refusal{"RateLimited", "too many"}),
		},
		"approved already": {found: approvable(func(f *explain.Findings) { f.State = csr.Approved }), never: "the request is already approved"},
		"denied":           {found: approvable(func(f *explain.Findings) { f.State = csr.Denied }), never: "the request is already denied"},
		"foreign signer":   {found: approvable(func(f *explain.Findings) { f.Rule, f.Served = nil, false }), never: "the manager does not serve signer example.com/a"},
		"malformed": {
			found: approvable(refusing("Malformed", "no PEM"), func(f *explain.Findings) { f.Request = nil }),
			never: "the signer would refuse the request (Malformed): no PEM",
		},
		"parser fails": {found: approvable(func(f *explain.Findings) { f.Request = nil }), never: "the request cannot be parsed"},
		"blocked node": {found: approvable(func(f *explain.Findings) { f.Blocked = verdict.Wait.Because("NodeBlocked", "on the list") }), never: "NodeBlocked: on the list"},
		"blocked certificate": {
			found: approvable(func(f *explain.Findings) { f.Blocked = verdict.Wait.Because("CertificateBlocked", "on the list") }),
			never: "CertificateBlocked: on the list",
		},
		"profile":       {found: approvable(func(f *explain.Findings) { f.Judged.Result = verdict.Deny.Because("KeyTooWeak", "1024 bits") }), never: "the signer would refuse the request (KeyTooWeak): 1024 bits"},
		"CA is missing": {found: approvable(func(f *explain.Findings) { f.Judged.Result = verdict.Wait.Because("CAMissing", "none") }), want: assessment{node: "a", approves: "Auto approving."}},
		"rules unknown": {found: approvable(func(f *explain.Findings) { f.Undecidable = errors.New("no right") }), never: "what the rules say is unknown: no right"},
		"whether the node is alive is unknown": {
			found: approvable(unwatched), never: "what the rules say is unknown: alive?",
		},
		"node is alive, says the manager": {
			found: approvable(unwatched, func(f *explain.Findings) { f.Said = &check.Statement{Reason: "NodeAlive", Message: "it is alive"} }),
			want:  refusedByRule(refusal{"NodeAlive", "it is alive"}),
		},
		"other rules unknown": {
			found: approvable(refusing("NotAuthorized", "no right")), authorized: approvable(func(f *explain.Findings) { f.Undecidable = errors.New("nodes") }),
			never: "what the other rules say is unknown: nodes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			obj := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: "example.com/a"}}
			obj.Name = "csr-1"
			got := assessed(obj, test.found, test.authorized, "kubectl csr")
			if test.never != "" {
				if !strings.HasPrefix(got.never, test.never) || got.instead == "" {
					t.Errorf("never %q, instead %q; want %q", got.never, got.instead, test.never)
				}
				return
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(assessment{}, refusal{})); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestApprovalMessageNamesTheUserAndTheOverriddenRules(t *testing.T) {
	t.Parallel()
	refused := assessment{refusals: []refusal{{"NotAuthorized", "no right"}, {"NodeAlive", "it is alive."}}}
	approved := assessment{approves: "Auto approving."}
	for want, got := range map[string]string{
		`Approved by hand by user "admin" with kubectl csr approve. The user overrides NotAuthorized: no right. NodeAlive: it is alive.`: refused.message("kubectl csr", `user "admin"`),
		"Approved by hand by an unknown user with kubectl csr approve. The rules of csr-controller-manager approve the request.":         approved.message("kubectl csr", "an unknown user"),
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if missing := refused.notIn([]string{"NodeAlive"}); !slices.Equal(missing, []string{"NotAuthorized"}) {
		t.Errorf("missing %q", missing)
	}
}

// The API server permits any name of a request, so that a name could pass for a result or for a second command.
func TestApprovePrintsHostileNamesAsOneWord(t *testing.T) {
	t.Parallel()
	obj := &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Username: "x\ncsr-2  approved"}}
	obj.Name = "csr-1  approved; true\x1b[2K"
	a := &byHand{program: "kubectl csr", dryRun: "none"}
	outcome := a.approveOne(t.Context(), obj, assessment{refusals: []refusal{{"NodeAlive", "it is\nalive"}}}, "user")
	var out bytes.Buffer
	if err := writeOutcomes(&out, "", []handOutcome{outcome}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], `'csr-1  approved; true\x1b[2K'  not approved: `) ||
		!strings.HasSuffix(lines[3], ` kubectl csr approve --override NodeAlive 'csr-1  approved; true\x1b[2K'`) || strings.Contains(out.String(), "\x1b") {
		t.Errorf("%q", lines)
	}
}

// Anybody who may create requests can ask for the identity of a node. An override is for the requester that the user
// has seen.
func TestApproveOverridesForOneRequesterOnly(t *testing.T) {
	t.Parallel()
	by := func(user string) *certificatesv1.CertificateSigningRequest {
		return &certificatesv1.CertificateSigningRequest{Spec: certificatesv1.CertificateSigningRequestSpec{Username: user}}
	}
	a := &byHand{override: []string{"NotAuthorized"}}
	_, err := a.approve(t.Context(), []*certificatesv1.CertificateSigningRequest{by("system:bootstrap:abcdef"), by("stranger")})
	if err == nil || !strings.Contains(err.Error(), "different requesters") {
		t.Errorf("error %v", err)
	}
}

// TestApproveRefusesBadArguments runs the command with arguments that need no API server.
func TestApproveRefusesBadArguments(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"nothing":        {nil, "give the NAME of a request, or --node NAME"},
		"both":           {[]string{"csr-1", "--node=a"}, "give the NAME of a request, or --node NAME"},
		"dry run":        {[]string{"csr-1", "--dry-run=all"}, "--dry-run=all: use none, client or server"},
		"unknown reason": {[]string{"csr-1", "--override=Nonsense"}, "--override Nonsense: unknown reason"},
		"no override":    {[]string{"csr-1", "--override=NodeBlocked"}, "--override NodeBlocked: this reason cannot be overridden"},
		"nor this":       {[]string{"csr-1", "--override=CertificateBlocked"}, "--override CertificateBlocked: this reason cannot be overridden"},
		"unknown format": {[]string{"csr-1", "-o", "wide"}, "-o wide: unknown output format"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := Execute(t.Context(), append([]string{"approve"}, test.args...), io.Discard)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
