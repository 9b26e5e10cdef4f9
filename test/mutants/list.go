package main

import "slices"

// mutation removes one rule: new replaces old, which the file contains exactly once.
type mutation struct {
	rule, file, old, new string
	// tests are the arguments of the go test that must notice. If it is empty, the parity test must notice.
	tests string
}

// mutations are the lists of mutations by the tests that must notice: the parity test, unit tests, or the tests of "make test".
var mutations = map[string][]mutation{
	"parity":  slices.Concat(approverMutations, signerMutations, certificateMutations, cleanerMutations),
	"units":   slices.Concat(servingMutations, identityMutations, rotationMutations, approvalMutations),
	"defects": defectMutations,
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

// Rules of the signer. Left out, because no request to an API server distinguishes them:
//   - the floor of ten minutes: the API refuses shorter lifetimes at creation, and updates of requests stored with one;
//   - the signature check and Failed/Malformed: the API server refuses every update of such a request;
//   - that a certificate is not replaced: the API server refuses that too;
//   - Failed with a status other than True: the same;
//   - the meaning of usages that only custom signers permit, and unknown usages: TestUsages and TestCheck have them;
//   - Backdate added to the ceiling and the like are variants of what is here.
var signerMutations = []mutation{
	{"signer: no user of Kubernetes", "pkg/csr/signers.go", "[]string{\"O=system:*\", \"O=kubeadm:*\", \"CN=system:*\", \"CN=kubeadm:*\"}", "[]string{\"O=system:masters\"}", ""},
	{"signer: only its own signer names", "controllers/signer/reconciler.go", "return ours && csr.StateOf(obj)", "return (ours || len(obj.Name) > 0) && csr.StateOf(obj)", ""},
	{"signer: only approved", "pkg/csr/state.go", "case Condition(obj, certificatesv1.CertificateApproved) != nil:\n\t\treturn Approved\n\tdefault:\n\t\treturn Pending", "default:\n\t\treturn Approved", ""},
	{"signer: never after Failed", "pkg/csr/state.go", "case hasFailed(obj):", "case false && hasFailed(obj):", ""},
	{"signer: never after Denied", "pkg/csr/state.go", "case Condition(obj, certificatesv1.CertificateDenied) != nil:", "case false:", ""},
	{"signer: stale approvals", "controllers/signer/reconciler.go", "case due && now.After(at):", "case due && now.After(at.Add(1000*time.Hour)):", ""},
	{"client: shape is checked", "pkg/csr/signers.go", "Shape: APIServerClientShape,", "Shape: func(*Request) error { return nil },", ""},
	{"client: usages permitted", "pkg/csr/shape.go", "return fmt.Errorf(\"invalid usage for client certificate: %s\", usage)", "continue", ""},
	{"client: client auth needed", "pkg/csr/shape.go", "if !slices.Contains(req.Usages, certificatesv1.UsageClientAuth) {", "if false {", ""},
	{"client: text of a usage", "pkg/csr/shape.go", "invalid usage for client certificate: %s", "invalid usage for client certificate: %q", ""},
	{"kubelet client: signer checks the shape", "pkg/csr/signers.go", "Shape: KubeletClientShape,", "Shape: func(*Request) error { return nil },", ""},
	{"kubelet serving: signer checks the shape", "pkg/csr/signers.go", "Shape: KubeletServingShape,", "Shape: func(*Request) error { return nil },", ""},
	{"kubelet: organization", "pkg/csr/shape.go", "if !slices.Equal(req.Cert.Subject.Organization, []string{NodeGroup}) {", "if false {", ""},
	{"kubelet: organization alone", "pkg/csr/shape.go", "!slices.Equal(req.Cert.Subject.Organization, []string{NodeGroup})", "!slices.Contains(req.Cert.Subject.Organization, NodeGroup)", ""},
	{"kubelet: common name", "pkg/csr/shape.go", "!strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix)", "strings.HasPrefix(req.Cert.Subject.CommonName, \"!\")", ""},
	{"kubelet: common name from the start", "pkg/csr/shape.go", "!strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix)", "!strings.Contains(req.Cert.Subject.CommonName, NodeUserPrefix)", ""},
	{"kubelet: empty node name", "pkg/csr/shape.go", "if !strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix) {", "if req.Cert.Subject.CommonName == NodeUserPrefix || !strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix) {", ""},
	{"kubelet client: DNS names", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) > 0:", "case false:", ""},
	{"kubelet client: email addresses", "pkg/csr/shape.go", "return errors.New(\"DNS subjectAltNames are not allowed\")\n\tcase len(req.Cert.EmailAddresses) > 0:", "return errors.New(\"DNS subjectAltNames are not allowed\")\n\tcase false:", ""},
	{"kubelet client: IP addresses", "pkg/csr/shape.go", "case len(req.Cert.IPAddresses) > 0:", "case false:", ""},
	{"kubelet client: URIs", "pkg/csr/shape.go", "return errors.New(\"IP subjectAltNames are not allowed\")\n\tcase len(req.Cert.URIs) > 0:", "return errors.New(\"IP subjectAltNames are not allowed\")\n\tcase false:", ""},
	{"kubelet client: name before usages", "pkg/csr/shape.go", "\tif err := checkNodeCommonName(req); err != nil {\n\t\treturn err\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {\n\t\treturn errors.New(\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\treturn nil", "\tif !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {\n\t\treturn errors.New(\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\treturn checkNodeCommonName(req)", ""},
	{"kubelet client: usages", "pkg/csr/shape.go", "if !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {", "if false {", ""},
	{"kubelet serving: DNS or IP needed", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case false:", ""},
	{"kubelet serving: IP is enough", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case len(req.Cert.DNSNames) == 0:", ""},
	{"kubelet serving: DNS is enough", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case len(req.Cert.IPAddresses) == 0:", ""},
	{"kubelet serving: email addresses", "pkg/csr/shape.go", "return errors.New(\"DNS or IP subjectAltName is required\")\n\tcase len(req.Cert.EmailAddresses) > 0:", "return errors.New(\"DNS or IP subjectAltName is required\")\n\tcase false:", ""},
	{"kubelet serving: URIs", "pkg/csr/shape.go", "case len(req.Cert.URIs) > 0:\n\t\treturn errors.New(\"URI subjectAltNames are not allowed\")\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth)", "case false:\n\t\treturn errors.New(\"URI subjectAltNames are not allowed\")\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth)", ""},
	{"kubelet serving: usages", "pkg/csr/shape.go", "if !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {", "if false {", ""},
	{"kubelet serving: usages before name", "pkg/csr/shape.go", "\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {\n\t\treturn errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn checkNodeCommonName(req)", "\tif err := checkNodeCommonName(req); err != nil {\n\t\treturn err\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {\n\t\treturn errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn nil", ""},
	{"kubelet serving: name", "pkg/csr/shape.go", "return errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn checkNodeCommonName(req)", "return errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn nil", ""},
	{"kubelet: no other usage", "pkg/csr/shape.go", "case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, purpose:\n\t\tdefault:\n\t\t\treturn false", "default:", ""},
	{"kubelet: key encipherment may be there", "pkg/csr/shape.go", "case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, purpose:", "case certificatesv1.UsageDigitalSignature, purpose:", ""},
	{"kubelet: digital signature needed", "pkg/csr/shape.go", "return slices.Contains(usages, certificatesv1.UsageDigitalSignature) && slices", "return slices", ""},
	{"kubelet: purpose needed", "pkg/csr/shape.go", " && slices.Contains(usages, purpose)", "", ""},
	{"signer: reason of a failure", "pkg/csr/signers.go", "Reason: \"SignerValidationFailure\"", "Reason: \"ValidationFailure\"", ""},
	{"deviation: legacy-unknown is not served", "pkg/csr/signers.go", "var builtins = []Builtin{\n", "var builtins = []Builtin{\n\t{Name: \"kubernetes.io/legacy-unknown\", Shape: APIServerClientShape},\n", ""},
	{"deviation: weak RSA keys", "pkg/ca/profile.go", "key.N.BitLen() >= p.config.MinRSABits", "key.N.BitLen() >= 1024", ""},
	{"deviation: DNS names", "pkg/ca/profile.go", "for _, name := range req.DNSNames {", "for _, name := range req.DNSNames[:0] {", ""},
	{"deviation: DNS names, addresses", "pkg/san/san.go", "if address.Zone() != \"\" || address.Is4In6() || address.String() != name {", "if false {", ""},
	{"deviation: DNS names, underscores", "pkg/san/san.go", "char == '-', char == '_':", "char == '-':", ""},
	{"deviation: curves", "pkg/ca/profile.go", "case elliptic.P256(), elliptic.P384(), elliptic.P521():", "case elliptic.P224(), elliptic.P256(), elliptic.P384(), elliptic.P521():", ""},
	{"deviation: subject attributes", "pkg/csr/limits.go", "if len(nested(info.Subject.Bytes, l.SubjectAttributes+1)) > l.SubjectAttributes {", "if false {", ""},
	{"deviation: number of names", "pkg/csr/limits.go", "if names > l.Names {", "if names > 1000*l.Names {", ""},
	{"deviation: DER bytes", "pkg/csr/request.go", "if len(block.Bytes) > l.DERBytes {", "if false {", ""},
	{"deviation: request bytes", "pkg/csr/request.go", "if len(data) > l.RequestBytes {", "if false {", ""},
	{"deviation: forbidden subjects", "pkg/csr/signers.go", "[]string{\"O=system:masters\"}", "[]string(nil)", ""},
	{"deviation: forbidden subjects, whole value", "pkg/csr/signers.go", "[]string{\"O=system:masters\"}", "[]string{\"O=system:masters*\"}", ""},
	{"deviation: forbidden subjects, organization only", "pkg/ca/profile.go", "values := subject.Organization", "values := append([]string{subject.CommonName}, subject.Organization...)", ""},
	{"deviation: bundles of CA certificates", "pkg/ca/authority.go", "\tif len(certs) == 0 {", "\tif len(certs) != 1 {", ""},
	{"deviation: label of a key", "pkg/ca/authority.go", "if key == nil {", "if _, err := x509.ParsePKCS8PrivateKey(block.Bytes); key == nil || err == nil && block.Type != \"PRIVATE KEY\" {", ""},
	{"deviation: CA that is none", "pkg/ca/authority.go", "if !cert.BasicConstraintsValid || !cert.IsCA {", "if false {", ""},
	{"deviation: CA that may not sign", "pkg/ca/authority.go", "if cert.KeyUsage != 0 && cert.KeyUsage&x509.KeyUsageCertSign == 0 {", "if false {", ""},
	{"deviation: chain", "pkg/ca/authority.go", "with.appended = append(with.appended, encode(cert.Raw)...)", "with.appended = append(with.appended, encode(cert.Raw)[:0]...)", ""},
	{"deviation: chain, None", "pkg/ca/authority.go", "\tcase None:\n\t\tend = 0\n", "\tcase None:\n", ""},
	{"deviation: CA not yet valid", "pkg/ca/authority.go", "if now.Before(cert.NotBefore) {", "if false {", ""},
}

// The content and the lifetime of a certificate.
var certificateMutations = []mutation{
	{"lifetime: default", "pkg/ca/profile.go", "return p.config.Lifetime\n", "return p.config.MinLifetime\n", ""},
	{"lifetime: default, 365 days", "pkg/ca/profile.go", "DefaultLifetime = 365 * 24 * time.Hour", "DefaultLifetime = 364 * 24 * time.Hour", ""},
	{"lifetime: ceiling", "pkg/ca/profile.go", "return min(max(requested, p.config.MinLifetime), p.config.MaxLifetime)", "return max(requested, p.config.MinLifetime)", ""},
	{"lifetime: wish", "pkg/ca/profile.go", "return min(max(requested, p.config.MinLifetime), p.config.MaxLifetime)", "return p.config.MaxLifetime", ""},
	{"lifetime: ceiling before floor", "pkg/ca/profile.go", "return min(max(requested, p.config.MinLifetime), p.config.MaxLifetime)", "return max(min(requested, p.config.MaxLifetime), p.config.MinLifetime)", ""},
	{"lifetime: seconds of the request", "pkg/csr/request.go", "time.Duration(*seconds)*time.Second", "time.Duration(*seconds)*time.Millisecond", ""},
	{"validity: backdating", "pkg/ca/issue.go", "now.Add(-Backdate), now.Add(lifetime)", "now, now.Add(lifetime)", ""},
	{"validity: 8 h rule", "pkg/ca/issue.go", "if lifetime >= shortLived {", "if true {", ""},
	{"validity: 8 h rule, at 8 h", "pkg/ca/issue.go", "if lifetime >= shortLived {", "if lifetime > shortLived {", ""},
	{"validity: backdating within long lifetimes", "pkg/ca/issue.go", "if lifetime >= shortLived {", "if false {", ""},
	{"validity: end of the CA", "pkg/ca/issue.go", "if !notAfter.Before(a.ends.NotAfter) {", "if false {", ""},
	{"validity: ended CA", "pkg/ca/authority.go", "if !now.Before(a.ends.NotAfter) {", "if false {", ""},
	{"usages: key usages", "pkg/ca/issue.go", "KeyUsage:              req.KeyUsage,", "KeyUsage:              0,", ""},
	{"usages: extended key usages", "pkg/ca/issue.go", "ExtKeyUsage:           req.ExtKeyUsage,", "ExtKeyUsage:           nil,", ""},
	{"subject: known attributes only", "pkg/csr/request.go", "subject.Names, subject.ExtraNames = nil, nil", "subject.ExtraNames = subject.Names", ""},
	{"subject: is the request's", "pkg/ca/issue.go", "Subject:               req.Subject,", "Subject:               pkix.Name{CommonName: req.Subject.CommonName, Organization: req.Subject.Organization},", ""},
	{"names: DNS", "pkg/ca/issue.go", "DNSNames:              req.DNSNames,", "DNSNames:              nil,", ""},
	{"names: email", "pkg/ca/issue.go", "EmailAddresses:        req.EmailAddresses,", "EmailAddresses:        nil,", ""},
	{"names: IP", "pkg/ca/issue.go", "IPAddresses:           req.IPAddresses,", "IPAddresses:           nil,", ""},
	{"names: URI", "pkg/ca/issue.go", "URIs:                  req.URIs,", "URIs:                  nil,", ""},
	{"extensions: basic constraints", "pkg/ca/issue.go", "BasicConstraintsValid: true,", "BasicConstraintsValid: false,", ""},
	{"extensions: no CA", "pkg/ca/issue.go", "IsCA:                  false,", "IsCA:                  true,", ""},
	{"extensions: what was asked for is left out", "pkg/csr/request.go", "KeyUsage:       keyUsage,", "KeyUsage:       keyUsage | map[bool]x509.KeyUsage{true: x509.KeyUsageCertSign}[len(payload.Extensions) > 1],", ""},
	{"key: is the request's", "pkg/ca/issue.go", "a.cert, req.PublicKey, a.key)", "a.cert, a.key.Public(), a.key)", ""},
	{"certificate: one block", "pkg/ca/issue.go", "PEM:       append(encode(der), a.appended...),", "PEM:       append(encode(der), a.CertificatePEM()...),", ""},
	{"PEM: trailing data is ignored", "pkg/csr/request.go", "block, _ := pem.Decode(data)\n\tif block == nil ||", "block, rest := pem.Decode(data)\n\tif block == nil || len(rest) > 0 ||", ""},
	{"PEM: headers are ignored", "pkg/csr/request.go", "if block == nil ||", "if block == nil || len(block.Headers) > 0 ||", ""},
	{"CA: key in PKCS#8", "pkg/ca/authority.go", "x509.ParsePKCS8PrivateKey(der); err == nil {", "x509.ParsePKCS8PrivateKey(der); err == nil && key == nil {", ""},
	{"CA: key in PKCS#1", "pkg/ca/authority.go", "x509.ParsePKCS1PrivateKey(der); err == nil {", "x509.ParsePKCS1PrivateKey(der); err == nil && key == nil {", ""},
	{"CA: key in SEC 1", "pkg/ca/authority.go", "x509.ParseECPrivateKey(der); err == nil {", "x509.ParseECPrivateKey(der); err == nil && key == nil {", ""},
	{"configuration: CA of a signer", "controllers/config.go", "\t\tif pairs[one.CA] == nil {\n", "\t\tone.CA = servedSigners(all.Signing)[0].CA\n\t\tif pairs[one.CA] == nil {\n", ""},
	{"configuration: signers without a CA are left out", "controllers/config.go", "\tif !c.Empty() {\n", "\tif len(c.Signers) > 0 && c.Empty() {\n\t\tc.CA = c.Signers[0].CA\n\t}\n\tif !c.Empty() {\n", ""},
}
