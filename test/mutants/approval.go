package main

// ruleTests are the tests of pkg/rules.
const ruleTests = "./pkg/rules"

// Approval rules.
var approvalMutations = []mutation{
	{"rules: the requester may use the rule", "controllers/approver/approval_rules.go", "case !allowed:", "case !allowed && false:", approverTests},
	{"rules: others' rules are not told", "controllers/approver/approval_rules.go", "\t\tif allowed {\n", "\t\tif allowed || true {\n", approverTests},
	{"rules: the Service exists", "controllers/approver/approval_rules.go", "case apierrors.IsNotFound(err):", "case false:", approverTests},
	{"rules: no ExternalName", "controllers/approver/approval_rules.go", "case service.Spec.Type == corev1.ServiceTypeExternalName:", "case false:", approverTests},
	{"rules: the live account", "controllers/approver/approval_rules.go", "if !r.Assume {", "if false {", approverTests},
	{"rules: nothing is denied", "controllers/approver/reconciler.go", "rule.Policy != nil && decision.Verdict == verdict.Deny", "false", approverTests},
	{"rules: both groups of an account", "pkg/rules/content.go", "if !slices.Contains(by.Groups, group) {", "if false {", ruleTests},
	{"rules: the UID of an account", "pkg/rules/content.go", "if by.UID == \"\" {", "if false {", ruleTests},
	{"rules: what is not listed is absent", "pkg/rules/content.go", "count > 0 && !slices.Contains(r.Allow, contents[i])", "false", ruleTests},
	{"rules: something is asked for", "pkg/rules/content.go", "if !present {", "if false {", ruleTests},
	{"rules: no unexpected content", "pkg/rules/content.go", "len(found) > 0", "len(found) > 9", ruleTests},
	{"rules: no client on a trusted CA", "pkg/rules/content.go", "s.Trusted == \"\" || !s.ForClients() ||", "true ||", ruleTests},
	{"rules: no certificate for every purpose on a trusted CA", "pkg/csr/request.go", "len(usages) == 0 || slices.Contains(usages, x509.ExtKeyUsageAny)", "slices.Contains(usages, x509.ExtKeyUsageAny)", ruleTests},
	{"rules: no wildcard", "pkg/rules/content.go", "san.CheckDNSName(name, r.AllowWildcards)", "san.CheckDNSName(name, true)", ruleTests},
	{"rules: names in one form", "pkg/rules/content.go", "if name != san.CanonicalName(name) {", "if false {", ruleTests},
	{"rules: no address as a name", "pkg/rules/content.go", "netip.ParseAddr(name); err == nil || san.EndsInNumber(name)", "netip.ParseAddr(name); err == nil", ruleTests},
	{"rules: a lifetime that is known", "pkg/rules/content.go", "case s.Lifetime == 0:", "case false:", ruleTests},
	{"rules: the longest lifetime", "pkg/rules/content.go", "case s.Lifetime > r.MaxDuration.Duration:", "case false:", ruleTests},
	{"rules: an error is not true", "pkg/rules/cel.go", "if result == types.True {", "if result == types.True || err != nil {", ruleTests},
	{"rules: the cost of the whole request", "pkg/rules/cel.go", "s.spent += *details.ActualCost()", "s.spent = *details.ActualCost()", ruleTests},
	{"rules: the estimated cost", "pkg/rules/cel.go", "if err == nil && estimate.Max > maxCost {", "if false {", ruleTests},
	{"rules: a boolean", "pkg/rules/cel.go", "if checked.OutputType() != cel.BoolType {", "if false {", ruleTests},
	{"serviceNames: its own namespace", "pkg/rules/content.go", "\".\"+namespace+\".svc\")\n", "\".svc\")\n", ruleTests},
	{"serviceNames: not the API server", "pkg/rules/content.go", "if service == \"kubernetes\" {", "if service == \"kubernetes.\" {", ruleTests},
	{"serviceNames: a name at least", "pkg/rules/content.go", "case len(names) == 0:", "case false:", ruleTests},
	{"spiffe: its own ID", "pkg/rules/content.go", "s.Cert.URIs[0].String() != id", "false", ruleTests},
	{"spiffe: one ID", "pkg/rules/content.go", "len(s.Cert.URIs) != 1 ||", "len(s.Cert.URIs) == 0 ||", ruleTests},
	{"ownIdentity: its own name", "pkg/rules/content.go", "subject.CommonName != by.Username", "false", ruleTests},
	{"ownIdentity: its own groups", "pkg/rules/content.go", "slices.ContainsFunc(subject.Organization, other)", "false", ruleTests},
	{"ownIdentity: no group of Kubernetes", "pkg/rules/content.go", "slices.ContainsFunc(csr.ComponentSubjects(), reserved)", "false", ruleTests},
	{"ownIdentity: one token", "pkg/rules/content.go", "len(ids) != 1 ||", "len(ids) == 0 ||", ruleTests},
	{"ownIdentity: no certificate", "pkg/rules/content.go", "!strings.HasPrefix(ids[0], credentialIDPrefix) ||", "", ruleTests},
	{"ownIdentity: not beyond the credential", "pkg/rules/content.go", "now.Add(s.Lifetime).After(timeIn(s.Requester.Extra[rule.ExpiryExtra]))", "false", ruleTests},
	{"signer: no user of Kubernetes", "pkg/csr/signers.go", "[]string{\"O=system:*\", \"O=kubeadm:*\", \"CN=system:*\", \"CN=kubeadm:*\"}", "[]string{\"O=system:masters\"}", ""},
}
