package parity

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/keyutil"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// start is a way to start both programs.
type start int

const (
	// oneCA has one CA for all signers, and certificates for a day. The cleaner runs only in this start.
	oneCA start = iota
	// ownCAs has a CA for each signer but kubernetes.io/kube-apiserver-client, and certificates for an hour. The
	// CA for kubernetes.io/kubelet-serving expires before its certificates would. The flags for
	// kubernetes.io/legacy-unknown have no effect here.
	ownCAs
	// defaults has no --cluster-signing-duration. Only kubernetes.io/kube-apiserver-client has a usable CA.
	defaults
	// endedCAs has an expired CA for kubernetes.io/kube-apiserver-client-kubelet, and a CA for
	// kubernetes.io/kubelet-serving that may not sign. Its certificates live for five minutes, which is less than the
	// least lifetime that a request may ask for.
	endedCAs
	starts
)

// signerCA is the CA of one signer, named like its flags.
type signerCA struct {
	flag, kind string
	notAfter   time.Time
	change     func(*x509.Certificate)
}

// writeCAs writes the CAs and the flags of all starts.
func (e *env) writeCAs(t *testing.T) {
	t.Helper()
	soon := time.Now().Add(50 * time.Minute).Truncate(time.Second)
	e.ends = []time.Time{soon}
	own := e.pair(t, "kube-apiserver-client", e.CA.CertPEM, e.CA.KeyPEM)
	e.byStart[oneCA] = append(e.filesOf(t, "ca", e.CA.CertPEM, e.CA.KeyPEM), "--controllers=csrsigning,csrapproving,csrcleaner", "--cluster-signing-duration=24h")
	e.byStart[ownCAs] = slices.Concat(e.flags(t,
		signerCA{"kubelet-client", "RSA-2048", soon.Add(time.Hour), nil},
		signerCA{"kubelet-serving", "authority", soon, nil},
		signerCA{"legacy-unknown", "P-256", soon.Add(time.Hour), nil},
	), []string{"--controllers=csrsigning,csrapproving", "--cluster-signing-duration=1h"})
	e.byStart[defaults] = slices.Concat(e.flags(t,
		signerCA{"kubelet-client", "P-256", soon.AddDate(5, 0, 0), func(c *x509.Certificate) { c.IsCA = false }},
		signerCA{"kubelet-serving", "P-384", soon.AddDate(5, 0, 0), func(c *x509.Certificate) { c.NotBefore = soon.Add(time.Hour) }},
	), own, []string{"--controllers=csrsigning"})
	e.byStart[endedCAs] = slices.Concat(e.flags(t,
		signerCA{"kubelet-client", "Ed25519", soon.Add(-time.Hour), nil},
		signerCA{"kubelet-serving", "P-521", soon.AddDate(5, 0, 0), func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }},
	), own, []string{"--controllers=csrsigning", "--cluster-signing-duration=5m"})
}

// flags writes the CAs and returns the flags that name them.
func (e *env) flags(t *testing.T, cas ...signerCA) (flags []string) {
	t.Helper()
	for _, one := range cas {
		cert, key := selfSigned(one.kind, one.notAfter, one.change), privatePEM(one.kind)
		flags = append(flags, e.pair(t, one.flag, cert, key)...)
	}
	return flags
}

// pair writes the CA of one signer and returns its flags.
func (e *env) pair(t *testing.T, signer string, cert, key []byte) (flags []string) {
	t.Helper()
	for _, flag := range e.filesOf(t, signer, cert, key) {
		flags = append(flags, strings.Replace(flag, "--cluster-signing-", "--cluster-signing-"+signer+"-", 1))
	}
	return flags
}

// filesOf writes a CA and returns the flags that name it, for all signers.
func (e *env) filesOf(t *testing.T, name string, cert, key []byte) []string {
	t.Helper()
	file := filepath.Join(e.Dir, name+"-"+rand.Text())
	kit.Write(t, file+".crt", cert)
	kit.Write(t, file+".key", key)
	return []string{"--cluster-signing-cert-file=" + file + ".crt", "--cluster-signing-key-file=" + file + ".key"}
}

// selfSigned makes a CA certificate with the key of that kind; change may be nil.
func selfSigned(kind string, notAfter time.Time, change func(*x509.Certificate)) []byte {
	key := keyOf(kind)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "parity CA " + kind}, NotBefore: notAfter.AddDate(-6, 0, 0), NotAfter: notAfter,
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
	}
	if change != nil {
		change(template)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))})
}

// privatePEM returns the key of that kind in the encoding of OpenSSL's older commands: PKCS#1, SEC 1 or PKCS#8.
func privatePEM(kind string) []byte {
	if key, is := keyOf(kind).(ed25519.PrivateKey); is {
		return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))})
	}
	return must(keyutil.MarshalPrivateKeyToPEM(keyOf(kind)))
}
