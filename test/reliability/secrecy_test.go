package reliability

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/base64"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// verifySecrecy checks that no key that the signing Secret held is in a log, an audit log or a page of a replica, or in an
// object that others can read. It also checks that the kernel would write no core dump, and that nothing serves profiles.
func (w *world) verifySecrecy() {
	texts := map[string]string{} // what others than the manager can read, by where it is
	for _, r := range w.replicas {
		for where, file := range map[string]string{"log": r.LogFile, "audit log": r.audit} {
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				texts[fmt.Sprintf("the %s of replica %d", where, r.number)] = string(kit.Must(os.ReadFile(file))(w.t))
			}
		}
	}
	for _, r := range w.running() {
		for _, page := range []struct {
			address, path string
			status        int
		}{{r.metrics, "/metrics", 200}, {r.probes, "/readyz?verbose", 200}, {r.metrics, "/debug/pprof/", 404}, {r.probes, "/debug/pprof/", 404}} {
			status, body := r.page(w.t.Context(), page.address, page.path)
			kit.Check(w.t, status == page.status, "replica %d answers %d to %s: %s", r.number, status, page.path, body)
			texts[fmt.Sprintf("%s of replica %d", page.path, r.number)] = body
		}
		limits := kit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.Pid())))(w.t)
		noDump := regexp.MustCompile(`(?m)^Max core file size +0 +0 `)
		kit.Check(w.t, noDump.Match(limits), "replica %d may dump its memory: %s", r.number, limits)
	}
	for where, path := range map[string]string{
		"an Event": "/api/v1/events", "a ConfigMap": "/api/v1/configmaps",
		"a request":          "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		"a SigningAuthority": "/apis/csr-controller-manager.io/v1alpha1/signingauthorities",
	} {
		list, err := w.admin.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(w.t.Context())
		kit.Check(w.t, err == nil || apierrors.IsNotFound(err), "%s: %v", path, err) // without rotation there are no SigningAuthorities
		texts[where] = string(list)
	}
	for _, key := range append(w.keys, w.CA.KeyPEM) {
		for _, secret := range keyTexts(w.t, key) {
			for where, text := range texts {
				kit.Check(w.t, !strings.Contains(text, secret), "a key of the signing Secret is in %s", where)
			}
		}
	}
}

// keyTexts returns parts of an ECDSA key in the forms in which it could be printed.
func keyTexts(t *testing.T, keyPEM []byte) (texts []string) {
	t.Helper()
	private := kit.Must(keyutil.ParsePrivateKeyPEM(keyPEM))(t).(*ecdsa.PrivateKey)
	raw, public := kit.Must(private.Bytes())(t), kit.Must(private.PublicKey.Bytes())(t)
	texts = append(texts, base64.StdEncoding.EncodeToString(keyPEM[:len(keyPEM)/3*3])) // in a Secret, whatever follows
	for line := range strings.Lines(string(keyPEM)) {
		part, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err == nil && len(part) >= 30 && !bytes.Contains(public, part) { // the CA's certificate has the public key, too
			texts = append(texts, strings.TrimSpace(line))
		}
	}
	return append(texts, fmt.Sprintf("%x", raw), fmt.Sprintf("%X", raw), base64.StdEncoding.EncodeToString(raw),
		strings.Trim(fmt.Sprintf("%d", raw), "[]"), new(big.Int).SetBytes(raw).String())
}
