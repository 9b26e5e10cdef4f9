package explain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

func commandConfiguration(t testing.TB, args ...string) *config.Configuration {
	t.Helper()
	configuration, _, err := config.Load(args, &config.Command{})
	if err != nil {
		t.Fatal(err)
	}
	return configuration
}

func document(t testing.TB, obj any) string {
	t.Helper()
	data, err := yaml.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestExplainReadsFiles checks the number of requests that are explained from a file, and that each mistake is
// reported.
func TestExplainReadsFiles(t *testing.T) {
	one := document(t, explainRequest(t))
	list := func(kind string, items ...string) string {
		text := "apiVersion: v1\nkind: " + kind + "\nitems:\n"
		for _, item := range items {
			text += "- " + strings.ReplaceAll(strings.TrimSpace(item), "\n", "\n  ") + "\n"
		}
		return text
	}
	bare := document(t, map[string]any{"metadata": map[string]any{"name": "bare"}, "spec": explainRequest(t).Spec})
	secret := document(t, &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}})
	old := strings.Replace(one, "certificates.k8s.io/v1\n", "certificates.k8s.io/v1beta1\n", 1)
	for name, test := range map[string]struct {
		in        string
		explained int
		problem   string
	}{
		"one":                      {in: one, explained: 1},
		"two documents":            {in: one + "---\n" + one, explained: 2},
		"comments and blanks":      {in: "# first\n---\n---\n" + one + "---\n# end\n", explained: 1},
		"list":                     {in: list("List", one, one, one), explained: 3},
		"list of its own kind":     {in: list("CertificateSigningRequestList", bare), explained: 1},
		"JSON":                     {in: `{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest"}`, explained: 1},
		"another kind among them":  {in: secret + "---\n" + one, explained: 1, problem: `-f: document 1: want apiVersion certificates.k8s.io/v1 and kind CertificateSigningRequest, found "v1" and "Secret"`},
		"another kind in a list":   {in: list("List", secret, one), explained: 1, problem: `-f: document 1: want apiVersion`},
		"an old version":           {in: old, problem: `found "certificates.k8s.io/v1beta1"`},
		"nothing said of its kind": {in: bare, problem: `found "" and ""`},
		"empty":                    {in: "", problem: "-f: the file holds no CertificateSigningRequest"},
		"empty list":               {in: list("List"), problem: "-f: the file holds no CertificateSigningRequest"},
		"no YAML":                  {in: "\tx: [", problem: "-f: document 1: "},
		"text":                     {in: "hello", problem: "-f: document 1: "},
		"a number of requests":     {in: list("List", "7"), problem: "-f: document 1: "},
		"payload not in base64":    {in: strings.Replace(one, "request: ", "request: '*' #", 1), problem: "illegal base64"},
	} {
		t.Run(name, func(t *testing.T) {
			reports, err := All(t.Context(), commandConfiguration(t), strings.NewReader(test.in), clocktesting.NewFakePassiveClock(explainNow))
			if len(reports) != test.explained {
				t.Errorf("%d explained, want %d", len(reports), test.explained)
			}
			if (err == nil) != (test.problem == "") || err != nil && !strings.Contains(err.Error(), test.problem) {
				t.Errorf("error %v, want %q", err, test.problem)
			}
		})
	}
}

// TestExplainFilesOfACA judges a CA in files without the API server.
func TestExplainFilesOfACA(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "ca.crt"), filepath.Join(dir, "ca.key")
	_, certPEM, keyPEM := explainCA(t, explainNow.AddDate(10, 0, 0))
	args := []string{"--cluster-signing-cert-file=" + cert, "--cluster-signing-key-file=" + key}
	look := func() string {
		return scenario{obj: explainRequest(t, autoApproved), args: args, file: true, noCA: true}.explain(t)
	}
	if got := look(); !strings.Contains(got, "reason              CAMissing\n") {
		t.Errorf("without files:\n%s", got)
	}
	for path, data := range map[string][]byte{cert: certPEM, key: keyPEM} {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := look(); !strings.Contains(got, "CALoaded: signing with key 56e5865d07be76ea") || !strings.Contains(got, "  decision            sign\n") {
		t.Errorf("with files:\n%s", got)
	}
}

// TestExplainWhatCannotBeRead says so.
func TestExplainWhatCannotBeRead(t *testing.T) {
	s := scenario{obj: explainRequest(t)}
	explain := func(name string) string {
		report, err := Name(t.Context(), commandConfiguration(t), Server{Client: s.client(t)}, name, clocktesting.NewFakePassiveClock(explainNow))
		if err == nil || report != nil {
			t.Fatalf("no error, but %+v", report)
		}
		return err.Error()
	}
	if got := explain("x\x1b"); !strings.HasPrefix(got, `there is no CertificateSigningRequest "x\x1b": `) {
		t.Error(got)
	}
	s.forbidden = []string{"certificatesigningrequests"}
	if got := explain("csr-1"); !strings.HasPrefix(got, "may not get certificatesigningrequests, so nothing can be explained: ") {
		t.Error(got)
	}
}

// FuzzExplain explains objects with any content. It must not panic, and must not print text that can control a
// terminal.
func FuzzExplain(f *testing.F) {
	serving := explainRequest(f, asking(f, servingRequest()))
	issued := explainRequest(f, withCertificate(f, explainNow.AddDate(10, 0, 0), explainNow.AddDate(1, 0, 0), ed25519Key().Public()))
	odd := explainRequest(f, hostile(f))
	for _, obj := range []*request{explainRequest(f), serving, issued, odd, explainRequest(f, forged)} {
		for _, signerName := range []string{apiServerClient, kubeletServing, obj.Spec.SignerName, "kubernetes.io/legacy-unknown", "example.com/x\x1b"} {
			f.Add(obj.Spec.Request, obj.Status.Certificate, signerName, obj.Spec.Username, "client auth", "Approved", nasty, int64(0), int32(600))
			f.Add(obj.Spec.Request, obj.Status.Certificate, signerName, "system:node:a", nasty, "Failed", nasty, int64(1)<<62, int32(-1<<31))
		}
	}
	configuration := commandConfiguration(f)
	f.Fuzz(func(t *testing.T, payload, certificate []byte, signerName, user, usage, kind, text string, age int64, seconds int32) {
		obj := explainRequest(t)
		obj.Name, obj.CreationTimestamp = text, metav1.Unix(age, 0)
		obj.Spec.Request, obj.Spec.SignerName, obj.Spec.Username, obj.Spec.ExpirationSeconds = payload, signerName, user, &seconds
		obj.Spec.Usages, obj.Spec.Groups = append(obj.Spec.Usages, certificatesv1.KeyUsage(usage)), []string{text}
		obj.Status.Certificate = certificate
		obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.RequestConditionType(kind), Reason: text, Message: text, LastUpdateTime: metav1.Unix(age, 0),
		}}
		e, err := newExplainer(t.Context(), configuration, offline{errOffline}, offline{errOffline}, clocktesting.NewFakePassiveClock(explainNow))
		if err != nil {
			t.Fatal(err)
		}
		report := e.Report(t.Context(), obj)
		got := written(t, "", report) + written(t, "json", report) + written(t, "yaml", report)
		if at := strings.IndexFunc(got, forbiddenChar); at >= 0 {
			t.Errorf("%q at %d can fool a terminal", got[at:at+1], at)
		}
		if !strings.HasPrefix(got, "CertificateSigningRequest \"") || strings.Count(got, "\n\nSigner\n") != 1 {
			t.Errorf("the page is not whole:\n%s", got)
		}
	})
}

// FuzzExplainFile reads anything as a file.
func FuzzExplainFile(f *testing.F) {
	for _, text := range []string{document(f, explainRequest(f)), "{}", "[]", "kind: List\nitems: [7, null, {}]", "---\n---", "a: &a [*a]", "{\"kind\":\"CertificateSigningRequestList\",\"items\":[{}]}"} {
		f.Add(text)
	}
	configuration := commandConfiguration(f)
	f.Fuzz(func(t *testing.T, text string) {
		reports, err := All(t.Context(), configuration, strings.NewReader(text), clocktesting.NewFakePassiveClock(explainNow))
		if err == nil && len(reports) == 0 {
			t.Error("neither an explanation nor an error")
		}
	})
}
