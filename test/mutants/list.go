package main

import (
	"slices"
	"strings"
)

// mutation removes one rule: new replaces old, which the file contains exactly once.
type mutation struct {
	rule, file, old, new string
	// tests are the arguments of the go test that must notice. If it is empty, the parity test must notice.
	tests string
}

var mutations = slices.Concat(
	approverMutations, signerMutations, certificateMutations, cleanerMutations,
	servingMutations, identityMutations, rotationMutations, approvalMutations, defectMutations,
)

// kind returns which run of the program has the mutation.
func (m mutation) kind() string {
	switch {
	case strings.HasPrefix(m.rule, "defect: "):
		return "defects"
	case m.tests != "":
		return "units"
	}
	return "parity"
}

// Rules of the approver. Left out: the version, UID and extra of the review, which an API server with RBAC ignores;
// and that nothing is approved after a denial, which the API server refuses too. The pure tests cover them.
var approverMutations = []mutation{
	{"approver: only its signer", "controllers/approver/reconciler.go", "if r.Rules[i].SignerName == obj.Spec.SignerName {", "if len(obj.Spec.SignerName) > 0 {", ""},
	{"approver: never after Approved", "pkg/csr/state.go", "\t\tCondition(obj, certificatesv1.CertificateApproved) == nil &&\n", "", ""},
	{"approver: never with a certificate", "pkg/csr/state.go", "return len(obj.Status.Certificate) == 0 &&", "return len(obj.Status.Certificate) >= 0 &&", ""},
	{"approver: Failed does not decide", "pkg/csr/state.go", "return len(obj.Status.Certificate) == 0 &&", "return len(obj.Status.Certificate) == 0 && !hasFailed(obj) &&", ""},
	{"approver: shape", "controllers/approver/rules.go", "csr.KubeletClientShape,", "func(*csr.Request) error { return nil },", ""},
	{"approver: selfnodeclient is for oneself", "controllers/approver/rules.go", "return req.Requester.Username == req.Cert.Subject.CommonName", "return true", ""},
	{"approver: selfnodeclient, exact name", "controllers/approver/rules.go", "return req.Requester.Username == req.Cert.Subject.CommonName", "return len(req.Requester.Username) == len(req.Cert.Subject.CommonName)", ""},
	{"approver: selfnodeclient", "controllers/approver/rules.go", "return req.Requester.Username == req.Cert.Subject.CommonName", "return false", ""},
	{"approver: nodeclient after selfnodeclient", "controllers/approver/rules.go", "return !boundElsewhere(req)", "return req.Requester.Username != req.Cert.Subject.CommonName", ""},
	{"approver: order", "controllers/approver/rules.go", "range r.Recognisers {", "range slices.Backward(r.Recognisers) {", ""},
	{"approver: review of selfnodeclient", "controllers/approver/rules.go", "createPermission(\"selfnodeclient\")", "createPermission(\"nodeclient\")", ""},
	{"approver: review of nodeclient", "controllers/approver/rules.go", "createPermission(\"nodeclient\")", "createPermission(\"selfnodeclient\")", ""},
	{"approver: asks at all", "controllers/approver/rules.go", "if !allowed {", "if !allowed && false {", ""},
	{"approver: answer", "pkg/authz/authz.go", "return review.Status.Allowed, nil", "return !review.Status.Denied, nil", ""},
	{"approver: verb", "controllers/approver/rules.go", "\"create\"", "\"get\"", ""},
	{"approver: API group", "controllers/approver/rules.go", "Group:       certificatesv1.GroupName,", "Group:       \"\",", ""},
	{"approver: groups of the requester", "pkg/authz/authz.go", "Groups:             who.Groups,", "Groups:             nil,", ""},
	{"approver: name of the requester", "pkg/authz/authz.go", "User:               who.Username,", "User:               \"somebody\",", ""},
	{"approver: asks again", "controllers/approver/reconciler.go", "case decision.Verdict == verdict.Wait:", "case decision.Verdict == verdict.Wait && false:", ""},
	{"approver: never denies", "controllers/approver/reconciler.go", "decision.Verdict == verdict.Deny && r.Denial != DenialPermanent {", "false {", ""},
	{"approver: writes Approved", "controllers/approver/reconciler.go", "r.write(ctx, obj, req, decision, certificatesv1.CertificateApproved)", "r.write(ctx, obj, req, decision, certificatesv1.CertificateDenied)", ""},
	{"approver: reason", "controllers/approver/rules.go", "Reason: \"AutoApproved\"", "Reason: \"Approved\"", ""},
	{"approver: message of selfnodeclient", "controllers/approver/rules.go", "Auto approving self kubelet", "Auto approving kubelet", ""},
	{"approver: message of nodeclient", "controllers/approver/rules.go", "\"Auto approving kubelet client", "\"Auto approving a kubelet client", ""},
	{"approver: the block list counts again before the write", "controllers/approver/reconciler.go", "blocked := r.blocked(req); blocked.Reason != \"\" {", "blocked := r.blocked(req); blocked.Reason != \"\" && false {", approverTests},
	{"approver: a stored verdict counts, whatever the answer", "controllers/approver/reconciler.go", "\tif stored {\n", "\tif err == nil {\n", approverTests},
}

// Rules of the cleaner. Left out: whether a request is deleted at the instant when it is due or right after, and the
// preconditions of a deletion, which need a race. The pure and the in-line tests cover them.
var cleanerMutations = []mutation{
	{"cleaner: deviation, approved unissued", "pkg/csr/retention.go", "Approved: time.Hour,", "Approved: 24 * time.Hour,", ""},
	{"cleaner: approved", "pkg/csr/retention.go", "{certificatesv1.CertificateApproved, keep.Approved},", "{certificatesv1.CertificateApproved, -1},", ""},
	{"cleaner: approved, not before", "pkg/csr/retention.go", "Approved: time.Hour,", "Approved: 45 * time.Minute,", ""},
	{"cleaner: denied", "pkg/csr/retention.go", "\t\t{certificatesv1.CertificateDenied, keep.Denied},\n", "", ""},
	{"cleaner: denied, not before", "pkg/csr/retention.go", "Denied: time.Hour,", "Denied: 45 * time.Minute,", ""},
	{"cleaner: denied, not later", "pkg/csr/retention.go", "Denied: time.Hour,", "Denied: 2 * time.Hour,", ""},
	{"cleaner: failed", "pkg/csr/retention.go", "\t\t{certificatesv1.CertificateFailed, keep.Failed},\n", "", ""},
	{"cleaner: failed, not before", "pkg/csr/retention.go", "Failed: time.Hour,", "Failed: 45 * time.Minute,", ""},
	{"cleaner: failed, not later", "pkg/csr/retention.go", "Failed: time.Hour,", "Failed: 2 * time.Hour,", ""},
	{"cleaner: pending", "pkg/csr/retention.go", "deadline.add(obj.CreationTimestamp.Time, keep.Pending)", "deadline.add(obj.CreationTimestamp.Time, -1)", ""},
	{"cleaner: pending, not before", "pkg/csr/retention.go", "Pending: 24 * time.Hour", "Pending: 23 * time.Hour", ""},
	{"cleaner: pending, not later", "pkg/csr/retention.go", "Pending: 24 * time.Hour", "Pending: 25 * time.Hour", ""},
	{"cleaner: decided requests are not pending", "pkg/csr/retention.go", "if !decided {", "if decided || true {", ""},
	{"cleaner: deviation, foreign conditions", "pkg/csr/retention.go", "condition := Condition(obj, rule.kind); condition != nil {", "condition := Condition(obj, rule.kind); condition != nil || len(obj.Status.Conditions) > 0 && Undecided(obj) {\n\t\t\tif condition == nil {\n\t\t\t\tcondition = &certificatesv1.CertificateSigningRequestCondition{}\n\t\t\t}", ""},
	{"cleaner: condition without a time", "pkg/csr/retention.go", "if since.IsZero() || age < 0 {", "if age < 0 {", ""},
	{"cleaner: ended certificates", "pkg/csr/retention.go", "deadline.add(issued.NotAfter, keep.Expired)", "deadline.add(issued.NotAfter, -1)", ""},
	{"cleaner: ended certificates, approved only", "pkg/csr/retention.go", "if Condition(obj, certificatesv1.CertificateApproved) != nil {", "if true {", ""},
	{"cleaner: ended certificates, first block only", "pkg/csr/certificate.go", "block, _ := pem.Decode(data)", "block, rest := pem.Decode(data)\n\tif next, _ := pem.Decode(rest); next != nil {\n\t\tblock = next\n\t}", ""},
	{"cleaner: earliest rule", "pkg/csr/retention.go", "at.Before(d.at)", "at.After(d.at)", ""},
	{"cleaner: time of the condition", "pkg/csr/retention.go", "deadline.add(condition.LastUpdateTime.Time, rule.age)", "deadline.add(obj.CreationTimestamp.Time, rule.age)", ""},
	{"cleaner: foreign signers", "controllers/cleaner/reconciler.go", "return ok && obj.DeletionTimestamp == nil", "return ok && obj.Spec.SignerName != \"example.com/client\"", ""},
	{"cleaner: not before due", "controllers/cleaner/reconciler.go", "now.After(deadline)", "now.After(deadline.Add(-time.Hour))", ""},
	{"cleaner: deviation, on time", "controllers/cleaner/reconciler.go", "now.After(deadline)", "now.After(deadline.Add(time.Hour))", ""},
}
