package parity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"time"
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
func (e *env) writeCAs() error {
	cert, key, err := writePair(e.Dir, "ca", e.CA.CertPEM, e.CA.KeyPEM)
	if err != nil {
		return err
	}
	soon := time.Now().Add(50 * time.Minute).Truncate(time.Second)
	e.ends = []time.Time{soon}
	e.byStart[oneCA] = []string{"--controllers=csrsigning,csrapproving,csrcleaner", "--cluster-signing-duration=24h",
		"--cluster-signing-cert-file=" + cert, "--cluster-signing-key-file=" + key}
	own, err := e.flags(
		signerCA{"kubelet-client", "RSA-2048", soon.Add(time.Hour), nil},
		signerCA{"kubelet-serving", "authority", soon, nil},
		signerCA{"legacy-unknown", "P-256", soon.Add(time.Hour), nil},
	)
	if err != nil {
		return err
	}
	e.byStart[ownCAs] = append(own, "--controllers=csrsigning,csrapproving", "--cluster-signing-duration=1h")
	unfit, err := e.flags(
		signerCA{"kubelet-client", "P-256", soon.AddDate(5, 0, 0), func(c *x509.Certificate) { c.IsCA = false }},
		signerCA{"kubelet-serving", "P-384", soon.AddDate(5, 0, 0), func(c *x509.Certificate) { c.NotBefore = soon.Add(time.Hour) }},
	)
	if err != nil {
		return err
	}
	e.byStart[defaults] = append(unfit, "--controllers=csrsigning",
		"--cluster-signing-kube-apiserver-client-cert-file="+cert, "--cluster-signing-kube-apiserver-client-key-file="+key)
	ended, err := e.flags(
		signerCA{"kubelet-client", "Ed25519", soon.Add(-time.Hour), nil},
		signerCA{"kubelet-serving", "P-521", soon.AddDate(5, 0, 0), func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }},
	)
	e.byStart[endedCAs] = append(ended, "--controllers=csrsigning", "--cluster-signing-duration=5m",
		"--cluster-signing-kube-apiserver-client-cert-file="+cert, "--cluster-signing-kube-apiserver-client-key-file="+key)
	return err
}

// flags writes the CAs and returns the flags that name them.
func (e *env) flags(cas ...signerCA) ([]string, error) {
	var flags []string
	for _, one := range cas {
		cert, err := selfSigned(one.kind, one.notAfter, one.change)
		if err != nil {
			return nil, err
		}
		key, err := privatePEM(one.kind)
		if err != nil {
			return nil, err
		}
		certFile, keyFile, err := writePair(e.Dir, one.flag+"-"+one.kind, cert, key)
		if err != nil {
			return nil, err
		}
		flags = append(flags, "--cluster-signing-"+one.flag+"-cert-file="+certFile, "--cluster-signing-"+one.flag+"-key-file="+keyFile)
	}
	return flags, nil
}

// selfSigned makes a CA certificate with the key of that kind; change may be nil.
func selfSigned(kind string, notAfter time.Time, change func(*x509.Certificate)) ([]byte, error) {
	key, err := keyOf(kind)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "parity CA " + kind},
		NotBefore:             notAfter.AddDate(-6, 0, 0),
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	if change != nil {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}

// privatePEM returns the key of that kind in the encoding of OpenSSL's older commands: PKCS#1, SEC 1 or PKCS#8.
func privatePEM(kind string) ([]byte, error) {
	key, err := keyOf(kind)
	if err != nil {
		return nil, err
	}
	label, der, err := encode(key)
	return pem.EncodeToMemory(&pem.Block{Type: label, Bytes: der}), err
}

func encode(key crypto.Signer) (label string, der []byte, err error) {
	switch key := key.(type) {
	case *rsa.PrivateKey:
		return "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(key), nil
	case *ecdsa.PrivateKey:
		der, err = x509.MarshalECPrivateKey(key)
		return "EC PRIVATE KEY", der, err
	default:
		der, err = x509.MarshalPKCS8PrivateKey(key)
		return "PRIVATE KEY", der, err
	}
}

func writePair(dir, name string, cert, key []byte) (certFile, keyFile string, err error) {
	certFile, keyFile = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := os.WriteFile(certFile, cert, 0o600); err != nil {
		return "", "", err
	}
	return certFile, keyFile, os.WriteFile(keyFile, key, 0o600)
}
