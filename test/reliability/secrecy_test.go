package reliability

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// verifySecrecy checks that the CA's key is in no log, audit log, Event or page of a replica, that the kernel would
// write no core dump, and that nothing serves profiles.
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
					wrong = append(wrong, fmt.Errorf("the CA's key is in %s", where))
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
	events, err := w.admin.CoreV1().Events("").List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(events.Items)
	texts["an Event"] = string(text)
	return texts, err
}

// keyTexts returns parts of an ECDSA key in the forms in which it could be printed.
func keyTexts(keyPEM []byte) (texts []string) {
	for line := range strings.Lines(string(keyPEM)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") && len(line) >= 40 {
			texts = append(texts, line)
		}
	}
	block, _ := pem.Decode(keyPEM)
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		key, err = x509.ParseECPrivateKey(block.Bytes)
	}
	if err != nil {
		panic(err) // a key of the test
	}
	raw, err := key.(*ecdsa.PrivateKey).Bytes()
	if err != nil {
		panic(err)
	}
	return append(texts, fmt.Sprintf("%x", raw), fmt.Sprintf("%X", raw), base64.StdEncoding.EncodeToString(raw),
		strings.Trim(fmt.Sprintf("%d", raw), "[]"), new(big.Int).SetBytes(raw).String())
}
