package commands

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net"
	"path/filepath"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

const configHead = "apiVersion: config.csr-controller-manager.io/v1alpha1\nkind: ControllerManagerConfiguration\n"

// document returns a request in YAML. mods change it. The payload asks for node a and for these addresses.
func document(t testing.TB, addresses []net.IP, mods ...func(*certificatesv1.CertificateSigningRequest)) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:a", Organization: []string{"system:nodes"}}, IPAddresses: addresses,
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	obj := &certificatesv1.CertificateSigningRequest{
		TypeMeta:   metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}), Username: "system:bootstrap:abcdef",
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	for _, mod := range mods {
		mod(obj)
	}
	data, err := yaml.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func serving(obj *certificatesv1.CertificateSigningRequest) {
	obj.Spec.SignerName, obj.Spec.Username, obj.Spec.Groups = certificatesv1.KubeletServingSignerName, "system:node:a", []string{"system:nodes"}
	obj.Spec.Usages[1] = certificatesv1.UsageServerAuth
}

// The command judges by the rules of the approver and of the signer.
func TestExplainJudgesAFile(t *testing.T) {
	t.Parallel()
	const on = "approval: {kubeletServing: {enabled: true}, inventory: {sources: [{static: {rows: [{name: a, addresses: [10.0.0.1]}]}}, {node: {}}]}}\n"
	one := []net.IP{net.IPv4(10, 0, 0, 1)}
	with := func(change func(*certificatesv1.CertificateSigningRequest)) string { return document(t, nil, change) }
	noUsage := with(func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Usages = obj.Spec.Usages[:1] })
	foreign := with(func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.SignerName = "example.com/a" })
	malformed := with(func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Request = []byte("x\x1b") })
	for name, test := range map[string]struct {
		config, request string
		want            []string
	}{
		"sound": {"", document(t, nil), []string{
			"decision Approve", "AutoApproved", "that the requester has every permission", "sign, if the CA permits it",
		}},
		"wrong usages":   {"", noUsage, []string{"ShapeMismatch", "decision Deny", "SignerValidationFailure"}},
		"no rule":        {"", document(t, one, serving), []string{"none: no rule of this configuration", "sign, if the CA permits it"}},
		"serving":        {on, document(t, one, serving), []string{"only the manager knows what belongs to the node"}},
		"signer off":     {"controllers: [approver]\n", document(t, nil), []string{"none: the signer is switched off"}},
		"foreign signer": {"", foreign, []string{"none: this signer is not configured"}},
		"malformed":      {"", malformed, []string{"Malformed"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			configFile, file := filepath.Join(dir, "config.yaml"), filepath.Join(dir, "request.yaml")
			put(t, configFile, []byte(configHead+test.config))
			put(t, file, []byte(test.request))
			var out bytes.Buffer
			may(t, Execute(t.Context(), []string{"explain", "--config", configFile, "-f", file}, &out))
			text := strings.Join(strings.Fields(out.String()), " ")
			for _, part := range test.want {
				if !strings.Contains(text, part) {
					t.Errorf("%q is not in:\n%s", part, out.String())
				}
			}
		})
	}
}

// TestExplainReadsFiles checks the number of requests that are read from a file, and that each mistake is reported.
func TestExplainReadsFiles(t *testing.T) {
	t.Parallel()
	one := document(t, nil)
	list := func(kind, version string, items ...string) string {
		text := "apiVersion: " + version + "\nkind: " + kind + "\nitems:\n"
		for _, item := range items {
			text += "- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ") + "\n"
		}
		return text
	}
	const secret = "apiVersion: v1\nkind: Secret\n"
	for name, test := range map[string]struct {
		in      string
		read    int
		problem string
	}{
		"one":                  {in: one, read: 1},
		"two documents":        {in: one + "---\n" + one, read: 2},
		"comments and blanks":  {in: "# first\n---\n---\n" + one + "---\n# end\n", read: 1},
		"list":                 {in: list("List", "v1", one, one, one), read: 3},
		"list of its own kind": {in: list("CertificateSigningRequestList", "certificates.k8s.io/v1", one), read: 1},
		"JSON":                 {in: `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest"}`, read: 1},
		"another kind":         {in: secret + "---\n" + one, read: 1, problem: "-f: document 1: want a CertificateSigningRequest of "},
		"in a list":            {in: list("List", "v1", secret, one), read: 1, problem: "-f: document 1: want a CertificateSigningRequest"},
		"an old version":       {in: strings.Replace(one, "k8s.io/v1\n", "k8s.io/v1beta1\n", 1), problem: "want a CertificateSigningRequest of certificates.k8s.io/v1"},
		"no kind":              {in: "metadata: {name: x}\n", problem: "-f: document 1: "},
		"empty":                {in: "", problem: "-f: the file holds no CertificateSigningRequest"},
		"only comments":        {in: "# none\n---\n", problem: "-f: the file holds no CertificateSigningRequest"},
		"no YAML":              {in: "\tx: [", problem: "-f: document 1: "},
		"payload not base64":   {in: strings.Replace(one, "request: ", "request: '*' #", 1), problem: "illegal base64"},
	} {
		objs, err := readRequests("-f", strings.NewReader(test.in))
		if len(objs) != test.read || (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
			t.Errorf("%s: %d read, error %v", name, len(objs), err)
		}
	}
}

// FuzzExplainFile reads anything as a file. Nothing may panic, or print text that can control a terminal.
func FuzzExplainFile(f *testing.F) {
	for _, text := range []string{document(f, nil), document(f, nil, serving), "{}", "[]", "kind: List\nitems: [7, null, {}]", "---\n---", "a: &a [*a]", "{\"kind\":\"CertificateSigningRequestList\",\"items\":[{}]}"} {
		f.Add(text)
	}
	configuration := config.Default()
	f.Fuzz(func(t *testing.T, text string) {
		var out bytes.Buffer
		err := explainAll(t.Context(), configuration, strings.NewReader(text), &out, clocktesting.NewFakePassiveClock(fixedNow))
		if err != nil && out.Len() > 0 {
			t.Error("an explanation and an error")
		}
		if at := strings.IndexFunc(out.String(), func(char rune) bool { return char != '\n' && (char < ' ' || char > '~') }); at >= 0 {
			t.Errorf("%q can fool a terminal", out.String()[at:at+1])
		}
	})
}
