package reliability

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"regexp"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// verifySecrecy checks that no key that the signing Secret held is in a log, an audit log or a page of a replica, or in an
// object that others can read. It also checks that the kernel would write no core dump, and that nothing serves profiles.
func (w *world) verifySecrecy() (wrong []error) {
	w.t.Helper()
	texts, err := w.published()
	if err != nil {
		return []error{err}
	}
	for _, key := range append(w.keys, w.roots[0].KeyPEM) {
		for _, secret := range keyTexts(key) {
			for where, text := range texts {
				if strings.Contains(text, secret) {
					wrong = append(wrong, fmt.Errorf("a key of the signing Secret is in %s", where))
				}
			}
		}
	}
	for _, r := range w.running() {
		limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", r.Pid()))
		if err != nil {
			wrong = append(wrong, err)
		} else if !regexp.MustCompile(`(?m)^Max core file size +0 +0 `).Match(limits) {
			wrong = append(wrong, fmt.Errorf("replica %d may dump its memory: %s", r.number, limits))
		}
		for _, address := range []string{r.probes, r.metrics} {
			if status, _ := r.page(w.t.Context(), address, "/debug/pprof/"); status != http.StatusNotFound {
				wrong = append(wrong, fmt.Errorf("replica %d answers %d to a request for profiles", r.number, status))
			}
		}
	}
	return wrong
}

// published returns what others than the manager can read, by where it is.
func (w *world) published() (map[string]string, error) {
	w.t.Helper()
	texts := map[string]string{}
	for _, r := range w.replicas {
		log, err := r.Log()
		if err != nil {
			return nil, err
		}
		texts[fmt.Sprintf("the log of replica %d", r.number)] = log
		info, err := os.Stat(r.audit)
		if errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular() {
			continue
		}
		records, err := os.ReadFile(r.audit)
		if err != nil {
			return nil, err
		}
		texts[fmt.Sprintf("the audit log of replica %d", r.number)] = string(records)
	}
	for _, r := range w.running() {
		for _, page := range []struct{ address, path string }{{r.metrics, "/metrics"}, {r.probes, "/readyz?verbose"}} {
			status, body := r.page(w.t.Context(), page.address, page.path)
			if status != http.StatusOK {
				return nil, fmt.Errorf("replica %d answers %d to %s: %s", r.number, status, page.path, body)
			}
			texts[fmt.Sprintf("%s of replica %d", page.path, r.number)] = body
		}
	}
	for where, path := range map[string]string{
		"an Event": "/api/v1/events", "a ConfigMap": "/api/v1/configmaps",
		"a request":          "/apis/certificates.k8s.io/v1/certificatesigningrequests",
		"a SigningAuthority": "/apis/csr-controller-manager.io/v1alpha1/signingauthorities",
	} {
		list, err := w.admin.Discovery().RESTClient().Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(w.t.Context())
		if err != nil && !apierrors.IsNotFound(err) { // without rotation there are no SigningAuthorities
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		texts[where] = string(list)
	}
	return texts, nil
}

// keyTexts returns parts of an ECDSA key in the forms in which it could be printed.
func keyTexts(keyPEM []byte) (texts []string) {
	block, _ := pem.Decode(keyPEM)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		key, err = x509.ParseECPrivateKey(block.Bytes)
	}
	if err != nil {
		panic(err) // a key of the test
	}
	private := key.(*ecdsa.PrivateKey)
	raw, err := private.Bytes()
	if err != nil {
		panic(err)
	}
	public, err := private.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
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
