package csr_test

import (
	"crypto/x509"
	"testing"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
)

type x509Usages struct {
	Key     x509.KeyUsage
	Ext     []x509.ExtKeyUsage
	Unknown []certificatesv1.KeyUsage
}

func TestUsages(t *testing.T) {
	t.Parallel()
	key := func(usage x509.KeyUsage) x509Usages { return x509Usages{Key: usage} }
	ext := func(usage x509.ExtKeyUsage) x509Usages { return x509Usages{Ext: []x509.ExtKeyUsage{usage}} }
	for usage, want := range map[certificatesv1.KeyUsage]x509Usages{
		"signing":             key(x509.KeyUsageDigitalSignature),
		"digital signature":   key(x509.KeyUsageDigitalSignature),
		"content commitment":  key(x509.KeyUsageContentCommitment),
		"key encipherment":    key(x509.KeyUsageKeyEncipherment),
		"key agreement":       key(x509.KeyUsageKeyAgreement),
		"data encipherment":   key(x509.KeyUsageDataEncipherment),
		"cert sign":           key(x509.KeyUsageCertSign),
		"crl sign":            key(x509.KeyUsageCRLSign),
		"encipher only":       key(x509.KeyUsageEncipherOnly),
		"decipher only":       key(x509.KeyUsageDecipherOnly),
		"any":                 ext(x509.ExtKeyUsageAny),
		"server auth":         ext(x509.ExtKeyUsageServerAuth),
		"client auth":         ext(x509.ExtKeyUsageClientAuth),
		"code signing":        ext(x509.ExtKeyUsageCodeSigning),
		"email protection":    ext(x509.ExtKeyUsageEmailProtection),
		"s/mime":              ext(x509.ExtKeyUsageEmailProtection),
		"ipsec end system":    ext(x509.ExtKeyUsageIPSECEndSystem),
		"ipsec tunnel":        ext(x509.ExtKeyUsageIPSECTunnel),
		"ipsec user":          ext(x509.ExtKeyUsageIPSECUser),
		"timestamping":        ext(x509.ExtKeyUsageTimeStamping),
		"ocsp signing":        ext(x509.ExtKeyUsageOCSPSigning),
		"microsoft sgc":       ext(x509.ExtKeyUsageMicrosoftServerGatedCrypto),
		"netscape sgc":        ext(x509.ExtKeyUsageNetscapeServerGatedCrypto),
		"":                    {Unknown: []certificatesv1.KeyUsage{""}},
		"Client Auth":         {Unknown: []certificatesv1.KeyUsage{"Client Auth"}},
		"client auth ":        {Unknown: []certificatesv1.KeyUsage{"client auth "}},
		"1.3.6.1.5.5.7.3.2":   {Unknown: []certificatesv1.KeyUsage{"1.3.6.1.5.5.7.3.2"}},
		"non repudiation":     {Unknown: []certificatesv1.KeyUsage{"non repudiation"}},
		"microsoft smartcard": {Unknown: []certificatesv1.KeyUsage{"microsoft smartcard"}},
	} {
		t.Run(string(usage), func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(want, usagesOf(t, usage)); diff != "" {
				t.Errorf("X.509 form (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUsagesTogether(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		usages []certificatesv1.KeyUsage
		want   x509Usages
	}{
		"none": {},
		"key usages add up": {
			usages: []certificatesv1.KeyUsage{"cert sign", "signing", "digital signature"},
			want:   x509Usages{Key: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature},
		},
		"extended ones are sorted and come once": {
			usages: []certificatesv1.KeyUsage{"s/mime", "client auth", "server auth", "email protection", "client auth", "any"},
			want:   x509Usages{Ext: []x509.ExtKeyUsage{x509.ExtKeyUsageAny, x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageEmailProtection}},
		},
		"unknown ones keep their order": {
			usages: []certificatesv1.KeyUsage{"z", "client auth", "a"},
			want:   x509Usages{Ext: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, Unknown: []certificatesv1.KeyUsage{"z", "a"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, usagesOf(t, test.usages...)); diff != "" {
				t.Errorf("X.509 form (-want +got):\n%s", diff)
			}
		})
	}
}

func usagesOf(t *testing.T, usages ...certificatesv1.KeyUsage) x509Usages {
	t.Helper()
	req := parse(t, func(obj *certificatesv1.CertificateSigningRequest) { obj.Spec.Usages = usages })
	return x509Usages{Key: req.Cert.KeyUsage, Ext: req.Cert.ExtKeyUsage, Unknown: req.UnknownUsages}
}
