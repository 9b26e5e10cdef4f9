package main

import "slices"

// mutation removes one rule: new replaces old, which the file contains exactly once.
type mutation struct {
	rule, file, old, new string
	// tests are the arguments of the go test that must notice. If it is empty, the parity test must notice.
	tests string
}

// Files of several mutations.
const (
	kubeletClientFile = "pkg/judge/kubeletclient/kubeletclient.go"
	bootstrapFile     = "pkg/judge/bootstrap/bootstrap.go"
	servingFile       = "pkg/judge/serving/serving.go"
	kubeletJudgeFile  = "controllers/approver/kubelet_client.go"
	authorizationFile = "internal/authorization/authorization.go"
)

// mutations are the lists of mutations by the tests that must notice: the parity test, unit tests, or the tests of "make test".
var mutations = map[string][]mutation{
	"parity":  slices.Concat(approverMutations, signerMutations, certificateMutations, cleanerMutations),
	"units":   slices.Concat(servingMutations, identityMutations, rotationMutations, approvalMutations),
	"defects": defectMutations,
}

// Rules of the approver. Left out: the version, UID and extra of the review, which an API server with RBAC ignores;
// and that nothing is approved after a denial, which the API server refuses too. The pure tests cover them.
var approverMutations = []mutation{
	{"approver: only its signer", "controllers/approver/reconciler.go", "return r.Judges[obj.Spec.SignerName]", "return r.Judges[certificatesv1.KubeAPIServerClientKubeletSignerName]", ""},
	{"approver: never after Approved", "pkg/csr/state.go", "\t\tCondition(obj, certificatesv1.CertificateApproved) == nil &&\n", "", ""},
	{"approver: never with a certificate", "pkg/csr/state.go", "return len(obj.Status.Certificate) == 0 &&", "return len(obj.Status.Certificate) >= 0 &&", ""},
	{"approver: Failed does not decide", "pkg/csr/state.go", "return len(obj.Status.Certificate) == 0 &&", "return len(obj.Status.Certificate) == 0 && Condition(obj, certificatesv1.CertificateFailed) == nil &&", ""},
	{"approver: shape", kubeletClientFile, "err := csr.KubeletClientShape(req); err != nil {\n\t\treturn judge", "err := csr.KubeletClientShape(req); err != nil && len(allowed) > 9 {\n\t\treturn judge", ""},
	{"approver: selfnodeclient is for oneself", kubeletClientFile, "renews := req.Requester.Username == req.Cert.Subject.CommonName", "renews := true", ""},
	{"approver: selfnodeclient, exact name", kubeletClientFile, "renews := req.Requester.Username == req.Cert.Subject.CommonName", "renews := len(req.Requester.Username) == len(req.Cert.Subject.CommonName)", ""},
	{"approver: selfnodeclient", kubeletClientFile, "renews := req.Requester.Username == req.Cert.Subject.CommonName", "renews := false", ""},
	{"approver: nodeclient after selfnodeclient", kubeletClientFile, "(!renews || !p.RenewOnly)", "!renews", ""},
	{"approver: order", kubeletJudgeFile, "range permissions {", "range slices.Backward(permissions) {", ""},
	{"approver: review of selfnodeclient", kubeletClientFile, "SelfNodeClient Permission = \"selfnodeclient\"", "SelfNodeClient Permission = \"nodeclient\"", ""},
	{"approver: review of nodeclient", kubeletClientFile, "\tNodeClient Permission = \"nodeclient\"", "\tNodeClient Permission = \"selfnodeclient\"", ""},
	{"approver: asks at all", kubeletJudgeFile, "if permitted {", "if permitted || true {", ""},
	{"approver: answer", "pkg/authz/authz.go", "return review.Status.Allowed, nil", "return !review.Status.Denied, nil", ""},
	{"approver: verb", kubeletClientFile, "Verb: \"create\"", "Verb: \"get\"", ""},
	{"approver: API group", kubeletClientFile, "Group: certificatesv1.GroupName,", "Group: \"\",", ""},
	{"approver: groups of the requester", "pkg/csr/request.go", "Groups: w.Groups, Extra: extra", "Extra: extra", "./pkg/authz"},
	{"approver: name of the requester", "pkg/csr/request.go", "User: w.Username, UID: w.UID", "UID: w.UID", "./pkg/authz"},
	{"approver: asks again", "controllers/approver/reconciler.go", "case decision.Verdict == judge.Wait:", "case decision.Verdict == judge.Wait && false:", ""},
	{"approver: never denies", "controllers/approver/reconciler.go", "if decision.Verdict == judge.Deny && (r.Denial != DenialPermanent || !csr.Reachable(obj)) {", "if false {", ""},
	{"approver: writes Approved", "controllers/approver/reconciler.go", "r.write(ctx, obj, req, decision, certificatesv1.CertificateApproved)", "r.write(ctx, obj, req, decision, certificatesv1.CertificateDenied)", ""},
	{"approver: reason", kubeletClientFile, "Reason: \"AutoApproved\"", "Reason: \"Approved\"", ""},
	{"approver: message of selfnodeclient", kubeletClientFile, "Auto approving self kubelet", "Auto approving kubelet", ""},
	{"approver: message of nodeclient", kubeletClientFile, "\"Auto approving kubelet client", "\"Auto approving a kubelet client", ""},
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
	{"cleaner: pending", "pkg/csr/retention.go", "add(obj.CreationTimestamp.Time, keep.Pending)", "add(obj.CreationTimestamp.Time, -1)", ""},
	{"cleaner: pending, not before", "pkg/csr/retention.go", "Pending: 24 * time.Hour", "Pending: 23 * time.Hour", ""},
	{"cleaner: pending, not later", "pkg/csr/retention.go", "Pending: 24 * time.Hour", "Pending: 25 * time.Hour", ""},
	{"cleaner: decided requests are not pending", "pkg/csr/retention.go", "if !decided {", "if decided || true {", ""},
	{"cleaner: deviation, foreign conditions", "pkg/csr/retention.go", "if Condition(obj, rule.kind) != nil {", "if Condition(obj, rule.kind) != nil || len(obj.Status.Conditions) > 0 && Undecided(obj) {", ""},
	{"cleaner: condition without a time", "pkg/csr/retention.go", "!since.IsZero() && age >= 0", "age >= 0", ""},
	{"cleaner: ended certificates", "pkg/csr/retention.go", "add(issued.NotAfter, keep.Expired)", "add(issued.NotAfter, -1)", ""},
	{"cleaner: ended certificates, approved only", "pkg/csr/retention.go", "if Condition(obj, certificatesv1.CertificateApproved) != nil {", "if true {", ""},
	{"cleaner: ended certificates, first block only", "pkg/csr/certificate.go", "block, _ := pem.Decode(data)", "block, rest := pem.Decode(data)\n\tif next, _ := pem.Decode(rest); next != nil {\n\t\tblock = next\n\t}", ""},
	{"cleaner: earliest rule", "pkg/csr/retention.go", "end.Before(at)", "end.After(at)", ""},
	{"cleaner: time of the condition", "pkg/csr/retention.go", "add(since, rule.age)", "add(obj.CreationTimestamp.Time, rule.age)", ""},
	{"cleaner: deviation, time of the client", "pkg/csr/state.go", "approvalTime(obj, kind), condition.LastTransitionTime, condition.LastUpdateTime", "condition.LastUpdateTime", ""},
	{"cleaner: the failure alone", "pkg/csr/retention.go", "keep.Approved = -1", "_ = keep", ""},
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
	{"signer: users of Kubernetes", "pkg/ca/profile.go", "append(config.ForbiddenSubjects, masters)", "append(config.ForbiddenSubjects, masters, \"O=system:*\", \"O=kubeadm:*\", \"CN=system:*\")", ""},
	{"signer: only its own signer names", "controllers/signer/reconciler.go", "return ours && csr.StateOf(obj)", "return (ours || len(obj.Name) > 0) && csr.StateOf(obj)", ""},
	{"signer: only approved", "pkg/csr/state.go", "case Condition(obj, certificatesv1.CertificateApproved) != nil:\n\t\treturn Approved\n\tdefault:\n\t\treturn Pending", "default:\n\t\treturn Approved", ""},
	{"signer: never after Failed", "pkg/csr/state.go", "case failed != nil && (", "case false && failed != nil && (", ""},
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
	{"kubelet client: name before usages", "pkg/csr/shape.go", "\tif err := checkNodeCommonName(req); err != nil {\n\t\treturn err\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {\n\t\treturn errors.New(\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\treturn req.CheckMLDSAUsages()", "\tif !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {\n\t\treturn errors.New(\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\tif err := req.CheckMLDSAUsages(); err != nil {\n\t\treturn err\n\t}\n\treturn checkNodeCommonName(req)", ""},
	{"kubelet client: usages of ML-DSA", "pkg/csr/shape.go", "\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\treturn req.CheckMLDSAUsages()", "\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\treturn nil", ""},
	{"client: usages of ML-DSA", "pkg/csr/shape.go", "certificatesv1.UsageClientAuth)\n\t}\n\treturn req.CheckMLDSAUsages()", "certificatesv1.UsageClientAuth)\n\t}\n\treturn nil", ""},
	{"kubelet client: usages", "pkg/csr/shape.go", "if !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {", "if false {", ""},
	{"kubelet serving: DNS or IP needed", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case false:", ""},
	{"kubelet serving: IP is enough", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case len(req.Cert.DNSNames) == 0:", ""},
	{"kubelet serving: DNS is enough", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case len(req.Cert.IPAddresses) == 0:", ""},
	{"kubelet serving: email addresses", "pkg/csr/shape.go", "return errors.New(\"DNS or IP subjectAltName is required\")\n\tcase len(req.Cert.EmailAddresses) > 0:", "return errors.New(\"DNS or IP subjectAltName is required\")\n\tcase false:", ""},
	{"kubelet serving: URIs", "pkg/csr/shape.go", "case len(req.Cert.URIs) > 0:\n\t\treturn errors.New(\"URI subjectAltNames are not allowed\")\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth)", "case false:\n\t\treturn errors.New(\"URI subjectAltNames are not allowed\")\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth)", ""},
	{"kubelet serving: usages", "pkg/csr/shape.go", "if !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {", "if false {", ""},
	{"kubelet serving: usages before name", "pkg/csr/shape.go", "\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {\n\t\treturn errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\tif err := req.CheckMLDSAUsages(); err != nil {\n\t\treturn err\n\t}\n\treturn checkNodeCommonName(req)", "\tif err := checkNodeCommonName(req); err != nil {\n\t\treturn err\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {\n\t\treturn errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn nil", ""},
	{"kubelet serving: usages of ML-DSA", "pkg/csr/shape.go", "if err := req.CheckMLDSAUsages(); err != nil {", "if err := req.CheckMLDSAUsages(); err != nil && false {", ""},
	{"kubelet serving: name", "pkg/csr/shape.go", "\t\treturn err\n\t}\n\treturn checkNodeCommonName(req)", "\t\treturn err\n\t}\n\treturn nil", ""},
	{"kubelet: no other usage", "pkg/csr/shape.go", "case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, purpose:\n\t\tdefault:\n\t\t\treturn false", "default:", ""},
	{"kubelet: key encipherment may be there", "pkg/csr/shape.go", "case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, purpose:", "case certificatesv1.UsageDigitalSignature, purpose:", ""},
	{"kubelet: digital signature needed", "pkg/csr/shape.go", "return slices.Contains(usages, certificatesv1.UsageDigitalSignature) && slices", "return slices", ""},
	{"kubelet: purpose needed", "pkg/csr/shape.go", " && slices.Contains(usages, purpose)", "", ""},
	{"signer: reason of a failure", "pkg/csr/signers.go", "Reason: \"SignerValidationFailure\"", "Reason: \"ValidationFailure\"", ""},
	{"deviation: legacy-unknown is not served", "pkg/csr/signers.go", "var builtins = []Builtin{\n", "var builtins = []Builtin{\n\t{Name: \"kubernetes.io/legacy-unknown\", Shape: APIServerClientShape},\n", ""},
	{"deviation: weak RSA keys", "pkg/ca/profile.go", "key.N.BitLen() >= p.config.MinRSABits", "key.N.BitLen() >= 1024", ""},
	{"deviation: DNS names", "pkg/ca/profile.go", "for _, name := range req.DNSNames {", "for _, name := range req.DNSNames[:0] {", ""},
	{"deviation: DNS names, addresses", "pkg/san/san.go", "if address.Zone() != \"\" || address.Is4In6() || address.String() != name {", "if false {", ""},
	{"deviation: DNS names, underscores", "pkg/san/san.go", "0123456789-_\"\n", "0123456789-\"\n", ""},
	{"deviation: curves", "pkg/ca/profile.go", "case elliptic.P256(), elliptic.P384(), elliptic.P521():", "case elliptic.P224(), elliptic.P256(), elliptic.P384(), elliptic.P521():", ""},
	{"deviation: subject attributes", "pkg/csr/limits.go", "if len(nested(info.Subject.Bytes, l.SubjectAttributes+1)) > l.SubjectAttributes {", "if false {", ""},
	{"deviation: number of names", "pkg/csr/limits.go", "if names > l.Names {", "if names > 1000*l.Names {", ""},
	{"deviation: DER bytes", "pkg/csr/limits.go", "if len(block.Bytes) > l.DERBytes {", "if false {", ""},
	{"deviation: request bytes", "pkg/csr/limits.go", "if len(obj.Spec.Request) > l.RequestBytes {", "if false {", ""},
	{"deviation: forbidden subjects", "pkg/ca/profile.go", "append(config.ForbiddenSubjects, masters)", "append(config.ForbiddenSubjects, \"O=\"+masters)", ""},
	{"deviation: forbidden subjects, whole value", "pkg/ca/profile.go", "append(config.ForbiddenSubjects, masters)", "append(config.ForbiddenSubjects, masters+\"*\")", ""},
	{"deviation: forbidden subjects, organization only", "pkg/ca/profile.go", "values := subject.Organization", "values := append([]string{subject.CommonName}, subject.Organization...)", ""},
	{"deviation: bundles of CA certificates", "pkg/ca/authority.go", "\tif len(certs) == 0 {", "\tif len(certs) != 1 {", ""},
	{"deviation: label of a key", "pkg/ca/authority.go", "case why != nil:", "case why != nil || block.Type != \"PRIVATE KEY\" && func() bool { _, err := x509.ParsePKCS8PrivateKey(block.Bytes); return err == nil }():", ""},
	{"deviation: chain", "pkg/ca/authority.go", "pem = append(pem, encode(cert.Raw)...)", "pem = append(pem, encode(cert.Raw)[:0]...)", ""},
	{"deviation: chain, None", "pkg/ca/authority.go", "\tcase a.chain == None:\n", "\tcase false:\n", ""},
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
	{"validity: end of the CA", "pkg/ca/issue.go", "!notAfter.Before(end) {", "notAfter.IsZero() {", ""},
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
	{"key: is the request's", "pkg/ca/issue.go", "path.certs[0], req.PublicKey, a.key)", "path.certs[0], a.key.Public(), a.key)", ""},
	{"certificate: one block", "pkg/ca/issue.go", "PEM:       append(encode(der), a.appended(path)...),", "PEM:       append(encode(der), a.CertificatePEM()...),", ""},
	{"PEM: trailing data is ignored", "pkg/csr/limits.go", "block, _ := pem.Decode(data)\n\tif block == nil ||", "block, rest := pem.Decode(data)\n\tif block == nil || len(rest) > 0 ||", ""},
	{"PEM: headers are ignored", "pkg/csr/limits.go", "if block == nil ||", "if block == nil || len(block.Headers) > 0 ||", ""},
	{"CA: key in PKCS#8", "pkg/ca/authority.go", "x509.ParsePKCS8PrivateKey(der); err == nil {", "x509.ParsePKCS8PrivateKey(der); err == nil && key == nil {", ""},
	{"CA: key in PKCS#1", "pkg/ca/authority.go", "x509.ParsePKCS1PrivateKey(der); err == nil {", "x509.ParsePKCS1PrivateKey(der); err == nil && key == nil {", ""},
	{"CA: key in SEC 1", "pkg/ca/authority.go", "x509.ParseECPrivateKey(der); err == nil {", "x509.ParseECPrivateKey(der); err == nil && key == nil {", ""},
	{"configuration: CA of a signer", "controllers/config.go", "\t\tif pairs[one.CA] == nil {\n", "\t\tone.CA = servedSigners(all.Signing)[0].CA\n\t\tif pairs[one.CA] == nil {\n", ""},
	{"configuration: signers without a CA are left out", "controllers/config.go", "\tif !c.Empty() {\n", "\tif len(c.Signers) > 0 && c.Empty() {\n\t\tc.CA = c.Signers[0].CA\n\t}\n\tif !c.Empty() {\n", ""},
}

// ruleTests are the tests of pkg/rules, and celTests those of conditions.
const ruleTests, celTests = "./pkg/rules", "./pkg/rules/cel"

// Approval rules, and rules of the approver and the signer that only unit tests show.
var approvalMutations = []mutation{
	{"rules: the requester may use the rule", "pkg/rules/rule.go", "case !s.Permitted:", "case false:", ruleTests},
	{"rules: a refusal is remembered", "controllers/approver/approval_rules.go", "Add(1) > freeRefusals", "Add(1) > 1<<20", approverTests},
	{"rules: the first refusals are not remembered", "controllers/approver/approval_rules.go", "Add(1) > freeRefusals", "Add(1) > 0", approverTests},
	{"rules: has is not false for an account that is gone", "pkg/rules/rule.go",
		"objection != csr.NoObjection && strings.HasPrefix(s.Requester.Username, \"system:serviceaccount:\")", "false", ruleTests},
	{"rules: printable subjects", "pkg/rules/content.go", "{\"subject\", subject, checkText}", "{\"subject\", nil, checkPrintable}", ruleTests},
	{"rules: e-mail addresses", "pkg/rules/content.go", "!mailbox.MatchString(local) ||", "", ruleTests},
	{"rules: no dots in a URI", "pkg/rules/content.go", "otherPath.MatchString(\"/\"+strings.TrimPrefix(uri.Opaque+uri.Path, \"/\"))", "false", ruleTests},
	{"rules: no user in a URI", "pkg/rules/content.go", "uri.User != nil ||", "", ruleTests},
	{"rules: short common names", "pkg/rules/content.go", "len(text) > r.MaxCommonName", "false", ruleTests},
	{"rules: patterns have anchors", "pkg/rules/cel/cel.go", "re.Sub[0].Op != syntax.OpBeginText ||", "", celTests},
	{"rules: others' rules are not told", "controllers/approver/approval_rules.go", "\t\tif allowed {\n", "\t\tif true {\n", approverTests},
	{"rules: the Service exists", "controllers/approver/approval_rules.go", "case apierrors.IsNotFound(err):", "case false:", approverTests},
	{"rules: no ExternalName", "controllers/approver/approval_rules.go", "case service.Spec.Type == corev1.ServiceTypeExternalName:", "case false:", approverTests},
	{"rules: the live account", "controllers/approver/approval_rules.go", "if !from.Assume {", "if false {", approverTests},
	{"rules: nothing is denied", "controllers/approver/reconciler.go", "rules && decision.Verdict == judge.Deny", "false", approverTests},
	{"rules: both groups of an account", "pkg/csr/request.go", "if !slices.Contains(w.Groups, group) {", "if false {", ruleTests},
	{"rules: the UID of an account", "pkg/rules/rule.go", "case s.Requester.UID == \"\":", "case false:", ruleTests},
	{"rules: what is not listed is absent", "pkg/rules/content.go", "count > 0 && !slices.Contains(r.Allow, contents[i])", "false", ruleTests},
	{"rules: something is asked for", "pkg/rules/content.go", "strings.Join(subject, \"\") == \"\" &&", "false &&", ruleTests},
	{"rules: no unexpected content", "pkg/rules/content.go", "len(found) > 0", "len(found) > 9", ruleTests},
	{"rules: no client on a trusted CA", "pkg/rules/content.go", "s.Trust.Untrusted || !s.ForClients() ||", "true ||", ruleTests},
	{"rules: no certificate for every purpose on a trusted CA", "pkg/csr/request.go", "len(usages) == 0 || slices.Contains(usages, x509.ExtKeyUsageAny)", "slices.Contains(usages, x509.ExtKeyUsageAny)", ruleTests},
	{"rules: no wildcard", "pkg/rules/content.go", "strings.Contains(name, \"*\") && !r.AllowWildcards", "false", ruleTests},
	{"rules: names in one form", "pkg/rules/content.go", "if name != san.CanonicalName(name) {", "if false {", ruleTests},
	{"rules: no address as a name", "pkg/rules/content.go", "netip.ParseAddr(name); err == nil || san.IsNumeric(name)", "netip.ParseAddr(name); err == nil", ruleTests},
	{"rules: a lifetime that is known", "pkg/rules/content.go", "case s.Lifetime == 0:", "case false:", ruleTests},
	{"rules: the longest lifetime", "pkg/rules/content.go", "case s.Lifetime > r.MaxDuration.Duration:", "case false:", ruleTests},
	{"rules: an error is not true", "pkg/rules/cel/cel.go", "if result == types.True {", "if result == types.True || err != nil {", celTests},
	{"rules: the cost of the whole request", "pkg/rules/cel/cel.go", "s.spent += *details.ActualCost()", "s.spent = *details.ActualCost()", celTests},
	{"rules: the estimated cost", "pkg/rules/cel/cel.go", "if err == nil && estimate.Max > maxCost {", "if false {", ruleTests},
	{"rules: a boolean", "pkg/rules/cel/cel.go", "if checked.OutputType() != cel.BoolType {", "if false {", ruleTests},
	{"serviceNames: its own namespace", "pkg/rules/content.go", "\".\"+account.Namespace+\".svc\")\n", "\".svc\")\n", ruleTests},
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
	{"approver: the block list counts again before the write", "controllers/approver/reconciler.go", "blocked := r.BlockList.Check(req); blocked.Made() {", "blocked := r.BlockList.Check(req); blocked.Made() && false {", approverTests},
	{"approver: a stored verdict counts, whatever the answer", "internal/call/call.go", "\tcase holds(found, changed):\n", "\tcase false:\n", approverTests},
	{"signer: a wrong clock", "pkg/servertime/servertime.go", "if skew.Abs() > MaxSkew {", "if skew.Abs() > 1000*MaxSkew {", signerTests},
	{"signer: a failed condition that was not stored", "internal/call/call.go", "return has != nil && has.Status == last.Status && has.Reason == last.Reason && has.Message == last.Message", "return true || has == nil", signerTests},
	{"signer: a stored certificate is not discarded", "internal/call/call.go", "bytes.Equal(live.Status.Certificate, changed.Status.Certificate)", "bytes.Equal(live.Status.Certificate, nil)", signerTests},
	{"signer: only another version discards", "internal/call/call.go", "if result.Changed || report.Refused(err) {", "if true {", signerTests},
	{"signer: no Failed condition without a record", "controllers/signer/reconciler.go", "\tr.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)\n\tresult", "\tresult", signerTests},
	{"approver: the limit counts a request once", "controllers/approver/reconciler.go", "r.attempts.Load(obj.UID); !holds {", "r.attempts.Load(obj.UID); !holds || true {", approverTests},
	{"approver: a decision counts once", "controllers/approver/reconciler.go", "|| last == inFlightOrStored {", "|| last == mayBeStored {", approverTests},
	{"approver: the limit is reserved", "controllers/approver/limit.go", "AllowN(l.clock.Now(), n)", "AllowN(l.clock.Now(), 0)", approverTests},
	{"call: an admission webhook has 30 seconds", "internal/call/call.go", "Timeout = 45 * time.Second", "Timeout = 20 * time.Second", "./internal/ledger"},
	{"call: a write survives the end of the manager", "internal/call/call.go", "context.WithTimeout(context.WithoutCancel(ctx), Timeout)", "context.WithTimeout(ctx, Timeout)", "./controllers/cleaner"},
	{"approver: what waits is not recorded", "controllers/approver/reconciler.go", "\t\t\trecordOf(obj, req, decision).Log(ctx, audit.Decided)\n", "\t\t\tr.Audit.Write(ctx, r.Clock.Now(), audit.Decided, recordOf(obj, req, decision))\n", approverTests},
	{"signer: what waits is not recorded", "controllers/signer/reconciler.go", "\t\trecord.Log(ctx, audit.NotSigned)\n", "\t\tr.Audit.Write(ctx, r.Clock.Now(), audit.NotSigned, record)\n", signerTests},
	{"audit: a record is small", "pkg/audit/audit.go", "len(line) <= maxRecord ||", "true ||", auditTests},
	{"audit: a certificate's record has all names", "pkg/audit/audit.go", "if r.Event != Signed {", "if true {", auditTests},
	{"report: each text is an Event", "internal/report/report.go", "string(uuid.NewUUID())", "string(uuid.NewUUID())[:0]", reportTests},
	{"report: strangers have one bound", "internal/report/report.go", "return r.strangers.TryAccept()", "return true", reportTests},
	{"report: a name of any length", "internal/report/report.go", "if is && len(request.Name) > csr.MaxName {", "if false {", reportTests},
	{"call: what is recorded is written", "internal/call/call.go", "\tctx = context.WithoutCancel(ctx)\n", "", signerTests},
}

// The tests of each part. The model of a rotation runs a third of its usual random lives. The table of Next comes
// first.
const (
	approverTests = "./controllers/approver ./pkg/judge/... ./pkg/csr"
	signerTests   = "./controllers/signer"
	rotationTests = "./controllers/rotation -lives 40"
	sanTests      = "./pkg/san"
	sourceTests   = "./pkg/inventory"
	identityTests = "./pkg/nodeidentity"
	blockTests    = "./pkg/blocklist/..."
	auditTests    = "./pkg/audit"
	reportTests   = "./internal/report"
)

// Rules for kubelet serving certificates.
var servingMutations = []mutation{
	{"serving: the requester is a node", servingFile, "deny(!req.Requester.IsNode(), ", "deny(false, ", approverTests},
	{"serving: the common name is the requester's", servingFile, "subject.CommonName != req.Requester.Username || ", "", approverTests},
	{"serving: the organization", servingFile, "!slices.Equal(subject.Organization, []string{csr.NodeGroup})", "len(subject.Organization) == 0", approverTests},
	{"serving: the usages", servingFile, "deny(!req.HasServingUsages(), ", "deny(false, ", approverTests},
	{"serving: no e-mail addresses", servingFile, "len(req.Cert.EmailAddresses) > 0", "len(req.Cert.EmailAddresses) > 9", approverTests},
	{"serving: no URIs", servingFile, "len(req.Cert.URIs) > 0", "len(req.Cert.URIs) > 9", approverTests},
	{"serving: nothing unexpected", servingFile, "deny(len(unexpected) > 0, ", "deny(false, ", approverTests},
	{"serving: names that crypto/x509 can match", servingFile, "return san.CheckDNSName(name, true) == nil", "return san.CheckDNSName(name, true) == nil || true", approverTests},
	{"serving: a name at least", servingFile, "len(req.Cert.DNSNames)+len(req.Cert.IPAddresses) == 0", "false", approverTests},
	{"serving: reserved for good", servingFile, "case why == \"\" ||", "case true ||", approverTests},
	{"serving: a Node has its own name", servingFile, "own := inventory.IsName(req.NodeName(), value)\n\t\twhy", "own := false\n\t\twhy", approverTests},
	{"bootstrap: an account has its groups", bootstrapFile, "case noAccount != csr.NoObjection:", "case noAccount == \"x\":", approverTests},
	{"serving: names of Services", servingFile, "case service != \"\":", "case false:", approverTests},
	{"serving: no Service takes the name of a node", servingFile, "if ofNode(node, value) {", "if false {", approverTests},
	{"serving: names of API servers", servingFile, "case known.APIServer != \"\" && !runsAPIServer:", "case false:", approverTests},
	{"serving: names belong to the node", servingFile, "case claim.NotOwned:", "case false:", approverTests},
	{"serving: the machine is this node's", servingFile, "case entry.Bound != \"\" && entry.Bound != node:", "case false:", approverTests},
	{"serving: a stronger entry", servingFile, "case claim.Owner != \"\":", "case false:", approverTests},
	{"serving: another Node", servingFile, "case claim.Other != \"\":", "case false:", approverTests},
	{"serving: what several nodes may have", servingFile, "case claim.NotReported:", "case false:", approverTests},
	{"serving: reports of blocked Nodes", "controllers/approver/kubelet_serving.go", "i.blocked(holder) && ", "false && ", approverTests},
	{"serving: what is unknown waits", "controllers/approver/kubelet_serving.go", "judge.Wait.Because(unknown(err),", "judge.Deny.Because(unknown(err),", approverTests},
	{"serving: the stronger source decides", "pkg/inventory/claims.go", "return Claim{Owner: owner}", "return Claim{}", sourceTests},
	{"serving: what two Nodes report goes to neither", "pkg/inventory/claims.go", "return contest(node, value, holders)", "return Claim{}", sourceTests},
	{"serving: what the node itself reports", "pkg/inventory/claims.go", "case !slices.Contains(holders, node):", "case !slices.Contains(holders, node) && false:", sourceTests},
	{"serving: a Node keeps its own name", "pkg/inventory/claims.go", "case IsName(node, value):", "case false:", sourceTests},
	{"serving: IPv4-mapped addresses", "pkg/san/san.go", "return SAN{Address: address.Unmap()} //", "return SAN{Address: address} //", sanTests},
	{"serving: case of names", "pkg/san/san.go", "lower[i] += 'a' - 'A'", "lower[i] += 0", sanTests},
	{"serving: the trailing dot", "pkg/san/san.go", "name = strings.TrimSuffix(name, \".\")", "name += \"\"", sanTests},
	{"serving: zones", "pkg/san/san.go", " && address.Zone() == \"\"", "", sanTests},
}

// Rules for a node's first certificate.
var identityMutations = []mutation{
	{"identity: a token for another node", "pkg/csr/request.go", "return strings.HasPrefix(group, TokenGroupPrefix)", "return false && strings.HasPrefix(group, TokenGroupPrefix)", approverTests},
	{"identity: one group of several is enough", "pkg/csr/request.go", "return !r.BoundHere() && slices", "return slices", approverTests},
	{"identity: bound tokens only", bootstrapFile, "case p.TokenBinding && !req.BoundHere():", "case false:", approverTests},
	{"identity: users", bootstrapFile, "len(p.Users) > 0 && !slices.Contains", "len(p.Users) > 99 && !slices.Contains", approverTests},
	{"identity: the age of a request", bootstrapFile, "case p.MaxRequestAge > 0 && !now.IsZero() && now.Sub(req.Created) > p.MaxRequestAge:", "case false:", approverTests},
	{"identity: a subject that names a node", bootstrapFile, "case req.NodeName() == \"\":", "case false:", approverTests},
	{"identity: what is unknown waits", kubeletJudgeFile, "judge.Wait.Because(unknown(err),", "judge.Deny.Because(unknown(err),", approverTests},
	{"identity: a node that is alive", bootstrapFile, "case NodeAlive:", "case false:", approverTests},
	{"identity: a node that may be alive", bootstrapFile, "case NodeUnknown:", "case false:", approverTests},
	{"identity: expected by a source", bootstrapFile, "\tcase entry == nil:\n", "\tcase false:\n", approverTests},
	{"identity: a machine that leaves", bootstrapFile, "case entry.Leaving:", "case false:", approverTests},
	{"identity: a machine that is another node", bootstrapFile, "case entry.Bound != \"\" && entry.Bound != req.NodeName():", "case false:", approverTests},
	{"identity: a dead node joins once", bootstrapFile, "case facts.Node == NodeDead && !p.Rejoin:", "case false:", approverTests},
	{"identity: a machine joins once", bootstrapFile, "case comesBack && !p.Rejoin:", "case false:", approverTests},
	{"identity: a machine without a time", bootstrapFile, "case machine.Created.IsZero():", "case false:", approverTests},
	{"identity: too early", bootstrapFile, "case early > w.Before:", "case false:", approverTests},
	{"identity: too late", bootstrapFile, "case late > w.After:", "case false:", approverTests},
	{"identity: a requester that is gone", bootstrapFile, "case facts.Gone != csr.NoObjection:", "case false:", approverTests},
	{"identity: a lease that moves", bootstrapFile, "case seen.Lease == LeaseRenewing:", "case false:", approverTests},
	{"identity: a certificate that has ended", bootstrapFile, "req.Created.Sub(seen.Renewed) > p.CertificateLifetime+skew", "req.Created.Sub(seen.Renewed) > p.CertificateLifetime-skew", approverTests},
	{"identity: dead after a minute", "pkg/nodeidentity/liveness.go", "max(standstill, lease.lasts)", "leastQuiet", identityTests},
	{"identity: two witnesses", "pkg/nodeidentity/liveness.go", "witnesses > 0 && witnesses >= min(others, 2)", "witnesses > 0", identityTests},
	{"identity: a blocked node", "pkg/blocklist/entries/entries.go", "e.Nodes.Has(name)", "false", blockTests},
	{"identity: a blocked certificate", "pkg/blocklist/entries/entries.go", "if e.Certificates.Has(sum) {", "if false {", blockTests},
	{"identity: a blocked user", "pkg/blocklist/entries/entries.go", "e.Users.Has(user)", "false", blockTests},
	{"revocation: a user whom the cluster needs", "pkg/blocklist/entries/entries.go", "slices.Contains(Essential(), name)", "false", blockTests},
	{"revocation: the canary of this version", "pkg/blocklist/entries/entries.go", "e.Nodes, e.Users, e.Certificates} {", "e.Nodes, e.Certificates} {", blockTests},
	{"revocation: never the writer", authorizationFile, "request.user != %s && (", "request.user != %s || (", "./internal/authorization"},
	{"revocation: bounded values", authorizationFile, "size(request.extra[%[1]q]) > 100", "false", "./internal/authorization"},
	{"revocation: refused without the webhook", authorizationFile, "apiserver.FailurePolicyDeny", "apiserver.FailurePolicyNoOpinion", "./internal/authorization"},
	{"revocation: conditions are evaluated", authorizationFile, "case refused:", "case refused && false:", "./internal/authorization"},
	{"revocation: a new kubeconfig is read", authorizationFile, "version + expression", "version[:0] + expression", "./internal/authorization"},
	{"identity: a digest in the API server's form", "pkg/csr/request.go", "len(sum) == sha256.Size", "len(sum) <= sha256.Size", "./pkg/csr"},
	{"identity: witnesses that move", "pkg/nodeidentity/liveness.go", "o.steady.IsZero() || !within(o.quiet(), o.since, at)", "o.steady.IsZero()", identityTests},
}

// Rules of a rotation.
var rotationMutations = []mutation{
	{"rotation: a candidate signs when API servers trust it", "controllers/rotation/preparing.go", "p.status.WaitingFor = append(p.status.WaitingFor, p.missingTrust(p.facts.Candidate)...)\n", "", rotationTests},
	{"rotation: a candidate signs when its owner confirms", "controllers/rotation/preparing.go", "len(unconfirmed) > 0", "len(unconfirmed) > 9", rotationTests},
	{"rotation: a candidate is published first", "controllers/rotation/preparing.go", "\tcase !p.publishFirst():\n\t\treturn\n", "", rotationTests},
	{"rotation: a candidate that has ended", "controllers/rotation/preparing.go", "case !secret.Candidate.NotAfter.After(p.facts.Now):", "case secret.Candidate == nil:", rotationTests},
	{"rotation: a candidate that is not valid yet", "controllers/rotation/preparing.go", "Fingerprint]; why != nil {", "Fingerprint]; secret.Candidate == nil {", rotationTests},
	{"rotation: no step with a wrong clock", "controllers/rotation/facts.go", "r.ServerTime.Agreed(ctx)", "r.ServerTime.Now(ctx)", rotationTests},
	{"rotation: ends count by the API servers' time", "controllers/rotation/setup.go", "cmp.Or(r.ServerTime, servertime.Of(r.Clock))", "servertime.Of(r.Clock)", "./controllers"},
	{"rotation: a CA that retired here never signs again", "controllers/rotation/secret.go", "case p.facts.sealed(authority) || last != nil && last.KeyID == authority.KeyID:", "case last != nil && last.KeyID == \"\":", rotationTests},
	{"rotation: rollback to what is trusted", "controllers/rotation/prepared.go", "\tcase len(missing) > 0:\n\t\tp.refuseOperation(", "\tcase false:\n\t\tp.refuseOperation(", rotationTests},
	{"rotation: rollback to what has not ended", "controllers/rotation/prepared.go", "case !authority.NotAfter.After(p.facts.Now):\n\t\treturn", "case false:\n\t\treturn", rotationTests},
	{"rotation: a noted rollback comes before a completion", "controllers/rotation/prepared.go", "if p.rollbackNoted() {", "if false {", rotationTests},
	{"rotation: nothing outstanding is left", "controllers/rotation/prepared.go", "left = append(left, p.outstandingTexts()...)", "", rotationTests},
	{"rotation: what signs is trusted before a completion", "controllers/rotation/prepared.go", "blockers = append(blockers, p.missingTrust(p.facts.Signing)...)", "", rotationTests},
	{"rotation: the ledger closes before the bundle shrinks", "controllers/rotation/completing.go", "if !p.facts.sealed(s.Retiring) {", "if false {", rotationTests},
	{"rotation: outstanding is counted again", "controllers/rotation/completing.go", "len(outstanding) > 0 && s.Retiring.OutstandingAcceptedAt == nil", "false", rotationTests},
	{"rotation: late signers have seen the end", "controllers/rotation/completing.go", "quiet.After(p.facts.Now) {", "quiet.IsZero() {", rotationTests},
	{"rotation: API servers refuse before the key goes", "controllers/rotation/completing.go", "p.status.WaitingFor = append(p.status.WaitingFor, p.facts.RetiringRefused.Lacks()...)\n", "", rotationTests},
	{"rotation: a CA has one authority", "controllers/rotation/secret.go", "case p.facts.Others[authority.KeyID] != \"\":", "case false:", rotationTests},
	{"rotation: what the administrator brought is not replaced", "controllers/rotation/preparing.go", "case s.Candidate == nil:\n\t\tp.act(MakeCandidate)", "case s.Candidate == nil || secret.Candidate == nil:\n\t\tp.act(MakeCandidate)", rotationTests},
	{"rotation: a confirmation is part of trust", "controllers/rotation/status.go", "case len(unconfirmed) > 0:", "case false:", rotationTests},
	{"rotation: an edited Secret is refused", "controllers/rotation/secret.go", "if err == nil {\n\t\t\treturn false", "if true {\n\t\t\treturn false", rotationTests},
	{"rotation: a rollback drops only its candidate", "controllers/rotation/completing.go", "if p.candidateMissing() {", "if p.facts.Secret.Candidate == nil {", rotationTests},
	{"rotation: a rollback keeps an edit of tls.crt", "controllers/rotation/secret.go", "if o.tlsFollows(o.Secret.Signing) {", "if true {", rotationTests},
	{"rotation: a renewed certificate is published by an API server", "controllers/rotation/completing.go", "case asksAPIServers(p.spec.Signers) && !p.facts.RenewedSeen:", "case false:", rotationTests},
	{"rotation: a renewed certificate ends later", "controllers/rotation/facts.go", " && cert.NotAfter.After(before.NotAfter)", "", rotationTests},
	{"rotation: renewed certificates stay published", "controllers/rotation/next.go", "all = append(all, &v1alpha1.CAStatus{KeyID", "_ = append(all, &v1alpha1.CAStatus{KeyID", rotationTests},
	{"rotation: a renewed certificate has the old extensions", "pkg/ca/new.go", "return one.Id.String() == oidAuthorityKeyID", "return one.Id.String() != oidAuthorityKeyID", "./pkg/ca -run Renew"},
	{"rotation: only the proven CA signs", "pkg/keypair/keypair.go", "permit.KeyID != \"\" && keyID != permit.KeyID", "keyID == \"\"", "./pkg/keypair"},
	{"rotation: signers without proof", "controllers/rotation/next.go", "return !trustedFor(signing, name) }", "return !trustedFor(signing, name) && false }", rotationTests},
	{"rotation: no step on what has changed", "controllers/rotation/act.go", "latest.UID == obj.UID && latest.Generation == obj.Generation && sameStatus", "latest.UID == obj.UID || sameStatus", rotationTests},
}

// Defects that were made by hand, without looking at the tests: of rules, signer, cleaner, rotation and manifests. "make test"
// must notice each. Tests that need a control plane find it in the environment.
var defectMutations = []mutation{
	{"defect: a dry run of the approver judges what is old", "controllers/approver/reconciler.go", "r.age(obj) > decidedFor {", "false {", "./controllers/approver"},
	{"defect: a decision about another request of the same name", "controllers/approver/reconciler.go", "obj.UID != key.UID || last", "last", "./controllers/approver"},
	{"defect: entries without a bound", "pkg/csr/limits.go", "if list.entries > l.Entries {", "if false {", "./pkg/csr"},
	{"defect: a name without a bound", "pkg/csr/limits.go", "if len(obj.Name) > MaxName {", "if false {", "./pkg/csr"},
	{"defect: a requester forges the mark of the cache", "pkg/csr/trim.go", " && !bytes.Contains(obj.Spec.Request, []byte(\"\\n\"))", "", "./pkg/csr"},
	{"defect: a write removes what the cache does not hold", "internal/call/call.go", "if csr.Oversized(obj) {", "if false {", "./internal/call"},
	{"defect: the cache holds all of a large request", "pkg/csr/trim.go", "obj.Size() > mostCached", "false", "./pkg/csr"},
	{"defect: the approver decides about a trimmed request", "controllers/approver/reconciler.go", "if csr.Trimmed(obj) || !csr.Undecided(obj) ||", "if !csr.Undecided(obj) ||", "./controllers/approver"},
	{"defect: a node with an old Lease is alive for ever", "pkg/nodeidentity/liveness.go", "case !lease.steady.IsZero() && within(standstill, lease.since, at):", "case !lease.steady.IsZero():", "./pkg/nodeidentity"},
	{"defect: the signer ignores the block list", "controllers/signer/reconciler.go", "r.BlockList.Check(req); blocked.Made() {", "r.BlockList.Check(req); blocked.Made() && false {", "./controllers/signer"},
	{"defect: the signer signs what is due for deletion", "controllers/signer/reconciler.go", "\tcase due && now.After(at):\n", "\tcase false:\n", "./controllers/signer"},
	{"defect: the signer does not notice a clock that is behind", "pkg/servertime/servertime.go", "if skew.Abs() > MaxSkew {", "if skew > MaxSkew {", "./controllers/signer"},
	{"defect: a certificate without a record", "controllers/signer/reconciler.go", "\tr.Audit.Write(ctx, r.Clock.Now(), audit.Signed, record)\n", "", "./controllers/signer"},
	{"defect: somebody's certificate counts as stored", "internal/call/call.go", "return bytes.Equal(live.Status.Certificate, changed.Status.Certificate)", "return len(live.Status.Certificate) > 0", "./controllers/signer"},
	{"defect: a certificate that the ledger does not have", "controllers/signer/reconciler.go", "obj.Spec.SignerName, issued.NotAfter); err != nil {", "obj.Spec.SignerName, issued.NotAfter); err != nil && false {", "./controllers/signer"},
	{"defect: the cleaner deletes a request that has changed", "controllers/cleaner/reconciler.go", "client.Preconditions{UID: &obj.UID, ResourceVersion: &obj.ResourceVersion}", "client.Preconditions{UID: &obj.UID}", "./controllers/cleaner"},
	{"defect: the cleaner does not ask for the time before it deletes", "controllers/cleaner/reconciler.go", "timeNow = r.ServerTime.Fresh", "timeNow = r.ServerTime.Now", "./controllers/cleaner"},
	{"defect: the cleaner deletes at any rate", "controllers/cleaner/reconciler.go", "if r.Limiter.Wait(ctx) != nil {", "if false {", "./controllers/cleaner"},
	{"defect: a dry run of the cleaner deletes", "controllers/cleaner/reconciler.go", "\tcase r.DryRun:\n", "\tcase false:\n", "./controllers/cleaner"},
	{"defect: a key is destroyed before API servers refuse its CA", "controllers/rotation/completing.go", "p.status.WaitingFor = append(p.status.WaitingFor, p.facts.RetiringRefused.Lacks()...)", "_ = p.facts.RetiringRefused.Lacks()", "./controllers/rotation -lives 40"},
	{"defect: a rollback to a CA that API servers do not trust", "controllers/rotation/prepared.go", "\tcase len(missing) > 0:\n\t\tp.status.WaitingFor = append(p.status.WaitingFor, missing...)\n\tdefault:\n\t\tp.act(SwapBack)\n", "\tcase len(missing) < 0:\n\tdefault:\n\t\tp.act(SwapBack)\n", "./controllers/rotation -lives 40"},
	{"defect: a late signer is not waited for", "controllers/rotation/completing.go", "s.LedgerClosedAt.Add(ledger.QuietAfter)", "s.LedgerClosedAt.Add(0 * ledger.QuietAfter)", "./controllers/rotation -lives 40"},
	{"defect: the signer may sign for every name", "config/rbac/signer.yaml", "  - kubernetes.io/kubelet-serving\n", "  - kubernetes.io/kubelet-serving\n  - kubernetes.io/*\n", "./controllers -run ^TestRightsAreWhatIsGranted$"},
	{"defect: a person who may patch an authority may change its spec", "config/rotation/spec_policy.yaml", "object.spec != oldObject.spec || variables.others", "variables.others", "./test/rotation -run ^TestRotationAdmission"},
	{"defect: the plugin offers what the rules refuse", "commands/plugin/approve.go", "if a.node != \"\" && !facts.passes {", "if false {", "./commands/plugin"},
	{"defect: the plugin offers what it could not judge", "commands/plugin/read.go", "decision = judge.Wait.Because(\"InventoryUnavailable\"", "decision = judge.Approve.Because(\"InventoryUnavailable\"", "./commands/plugin"},
	{"defect: the writer of an Event dates it", "commands/plugin/read.go", "At: event.CreationTimestamp.UTC()", "At: event.EventTime.UTC()", "./commands/plugin"},
	{"defect: a requester's name is a word of a command", "commands/plugin/page.go", "if !plainName.MatchString(name) {", "if false {", "./commands/plugin"},
	{"defect: a Pod is ready before it is", "config/manager/base/deployment.yaml", "path: /readyz", "path: /healthz", "./test/manifests"},
}
