package main

// The tests of each part. The model of a rotation runs a third of its usual random lives. The table of Next comes
// first.
const (
	approverTests = "./controllers/approver"
	signerTests   = "./controllers/signer"
	rotationTests = "./controllers/rotation -lives 40"
	sanTests      = "./pkg/san"
	sourceTests   = "./pkg/inventory"
	identityTests = "./pkg/nodeidentity"
	blockTests    = "./pkg/blocklist"
)

// Rules for kubelet serving certificates.
var servingMutations = []mutation{
	{"serving: the requester is a node", "controllers/approver/serving.go", "deny(!req.Requester.IsNode(), ", "deny(false, ", approverTests},
	{"serving: the common name is the requester's", "controllers/approver/serving.go", "subject.CommonName != req.Requester.Username || ", "", approverTests},
	{"serving: the organization", "controllers/approver/serving.go", "!slices.Equal(subject.Organization, []string{csr.NodeGroup})", "len(subject.Organization) == 0", approverTests},
	{"serving: the usages", "controllers/approver/serving.go", "deny(!req.HasServingUsages(), ", "deny(false, ", approverTests},
	{"serving: no e-mail addresses", "controllers/approver/serving.go", "len(req.Cert.EmailAddresses) > 0", "len(req.Cert.EmailAddresses) > 9", approverTests},
	{"serving: no URIs", "controllers/approver/serving.go", "len(req.Cert.URIs) > 0", "len(req.Cert.URIs) > 9", approverTests},
	{"serving: nothing unexpected", "controllers/approver/serving.go", "deny(len(unexpected) > 0, ", "deny(false, ", approverTests},
	{"serving: names that crypto/x509 can match", "controllers/approver/serving.go", "return san.CheckDNSName(name, true) == nil", "return san.CheckDNSName(name, true) == nil || true", approverTests},
	{"serving: a name at least", "controllers/approver/serving.go", "len(req.Cert.DNSNames)+len(req.Cert.IPAddresses) == 0", "false", approverTests},
	{"serving: reserved for good", "controllers/approver/serving.go", "why := reserved.Why(name); why != \"\" &&", "why := reserved.Why(name); why != \"\" && false &&", approverTests},
	{"serving: names of Services", "controllers/approver/serving.go", "case facts.service != \"\":", "case false:", approverTests},
	{"serving: no Service takes the name of a node", "controllers/approver/serving_lookup.go", "if !ofNode(node, value) {", "if true {", approverTests},
	{"serving: names of API servers", "controllers/approver/serving.go", "case facts.apiServer != \"\":", "case false:", approverTests},
	{"serving: names belong to the node", "controllers/approver/serving.go", "if facts.claim.NotOwned && facts.service", "if false && facts.service", approverTests},
	{"serving: the machine is this node's", "controllers/approver/serving.go", "case f.Bound != \"\" && f.Bound != node:", "case false:", approverTests},
	{"serving: a stronger entry", "controllers/approver/serving.go", "case facts.claim.Owner != \"\":", "case false:", approverTests},
	{"serving: another Node", "controllers/approver/serving.go", "case facts.claim.Other != \"\":", "case false:", approverTests},
	{"serving: what several nodes may have", "controllers/approver/serving.go", "case facts.claim.NotReported:", "case false:", approverTests},
	{"serving: reports of blocked Nodes", "controllers/approver/serving_lookup.go", "s.Inventory.blocked(holder) && ", "false && ", approverTests},
	{"serving: what is unknown waits", "controllers/approver/serving.go", "{verdict.Wait.Because(unknown(err),", "{verdict.Deny.Because(unknown(err),", approverTests},
	{"serving: the stronger source decides", "pkg/inventory/claims.go", "return Claim{Owner: owner}, err", "return Claim{}, err", sourceTests},
	{"serving: what two Nodes report goes to neither", "pkg/inventory/claims.go", "return contest(node, value, holders), nil", "return Claim{}, nil", sourceTests},
	{"serving: what the node itself reports", "pkg/inventory/claims.go", "case !slices.Contains(holders, node):", "case !slices.Contains(holders, node) && false:", sourceTests},
	{"serving: a Node keeps its own name", "pkg/inventory/claims.go", "case IsName(node, value):", "case false:", sourceTests},
	{"serving: IPv4-mapped addresses", "pkg/san/san.go", "return SAN{Address: address.Unmap()} //", "return SAN{Address: address} //", sanTests},
	{"serving: case of names", "pkg/san/san.go", "lower[i] += 'a' - 'A'", "lower[i] += 0", sanTests},
	{"serving: the trailing dot", "pkg/san/san.go", "name = strings.TrimSuffix(name, \".\")", "name += \"\"", sanTests},
	{"serving: zones", "pkg/san/san.go", " && address.Zone() == \"\"", "", sanTests},
}

// Rules for a node's first certificate.
var identityMutations = []mutation{
	{"identity: a token for another node", "controllers/approver/bootstrap.go", "return strings.HasPrefix(group, csr.TokenGroupPrefix)", "return false && strings.HasPrefix(group, csr.TokenGroupPrefix)", approverTests},
	{"identity: one group of several is enough", "controllers/approver/bootstrap.go", "return !boundHere(req) && slices", "return slices", approverTests},
	{"identity: bound tokens only", "controllers/approver/bootstrap.go", "case p.TokenBinding && !boundHere(req):", "case false:", approverTests},
	{"identity: users", "controllers/approver/bootstrap.go", "len(p.Users) > 0 && !slices.Contains", "len(p.Users) > 99 && !slices.Contains", approverTests},
	{"identity: the age of a request", "controllers/approver/bootstrap.go", "case p.MaxRequestAge > 0 && age > p.MaxRequestAge:", "case false:", approverTests},
	{"identity: a subject that names a node", "controllers/approver/bootstrap.go", "case req.NodeName() == \"\":", "case false:", approverTests},
	{"identity: what is unknown waits", "controllers/approver/bootstrap.go", "case facts.unavailable != \"\":", "case false:", approverTests},
	{"identity: a node that is alive", "controllers/approver/bootstrap.go", "case facts.node == nodeAlive:", "case false:", approverTests},
	{"identity: a node that may be alive", "controllers/approver/bootstrap.go", "case facts.node == nodeUnknown:", "case false:", approverTests},
	{"identity: expected by a source", "controllers/approver/bootstrap.go", "\tcase entry == nil:\n", "\tcase false:\n", approverTests},
	{"identity: a machine that leaves", "controllers/approver/bootstrap.go", "case entry.Leaving:", "case false:", approverTests},
	{"identity: a machine that is another node", "controllers/approver/bootstrap.go", "case entry.Bound != \"\" && entry.Bound != req.NodeName():", "case false:", approverTests},
	{"identity: a dead node joins once", "controllers/approver/bootstrap.go", "case facts.node == nodeDead && !p.Rejoin:", "case false:", approverTests},
	{"identity: a machine joins once", "controllers/approver/bootstrap.go", "case comesBack && !p.Rejoin:", "case false:", approverTests},
	{"identity: a machine without a time", "controllers/approver/bootstrap.go", "case machine.Created.IsZero():", "case false:", approverTests},
	{"identity: too early", "controllers/approver/bootstrap.go", "case early > w.Before:", "case false:", approverTests},
	{"identity: too late", "controllers/approver/bootstrap.go", "case late > w.After:", "case false:", approverTests},
	{"identity: a requester that is gone", "controllers/approver/bootstrap.go", "if facts.gone != \"\" {", "if false {", approverTests},
	{"identity: a lease that moves", "controllers/approver/bootstrap.go", "case life == nodeidentity.Alive:", "case false:", approverTests},
	{"identity: a certificate that has ended", "controllers/approver/bootstrap.go", "req.Created.Sub(renewed) > p.CertificateLifetime+skew", "req.Created.Sub(renewed) > p.CertificateLifetime-skew", approverTests},
	{"identity: dead after a minute", "pkg/nodeidentity/liveness.go", "max(standstill, lease.lasts)", "leastQuiet", identityTests},
	{"identity: two witnesses", "pkg/nodeidentity/liveness.go", "witnesses > 0 && witnesses >= min(others, 2)", "witnesses > 0", identityTests},
	{"identity: a blocked node", "pkg/blocklist/blocklist.go", "if blocked.nodes.Has(name) {", "if false {", blockTests},
	{"identity: a blocked certificate", "pkg/blocklist/blocklist.go", "if blocked.certificates.Has(sum) {", "if false {", blockTests},
	{"identity: a certificate while no list was read", "pkg/blocklist/blocklist.go", "len(nodes)+len(certificates) == 0 && !kubelet", "len(nodes) == 0 && !kubelet", blockTests},
	{"identity: a digest in the API server's form", "pkg/csr/credential.go", "len(sum) == sha256.Size", "len(sum) <= sha256.Size", "./pkg/csr"},
	{"identity: witnesses that move", "pkg/nodeidentity/liveness.go", "o.steady.IsZero() || !within(o.quiet(), o.since, at)", "o.steady.IsZero()", identityTests},
}

// Rules of a rotation.
var rotationMutations = []mutation{
	{"rotation: a candidate signs when API servers trust it", "controllers/rotation/preparing.go", "p.status.WaitingFor = append(p.status.WaitingFor, p.missingTrust(p.facts.Candidate)...)\n", "", rotationTests},
	{"rotation: a candidate signs when its owner confirms", "controllers/rotation/preparing.go", "len(unconfirmed) > 0", "len(unconfirmed) > 9", rotationTests},
	{"rotation: a candidate is published first", "controllers/rotation/preparing.go", "\tcase !p.publishFirst():\n\t\treturn\n", "", rotationTests},
	{"rotation: a candidate that has ended", "controllers/rotation/preparing.go", "case !secret.Candidate.NotAfter.After(p.facts.Now):", "case secret.Candidate == nil:", rotationTests},
	{"rotation: a CA that retired here never signs again", "controllers/rotation/secret.go", "case p.facts.sealed(secret.TLS) || last != nil && last.KeyID == secret.TLS.KeyID:", "case last != nil && last.KeyID == \"\":", rotationTests},
	{"rotation: rollback to what is trusted", "controllers/rotation/prepared.go", "\tcase len(missing) > 0:\n\t\tp.refuseOperation(", "\tcase false:\n\t\tp.refuseOperation(", rotationTests},
	{"rotation: rollback to what has not ended", "controllers/rotation/prepared.go", "case !retiring.NotAfter.After(p.facts.Now):\n\t\tp.refuseOperation", "case false:\n\t\tp.refuseOperation", rotationTests},
	{"rotation: a noted rollback comes before a completion", "controllers/rotation/prepared.go", "if p.rollbackNoted() {", "if false {", rotationTests},
	{"rotation: nothing outstanding is left", "controllers/rotation/prepared.go", "left = append(left, p.outstandingTexts()...)", "", rotationTests},
	{"rotation: what signs is trusted before a completion", "controllers/rotation/prepared.go", "blockers = append(blockers, p.missingTrust(p.facts.Signing)...)", "", rotationTests},
	{"rotation: the ledger closes before the bundle shrinks", "controllers/rotation/completing.go", "if !p.facts.sealed(s.Retiring) {", "if false {", rotationTests},
	{"rotation: outstanding is counted again", "controllers/rotation/completing.go", "len(outstanding) > 0 && s.Retiring.OutstandingAcceptedAt == nil", "false", rotationTests},
	{"rotation: late signers have seen the end", "controllers/rotation/completing.go", "quiet.After(p.facts.Now) {", "quiet.IsZero() {", rotationTests},
	{"rotation: API servers refuse before the key goes", "controllers/rotation/completing.go", "p.status.WaitingFor = append(p.status.WaitingFor, p.facts.RetiringRefused.Lacks()...)\n", "", rotationTests},
	{"rotation: a CA has one authority", "controllers/rotation/secret.go", "case p.facts.Others[secret.TLS.KeyID] != \"\":", "case false:", rotationTests},
	{"rotation: what the administrator brought is not replaced", "controllers/rotation/preparing.go", "case !p.broughtCandidateMissing(): // it has issued nothing", "case true:", rotationTests},
	{"rotation: a confirmation is part of trust", "controllers/rotation/status.go", "case len(unconfirmed) > 0:", "case false:", rotationTests},
	{"rotation: an edited Secret is refused", "controllers/rotation/secret.go", "case len(repairs) == 0:", "case true:", rotationTests},
	{"rotation: signers without proof", "controllers/rotation/next.go", "return slices.Contains(untrusted, name) }", "return slices.Contains(untrusted, name) && false }", rotationTests},
	{"rotation: no step on what has changed", "controllers/rotation/act.go", "latest.UID == obj.UID && latest.Generation == obj.Generation && sameStatus", "latest.UID == obj.UID || sameStatus", rotationTests},
}
