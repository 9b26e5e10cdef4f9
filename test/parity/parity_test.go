// Package parity sends the same requests through the real kube-controller-manager and through csr-controller-manager,
// each alone and in turn on one API server. It compares the outcomes field by field.
package parity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"debug/buildinfo"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/keyutil"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

func TestMain(m *testing.M) { kit.Main(m, 1) }

// start is a way to start both programs.
type start int

const (
	// oneCA has one CA for all signers, and certificates for a day. The cleaner runs only in this start.
	oneCA start = iota
	// ownCAs has a CA for each signer but kubernetes.io/kube-apiserver-client, and certificates for an hour. The
	// CA for kubernetes.io/kubelet-serving is an intermediate and expires before its certificates would. The flags for
	// kubernetes.io/legacy-unknown have no effect here. Ours has chain: None, and files that kube-controller-manager refuses.
	ownCAs
	// defaults has no --cluster-signing-duration. Only kubernetes.io/kube-apiserver-client has a usable CA.
	defaults
	// endedCAs has an expired CA for kubernetes.io/kube-apiserver-client-kubelet, and a CA for
	// kubernetes.io/kubelet-serving that may not sign. Its certificates live for five minutes, which is less than the
	// least lifetime that a request may ask for. The CA of kubernetes.io/kube-apiserver-client is an intermediate.
	endedCAs
	starts
)

// env is the control plane for both programs, which run one after the other.
type env struct {
	*cluster.Cluster
	// kubeconfigs are the kubeconfig files of the identities of ours by controller, and "" is the administrator's.
	kubeconfigs map[string]string
	// flags are those of each start. ourFlags are added for ours in ownCAs.
	flags    [starts][]string
	ourFlags []string
	// refused are flags with which kube-controller-manager exits with a text. ourFlags have both.
	refused map[string][]string
	// ends are the expiry times of CAs that expire before their certificates would.
	ends []time.Time
}

func startEnv(t *testing.T) *env {
	t.Helper()
	kit.Require(t, os.Getenv("KUBE_CONTROLLER_MANAGER") != "",
		"KUBE_CONTROLLER_MANAGER is not set: run this with `make parity`, which gets the control plane")
	kit.Must(buildinfo.ReadFile(os.Getenv("KUBE_CONTROLLER_MANAGER")))(t) // the table depends on it
	kit.Alone(t)
	e := &env{Cluster: kit.ControlPlane(t), kubeconfigs: map[string]string{}}
	e.identify(t)
	kit.GrantGroup(t, "system:authenticated", kit.MayCreate)
	kit.GrantGroup(t, "parity:bootstrappers", kit.MayJoin)
	kit.Grant(t, "named", kit.MayJoin)
	kit.GrantGroup(t, "parity:renewers", kit.MayRenewOwn)
	e.writeCAs(t)
	return e
}

// identify gives each of our controllers its identity of config/overlays/split, for an hour.
func (e *env) identify(t *testing.T) {
	t.Helper()
	configs := map[string]*rest.Config{
		"": e.Config, "csrapproving": kit.RoleConfig(t, "approver"), "csrsigning": kit.RoleConfig(t, "signer"), "csrcleaner": kit.RoleConfig(t, "cleaner"),
	}
	for name, cfg := range configs {
		file := kit.Must(e.WriteKubeconfig("parity-"+name, cfg))(t)
		e.kubeconfigs[name] = file
	}
}

// writeCAs writes the CAs and the flags of all starts.
func (e *env) writeCAs(t *testing.T) {
	t.Helper()
	later := time.Now().AddDate(5, 0, 0)
	between, chained := kit.IntermediateOf(t, e.CA), kit.IntermediateOf(t, e.CA)
	e.ends = []time.Time{kit.Certificate(t, between).NotAfter}
	e.flags[oneCA] = append(e.files(t, "", e.CA.CertPEM, e.CA.KeyPEM),
		"--controllers=csrsigning,csrapproving,csrcleaner", "--cluster-signing-duration=24h")
	e.flags[ownCAs] = slices.Concat(
		e.selfSigned(t, "kubelet-client-", "RSA-2048", later, nil),
		e.files(t, "kubelet-serving-", between.CertPEM, between.KeyPEM),
		e.selfSigned(t, "legacy-unknown-", "P-256", later, nil),
		[]string{"--controllers=csrsigning,csrapproving", "--cluster-signing-duration=1h"})
	e.flags[defaults] = slices.Concat(
		e.selfSigned(t, "kubelet-client-", "P-256", later, func(c *x509.Certificate) { c.IsCA = false }),
		e.selfSigned(t, "kubelet-serving-", "P-256", later, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Hour) }),
		e.selfSigned(t, "kube-apiserver-client-", "P-384", later, func(c *x509.Certificate) { c.PermittedDNSDomains = []string{"example.org"} }),
		[]string{"--controllers=csrsigning"})
	e.flags[endedCAs] = slices.Concat(
		e.selfSigned(t, "kubelet-client-", "Ed25519", time.Now().Add(-time.Hour), nil),
		e.selfSigned(t, "kubelet-serving-", "P-521", later, func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }),
		e.files(t, "kube-apiserver-client-", chained.CertPEM, chained.KeyPEM),
		[]string{"--controllers=csrsigning", "--cluster-signing-duration=5m"})

	bundle := slices.Concat(between.CertPEM, expires(later))
	mislabelled := []byte(strings.ReplaceAll(string(between.KeyPEM), " PRIVATE KEY", " RSA PRIVATE KEY"))
	e.ourFlags = e.files(t, "kubelet-serving-", bundle, mislabelled)
	cert, key := strings.SplitAfter(e.ourFlags[0], "=")[1], strings.SplitAfter(e.ourFlags[1], "=")[1]
	e.ourFlags = append(e.ourFlags, kit.Configure(t, fmt.Sprintf(
		"signing: {signers: [{name: %s, certFile: %s, keyFile: %s, chain: None}]}\n", kubeletServing, cert, key)))
	e.refused = map[string][]string{
		"expected 1 certificate, found 2":                   e.files(t, "", bundle, between.KeyPEM),
		"does not contain a valid RSA or ECDSA private key": e.files(t, "", between.CertPEM, mislabelled),
	}
}

// selfSigned writes a CA with the key of that kind, in the encoding of OpenSSL's older commands: PKCS#1, SEC 1 or PKCS#8.
func (e *env) selfSigned(t *testing.T, signer, kind string, notAfter time.Time, change func(*x509.Certificate)) []string {
	t.Helper()
	key, is := keyOf(kind).(ed25519.PrivateKey)
	if !is {
		return e.files(t, signer, caOf(kind, notAfter, change), must(keyutil.MarshalPrivateKeyToPEM(keyOf(kind))))
	}
	block := &pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}
	return e.files(t, signer, caOf(kind, notAfter, change), pem.EncodeToMemory(block))
}

// files writes a CA and returns the flags that name it, for one signer or for all.
func (e *env) files(t *testing.T, signer string, cert, key []byte) []string {
	t.Helper()
	file := filepath.Join(e.Dir, signer+rand.Text())
	kit.Write(t, file+".crt", cert)
	kit.Write(t, file+".key", key)
	return []string{"--cluster-signing-" + signer + "cert-file=" + file + ".crt", "--cluster-signing-" + signer + "key-file=" + file + ".key"}
}

// caOf returns a CA certificate with the key of that kind; change may be nil.
func caOf(kind string, notAfter time.Time, change func(*x509.Certificate)) []byte {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "parity CA " + kind}, NotBefore: notAfter.AddDate(-6, 0, 0), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	if change != nil {
		change(template)
	}
	key := keyOf(kind)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))})
}

// expires returns a certificate that expires at that time.
func expires(at time.Time) []byte { return caOf("", at, nil) }

// makeKey makes a key of each kind.
var makeKey = map[string]func() (crypto.Signer, error){
	"": ec(elliptic.P256()), "P-224": ec(elliptic.P224()), "P-256": ec(elliptic.P256()), "P-384": ec(elliptic.P384()), "P-521": ec(elliptic.P521()),
	"Ed25519":   func() (crypto.Signer, error) { _, key, err := ed25519.GenerateKey(rand.Reader); return key, err },
	"ML-DSA-44": mldsaKey(mldsa.MLDSA44()), "ML-DSA-65": mldsaKey(mldsa.MLDSA65()), "ML-DSA-87": mldsaKey(mldsa.MLDSA87()),
	"RSA-1024": rsaKey(1024), "RSA-2048": rsaKey(2048), "RSA-4096": rsaKey(4096),
}

func ec(curve elliptic.Curve) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return ecdsa.GenerateKey(curve, rand.Reader) }
}

func mldsaKey(parameters mldsa.Parameters) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return mldsa.GenerateKey(parameters) }
}

func rsaKey(bits int) func() (crypto.Signer, error) {
	return func() (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, bits) }
}

var madeKeys sync.Map

// keyOf returns the one key of a kind. The comparison never depends on the value of a key.
func keyOf(kind string) crypto.Signer {
	key, found := madeKeys.Load(kind)
	if !found {
		key, _ = madeKeys.LoadOrStore(kind, must(makeKey[kind]()))
	}
	return key.(crypto.Signer)
}

// create creates the row's request under that name.
func (e *env) create(t *testing.T, name string, r row) error {
	t.Helper()
	obj, err := r.object(name)
	if err != nil {
		return err
	}
	if r.stored {
		return e.Store(t.Context(), "certificatesigningrequests/"+name, obj)
	}
	admin, cfg := kit.Admin(t), rest.CopyConfig(e.Config)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: r.user.name, Groups: r.user.groups}
	requester, err := ctrl.New(cfg, ctrl.Options{Scheme: kit.Scheme, Mapper: admin.RESTMapper()})
	if err == nil {
		err = requester.Create(t.Context(), obj)
	}
	for _, condition := range r.conditions {
		subresource := admin.SubResource("status")
		if condition.Type == certificatesv1.CertificateApproved || condition.Type == certificatesv1.CertificateDenied {
			subresource = admin.SubResource("approval")
		}
		if err == nil {
			obj.Status.Conditions = append(obj.Status.Conditions, condition)
			err = subresource.Update(t.Context(), obj)
		}
	}
	return err
}

// table is every row.
var table = func() map[string]row {
	all := map[string]row{}
	parts := []map[string]row{approverRows, signerRows, certificateRows, cleanerRows, startRows}
	if info, err := buildinfo.ReadFile(os.Getenv("KUBE_CONTROLLER_MANAGER")); err == nil && version.Compare(info.GoVersion, "go1.27") >= 0 {
		parts = append(parts, mldsaRows)
	}
	for _, part := range parts {
		for key, r := range part {
			if _, twice := all[key]; twice {
				panic("two rows are called " + key)
			}
			all[key] = r
		}
	}
	return all
}()

func isCleanerRow(key string) bool {
	_, found := cleanerRows[key]
	return found
}

// expected returns the row's state at the end.
func (r row) expected(ours bool) string {
	if ours && r.deviation != "" {
		return r.ours
	}
	return r.want
}

func TestParity(t *testing.T) {
	env := startEnv(t)
	theirs := env.recorded(t)
	ours := env.ourTurn(t).outcomes(t)
	for _, key := range slices.Sorted(maps.Keys(table)) {
		t.Run(key, func(t *testing.T) {
			r := table[key]
			if their, seen := theirs[key]; seen {
				compare(t, r, their, ours[key])
			} else if !isCleanerRow(key) {
				t.Errorf("kube-controller-manager's turn has no such row")
			} else if want := r.expected(true); ours[key].State != want {
				t.Errorf("we made %q of it, the table says %q", ours[key].State, want)
			}
		})
	}
	t.Run("documented", testDocumented)
}

// testDocumented checks that docs/reference/kcm-parity.md has a row for each deviation, and no other row.
func testDocumented(t *testing.T) {
	t.Helper()
	doc := kit.Must(os.ReadFile("../../docs/reference/kcm-parity.md"))(t)
	documented := map[string]bool{}
	for _, found := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(doc), -1) {
		documented[found[1]] = true
	}
	// ca-bundle and key-label are the files of the start ownCAs. Older programs than mldsaRows need have no ml-dsa-usages. The test of unknown-usage is in controllers/signer, because of all signers
	// of kube-controller-manager only legacy-unknown does not check the usages.
	listed := map[string]bool{"ca-bundle": true, "key-label": true, "unknown-usage": true, "ml-dsa-usages": true}
	for _, r := range table {
		if r.deviation != "" {
			listed[r.deviation] = true
		}
	}
	kit.Equal(t, "deviations in docs/reference/kcm-parity.md", documented, listed)
}

func compare(t *testing.T, r row, theirs, ours outcome) {
	t.Helper()
	kit.Check(t, theirs.State == r.want, "kube-controller-manager made %q of it, the table says %q", theirs.State, r.want)
	diff := cmp.Diff(theirs, ours)
	if r.deviation == "" {
		kit.Check(t, diff == "", "a difference that is no listed deviation (-kube-controller-manager +ours):\n%s", diff)
		return
	}
	kit.Check(t, diff != "", "deviation %q no longer differs", r.deviation)
	kit.Check(t, ours.State == r.ours, "we made %q of it, deviation %q is %q", ours.State, r.deviation, r.ours)
	want := append(slices.Clone(theirs.Conditions), "Failed=True "+r.message+" (times filled: true)")
	got := ours.Conditions
	if r.ours == approvedIssued {
		want, got = append(slices.Clone(theirs.Certificate), r.message), ours.Certificate
	} else if theirs.State == approvedFailed {
		want = append(want[:len(want)-2], want[len(want)-1]) // ours fails it for another reason
	}
	kit.Check(t, r.message == "" || slices.Equal(got, want), "we say\n%q, want\n%q", got, want)
}

// recorded runs kube-controller-manager's turn, or reads the file PARITY_RECORDED of an earlier turn.
func (e *env) recorded(t *testing.T) map[string]outcome {
	t.Helper()
	file := os.Getenv("PARITY_RECORDED")
	recorded, err := os.ReadFile(file)
	outcomes := map[string]outcome{}
	if file == "" || errors.Is(err, fs.ErrNotExist) {
		e.testRefused(t)
		outcomes = e.theirTurn().outcomes(t)
		if file != "" {
			recorded, err := json.Marshal(outcomes)
			kit.NoError(t, errors.Join(err, os.WriteFile(file, recorded, 0o600)))
		}
		return outcomes
	}
	kit.NoError(t, errors.Join(err, json.Unmarshal(recorded, &outcomes)))
	return outcomes
}

// testRefused checks that kube-controller-manager exits with the files that ours has in ownCAs.
func (e *env) testRefused(t *testing.T) {
	t.Helper()
	for words, files := range e.refused {
		u := e.theirTurn()
		u.run(t, append(files, controllersFlag+"csrsigning"))
		select {
		case <-u.processes[0].Done:
		case <-time.After(time.Minute):
			t.Errorf("kube-controller-manager runs, want it to say %q", words)
		}
		if tail := u.tail(); !strings.Contains(tail, words) {
			t.Errorf("kube-controller-manager ended, but did not say %q:\n%s", words, tail)
		}
	}
}
