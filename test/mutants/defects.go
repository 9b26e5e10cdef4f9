package main

// Defects that were made by hand, without looking at the tests: of rules, signer, cleaner, rotation and manifests. "make test"
// must notice each. Tests that need a control plane find it in the environment.
var defectMutations = []mutation{
	{"defect: a dry run of the approver judges what is old", "controllers/approver/reconciler.go", "r.age(obj) > decidedFor {", "false {", "./controllers/approver"},
	{"defect: a decision about another request of the same name", "controllers/approver/reconciler.go", "if obj.UID != key.UID { // another", "if obj.UID != key.UID && false { // another", "./controllers/approver"},
	{"defect: the approver decides about a trimmed request", "controllers/approver/reconciler.go", "if csr.Trimmed(obj) || !csr.Undecided(obj) {", "if !csr.Undecided(obj) {", "./controllers/approver"},
	{"defect: a node with an old Lease is alive for ever", "pkg/nodeidentity/liveness.go", "case !lease.steady.IsZero() && within(standstill, lease.since, at):", "case !lease.steady.IsZero():", "./pkg/nodeidentity"},
	{"defect: the signer ignores the block list", "controllers/signer/reconciler.go", "r.BlockList.Check(req); reason != \"\" {", "r.BlockList.Check(req); reason != \"\" && false {", "./controllers/signer"},
	{"defect: the signer signs what is due for deletion", "controllers/signer/reconciler.go", "\tcase due && now.After(at):\n", "\tcase false:\n", "./controllers/signer"},
	{"defect: the signer does not notice a clock that is behind", "controllers/signer/reconciler.go", "skew.Abs() > servertime.MaxSkew", "skew > servertime.MaxSkew", "./controllers/signer"},
	{"defect: a certificate without a record", "controllers/signer/reconciler.go", "\tr.Audit.Write(ctx, r.Clock.Now(), audit.Signed, record)\n", "", "./controllers/signer"},
	{"defect: somebody's certificate counts as stored", "controllers/signer/reconciler.go", "case bytes.Equal(stored.Status.Certificate, issued.PEM):", "case len(stored.Status.Certificate) > 0 || bytes.Equal(nil, issued.PEM):", "./controllers/signer"},
	{"defect: a certificate that the ledger does not have", "controllers/signer/reconciler.go", "obj.Spec.SignerName, notAfter); err != nil {", "obj.Spec.SignerName, notAfter); err != nil && false {", "./controllers/signer"},
	{"defect: the cleaner deletes a request that has changed", "controllers/cleaner/reconciler.go", "client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion}", "client.Preconditions{UID: &obj.UID}", "./controllers/cleaner"},
	{"defect: the cleaner does not ask for the time before it deletes", "controllers/cleaner/reconciler.go", "tell = r.ServerTime.Fresh", "tell = r.ServerTime.Now", "./controllers/cleaner"},
	{"defect: the cleaner deletes at any rate", "controllers/cleaner/reconciler.go", "if r.Limiter.Wait(ctx) != nil {", "if false {", "./controllers/cleaner"},
	{"defect: a dry run of the cleaner deletes", "controllers/cleaner/reconciler.go", "\tcase r.DryRun:\n\t\tr.reportDue(ctx, obj)\n", "\tcase false:\n\t\tr.reportDue(ctx, obj)\n", "./controllers/cleaner"},
	{"defect: a key is destroyed before API servers refuse its CA", "controllers/rotation/completing.go", "p.status.WaitingFor = append(p.status.WaitingFor, p.facts.RetiringRefused.Lacks()...)", "_ = p.facts.RetiringRefused.Lacks()", "./controllers/rotation -lives 40"},
	{"defect: a rollback to a CA that API servers do not trust", "controllers/rotation/prepared.go", "\tcase len(missing) > 0:\n\t\tp.status.WaitingFor = append(p.status.WaitingFor, missing...)\n\tdefault:\n\t\tp.actOnSecret(SwapBack)\n", "\tdefault:\n\t\tp.actOnSecret(SwapBack)\n", "./controllers/rotation -lives 40"},
	{"defect: a late signer is not waited for", "controllers/rotation/completing.go", "s.LedgerClosedAt.Add(ledger.QuietAfter)", "s.LedgerClosedAt.Add(0 * ledger.QuietAfter)", "./controllers/rotation -lives 40"},
	{"defect: the signer may sign for every name", "config/rbac/signer.yaml", "  - kubernetes.io/kubelet-serving\n", "  - kubernetes.io/kubelet-serving\n  - kubernetes.io/*\n", "./controllers -run ^TestRightsAreWhatIsGranted$"},
	{"defect: a person who may patch an authority may change its spec", "config/rotation/spec_policy.yaml", "object.spec != oldObject.spec || variables.others", "variables.others", "./test/rotation -run ^TestRotationAdmission"},
	{"defect: a Pod is ready before it is", "config/manager/base/deployment.yaml", "path: /readyz", "path: /healthz", "./test/manifests"},
}
