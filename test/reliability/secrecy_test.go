package reliability

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// verifySecrecy checks that no key that the signing Secret held is in a log, an audit log or a page of a replica, or in an
// object that others can read. It also checks that the kernel would write no core dump, and that nothing serves profiles.
func (w *world) verifySecrecy() (wrong []error) {
	texts := map[string]string{} // what others than the manager can read, by where it is
	for _, r := range w.replicas {
		for where, file := range map[string]string{"log": r.LogFile, "audit log": r.audit} {
			if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
				data := kit.Must(os.ReadFile(file))(w.t)
				texts[fmt.Sprintf("the %s of replica %d", where, r.number)] = string(data)
			}
		}
	}
	for _, r := range w.running() {
		for _, page := range []struct {
			address, path string
			status        int
		}{{r.metrics, "/metrics", 200}, {r.probes, "/readyz?verbose", 200}, {r.metrics, "/debug/pprof/", 404}, {r.probes, "/debug/pprof/", 404}} {
			status, body := r.page(w.t.Context(), page.address, page.path)
			if status != page.status {
				wrong = append(wrong, fmt.Errorf("replica %d answers %d to %s: %s", r.number, status, page.path, body))
			}
			texts[fmt.Sprintf("%s of replica %d", page.path, r.number)] = body
		}
		limits := kit.Must(os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.Pid())))(w.t)
		if !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(limits) {
			wrong = append(wrong, fmt.Errorf("replica %d may dump its memory: %s", r.number, limits))
		}
	}
	for where, path := range map[string]string{
		"an Event": "/api/v1/events", "a ConfigMap": "/api/v1/configmaps",
		"a request":          "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		"a SigningAuthority": "/apis/csr-controller-manager.io/v1alpha1/signingauthorities",
	} {
		list, err := w.admin.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(w.t.Context())
		if err != nil && !apierrors.IsNotFound(err) { // without rotation there are no SigningAuthorities
			wrong = append(wrong, fmt.Errorf("%s: %w", path, err))
		}
		texts[where] = string(list)
	}
	for _, key := range append(w.keys, w.CA.KeyPEM) {
		for _, secret := range keyTexts(key) {
			for where, text := range texts {
				if strings.Contains(text, secret) {
					wrong = append(wrong, fmt.Errorf("a key of the signing Secret is in %s", where))
				}
			}
		}
	}
	return wrong
}

// keyTexts returns parts of an ECDSA key in the forms in which it could be printed.
func keyTexts(keyPEM []byte) (texts []string) {
	block, _ := pem.Decode(keyPEM)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		key, err = x509.ParseECPrivateKey(block.Bytes)
	}
	must := func(data []byte, err error) []byte {
		if err != nil {
			panic(err) // a key of the test
		}
		return data
	}
	must(nil, err)
	private := key.(*ecdsa.PrivateKey)
	raw, public := must(private.Bytes()), must(private.PublicKey.Bytes())
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
