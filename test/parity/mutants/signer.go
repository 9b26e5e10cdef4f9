package main

// Rules of the signer. Left out, as nothing that can reach an API server tells them apart:
//   - the floor of ten minutes: the API refuses shorter wishes at creation, and updates of requests stored with one;
//   - the signature check and Failed/Malformed: the API server refuses every update of such a request;
//   - that a certificate is not replaced: the API server refuses that too;
//   - Failed with a status other than True: the same;
//   - Backdate added to the ceiling and the like are variants of what is here.
var signerMutations = []mutation{
	{"signer: only its own signer names", "controllers/signer/reconciler.go", "return ours && csr.StateOf(obj)", "return (ours || len(obj.Name) > 0) && csr.StateOf(obj)"},
	{"signer: only approved", "pkg/csr/state.go", "case condition(obj, certificatesv1.CertificateApproved) != nil:\n\t\treturn Approved\n\tdefault:\n\t\treturn Pending", "default:\n\t\treturn Approved"},
	{"signer: never after Failed", "pkg/csr/state.go", "case hasFailed(obj):", "case false && hasFailed(obj):"},
	{"signer: never after Denied", "pkg/csr/state.go", "case condition(obj, certificatesv1.CertificateDenied) != nil:", "case false:"},
	{"signer: stale approvals", "controllers/signer/reconciler.go", "ok && now.After(at)", "ok && now.Before(at.Add(-1000*time.Hour))"},
	{"client: shape is checked", "controllers/signer/profile.go", "certificatesv1.KubeAPIServerClientSignerName:        csr.APIServerClientShape,", "certificatesv1.KubeAPIServerClientSignerName:        nil,"},
	{"client: usages permitted", "pkg/csr/shape.go", "return fmt.Errorf(\"invalid usage for client certificate: %s\", usage)", "continue"},
	{"client: client auth needed", "pkg/csr/shape.go", "if !slices.Contains(req.Usages, certificatesv1.UsageClientAuth) {", "if false {"},
	{"client: text of a usage", "pkg/csr/shape.go", "invalid usage for client certificate: %s", "invalid usage for client certificate: %q"},
	{"kubelet client: signer checks the shape", "controllers/signer/profile.go", "certificatesv1.KubeAPIServerClientKubeletSignerName: csr.KubeletClientShape,", "certificatesv1.KubeAPIServerClientKubeletSignerName: nil,"},
	{"kubelet serving: signer checks the shape", "controllers/signer/profile.go", "certificatesv1.KubeletServingSignerName:             csr.KubeletServingShape,", "certificatesv1.KubeletServingSignerName:             nil,"},
	{"kubelet: organization", "pkg/csr/shape.go", "if !slices.Equal(req.Cert.Subject.Organization, []string{NodeGroup}) {", "if false {"},
	{"kubelet: organization alone", "pkg/csr/shape.go", "!slices.Equal(req.Cert.Subject.Organization, []string{NodeGroup})", "!slices.Contains(req.Cert.Subject.Organization, NodeGroup)"},
	{"kubelet: common name", "pkg/csr/shape.go", "!strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix)", "strings.HasPrefix(req.Cert.Subject.CommonName, \"!\")"},
	{"kubelet: common name from the start", "pkg/csr/shape.go", "!strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix)", "!strings.Contains(req.Cert.Subject.CommonName, NodeUserPrefix)"},
	{"kubelet: empty node name", "pkg/csr/shape.go", "if !strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix) {", "if req.Cert.Subject.CommonName == NodeUserPrefix || !strings.HasPrefix(req.Cert.Subject.CommonName, NodeUserPrefix) {"},
	{"kubelet client: DNS names", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) > 0:", "case false:"},
	{"kubelet client: email addresses", "pkg/csr/shape.go", "return errors.New(\"DNS subjectAltNames are not allowed\")\n\tcase len(req.Cert.EmailAddresses) > 0:", "return errors.New(\"DNS subjectAltNames are not allowed\")\n\tcase false:"},
	{"kubelet client: IP addresses", "pkg/csr/shape.go", "case len(req.Cert.IPAddresses) > 0:", "case false:"},
	{"kubelet client: URIs", "pkg/csr/shape.go", "return errors.New(\"IP subjectAltNames are not allowed\")\n\tcase len(req.Cert.URIs) > 0:", "return errors.New(\"IP subjectAltNames are not allowed\")\n\tcase false:"},
	{"kubelet client: name before usages", "pkg/csr/shape.go", "\tif err := checkNodeCommonName(req); err != nil {\n\t\treturn err\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {\n\t\treturn errors.New(\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\treturn nil", "\tif !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {\n\t\treturn errors.New(\"usages did not match [client auth digital signature key encipherment]\")\n\t}\n\treturn checkNodeCommonName(req)"},
	{"kubelet client: usages", "pkg/csr/shape.go", "if !isUsageSet(req.Usages, certificatesv1.UsageClientAuth) {", "if false {"},
	{"kubelet serving: DNS or IP needed", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case false:"},
	{"kubelet serving: IP is enough", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case len(req.Cert.DNSNames) == 0:"},
	{"kubelet serving: DNS is enough", "pkg/csr/shape.go", "case len(req.Cert.DNSNames) == 0 && len(req.Cert.IPAddresses) == 0:", "case len(req.Cert.IPAddresses) == 0:"},
	{"kubelet serving: email addresses", "pkg/csr/shape.go", "return errors.New(\"DNS or IP subjectAltName is required\")\n\tcase len(req.Cert.EmailAddresses) > 0:", "return errors.New(\"DNS or IP subjectAltName is required\")\n\tcase false:"},
	{"kubelet serving: URIs", "pkg/csr/shape.go", "case len(req.Cert.URIs) > 0:\n\t\treturn errors.New(\"URI subjectAltNames are not allowed\")\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth)", "case false:\n\t\treturn errors.New(\"URI subjectAltNames are not allowed\")\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth)"},
	{"kubelet serving: usages", "pkg/csr/shape.go", "if !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {", "if false {"},
	{"kubelet serving: usages before name", "pkg/csr/shape.go", "\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {\n\t\treturn errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn checkNodeCommonName(req)", "\tif err := checkNodeCommonName(req); err != nil {\n\t\treturn err\n\t}\n\tif !isUsageSet(req.Usages, certificatesv1.UsageServerAuth) {\n\t\treturn errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn nil"},
	{"kubelet serving: name", "pkg/csr/shape.go", "return errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn checkNodeCommonName(req)", "return errors.New(\"usages did not match [digital signature key encipherment server auth]\")\n\t}\n\treturn nil"},
	{"kubelet: no other usage", "pkg/csr/shape.go", "case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, purpose:\n\t\tdefault:\n\t\t\treturn false", "default:"},
	{"kubelet: key encipherment may be there", "pkg/csr/shape.go", "case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, purpose:", "case certificatesv1.UsageDigitalSignature, purpose:"},
	{"kubelet: digital signature needed", "pkg/csr/shape.go", "return slices.Contains(usages, certificatesv1.UsageDigitalSignature) && slices", "return slices"},
	{"kubelet: purpose needed", "pkg/csr/shape.go", " && slices.Contains(usages, purpose)", ""},
	{"signer: reason of a failure", "controllers/signer/profile.go", "Reason: \"SignerValidationFailure\"", "Reason: \"ValidationFailure\""},
	{"signer: legacy-unknown is served", "controllers/configuration.go", "for _, name := range signer.KubernetesSignerNames() {", "for _, name := range signer.KubernetesSignerNames()[:3] {"},
	{"signer: legacy-unknown has no rules", "controllers/signer/profile.go", "LegacyUnknownSignerName:                             nil,", "LegacyUnknownSignerName:                             csr.APIServerClientShape,"},
	{"deviation: unknown usage", "controllers/signer/profile.go", "if len(req.UnknownUsages) > 0 {", "if false {"},
	{"deviation: weak RSA keys", "pkg/ca/profile.go", "bits < p.config.MinRSABits", "bits < 1024"},
	{"deviation: forbidden subjects", "controllers/signer/profile.go", "return []string{\"O=system:masters\"}", "return nil"},
	{"deviation: forbidden subjects, whole value", "controllers/signer/profile.go", "[]string{\"O=system:masters\"}", "[]string{\"O=system:masters*\"}"},
	{"deviation: forbidden subjects, organization only", "pkg/ca/profile.go", "values := subject.Organization", "values := append([]string{subject.CommonName}, subject.Organization...)"},
	{"deviation: forbidden subjects, one signer", "controllers/signer/profile.go", "if signerName == certificatesv1.KubeAPIServerClientSignerName {", "if signerName != \"\" {"},
	{"deviation: bundles of CA certificates", "pkg/ca/authority.go", "\tif len(certs) == 0 {", "\tif len(certs) != 1 {"},
}
