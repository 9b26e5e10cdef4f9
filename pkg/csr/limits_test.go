package csr_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// organizationalUnits returns a change that sets count organizational units, each in its own RDN.
func organizationalUnits(count int) func(*content) {
	attributes := slices.Repeat([]pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 11}, Value: "u"}}, count)
	return subject(attributes...)
}

// inOneRDN returns a change that puts all attributes of the subject into one set.
func inOneRDN(count int) func(*content) {
	return func(said *content) {
		attributes := slices.Repeat(pkix.RelativeDistinguishedNameSET{{Type: asn1.ObjectIdentifier{2, 5, 4, 11}, Value: "u"}}, count)
		said.Subject = raw(pkix.RDNSequence{attributes})
	}
}

func dnsNamesOf(count int) func(*content) {
	return names(slices.Repeat([]asn1.RawValue{generalName(2, false, []byte("a"))}, count)...)
}

// unknownExtensions returns a change that requests count unknown extensions in one attribute.
func unknownExtensions(count int) func(*content) {
	var all []pkix.Extension
	for i := range count {
		all = append(all, pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, i}, Value: []byte{5, 0}})
	}
	return extensions(all...)
}

func unknownAttributes(count int) func(*content) {
	return func(said *content) {
		one := raw(struct {
			ID     asn1.ObjectIdentifier
			Values []int `asn1:"set"`
		}{asn1.ObjectIdentifier{1, 2, 3}, []int{1}})
		said.Attributes = slices.Repeat([]asn1.RawValue{one}, count)
	}
}

// publicKey returns a change that replaces the key by one that need not exist. The signature does not match it.
func publicKey(algorithm pkix.AlgorithmIdentifier, key []byte) func(*content) {
	return func(said *content) {
		said.PublicKey = raw(struct {
			Algorithm pkix.AlgorithmIdentifier
			Key       asn1.BitString
		}{algorithm, asn1.BitString{Bytes: key, BitLength: 8 * len(key)}})
	}
}

func rsaKey(bits int, exponent int64) func(*content) {
	algorithm := pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}, Parameters: asn1.NullRawValue}
	return publicKey(algorithm, must(asn1.Marshal(struct{ N, E *big.Int }{new(big.Int).SetBit(big.NewInt(1), bits-1, 1), big.NewInt(exponent)})))
}

func TestParseRefusesBeforeItReads(t *testing.T) {
	t.Parallel()
	const keys = "; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"
	curve := func(id ...int) func(*content) {
		return publicKey(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 10045, 2, 1}, Parameters: raw(asn1.ObjectIdentifier(id))}, []byte{4, 1, 1})
	}
	p224 := must(ecdsa.GenerateKey(elliptic.P224(), rand.Reader))
	other := generalName(0, true, must(asn1.Marshal("text")))
	fourTexts := pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: must(asn1.Marshal([]string{"a", "b", "c", "d"}))}
	fourNames := pkix.Extension{Id: oidSAN, Value: must(asn1.Marshal(slices.Repeat([]asn1.RawValue{other}, 4)))}

	for name, test := range map[string]struct {
		limits  csr.Limits
		change  func(*content)
		reason  string // "" means that the request is read
		message string
	}{
		"256 subject attributes":      {change: organizationalUnits(256)},
		"257 subject attributes":      {change: organizationalUnits(257), reason: "RequestTooLarge", message: "the subject has more than 256 attributes (requestLimits.maxSubjectAttributes)"},
		"257 attributes in one RDN":   {change: inOneRDN(257), reason: "RequestTooLarge", message: "the subject has more than 256 attributes (requestLimits.maxSubjectAttributes)"},
		"257 empty RDNs":              {change: func(said *content) { said.Subject = raw(make(pkix.RDNSequence, 257)) }, reason: "RequestTooLarge", message: "the subject has more than 256 attributes (requestLimits.maxSubjectAttributes)"},
		"more than 10 are configured": {limits: csr.Limits{SubjectAttributes: 10}, change: organizationalUnits(11), reason: "RequestTooLarge", message: "the subject has more than 10 attributes (requestLimits.maxSubjectAttributes)"},
		"1000 names":                  {change: dnsNamesOf(1000)},
		"1001 names":                  {change: dnsNamesOf(1001), reason: "RequestTooLarge", message: "the request asks for more than 1000 names and addresses (requestLimits.maxNames)"},
		"1001 names of another kind":  {change: names(slices.Repeat([]asn1.RawValue{other}, 1001)...), reason: "RequestTooLarge", message: "the request asks for more than 1000 names and addresses (requestLimits.maxNames)"},
		"names of two attributes":     {limits: csr.Limits{Names: 3}, change: func(said *content) { dnsNamesOf(2)(said); dnsNamesOf(2)(said) }, reason: "RequestTooLarge", message: "the request asks for more than 3 names and addresses (requestLimits.maxNames)"},
		"texts of another extension":  {limits: csr.Limits{Names: 3}, change: extensions(fourTexts)},
		"names after an extension":    {limits: csr.Limits{Names: 3}, change: extensions(fourTexts, fourNames), reason: "RequestTooLarge", message: "the request asks for more than 3 names and addresses (requestLimits.maxNames)"},
		"lists of another attribute": {limits: csr.Limits{Extensions: 3}, change: func(said *content) {
			lists := raw([]asn1.RawValue{raw(slices.Repeat([]pkix.Extension{fourTexts}, 4))}, "set")
			said.Attributes = append(said.Attributes, attribute(oidChallenge, lists))
		}},
		"99 extensions":               {change: unknownExtensions(99)},
		"100 extensions":              {change: unknownExtensions(100), reason: "RequestTooLarge", message: "the request holds more than 100 attributes and extensions (requestLimits.maxExtensions)"},
		"101 attributes":              {change: unknownAttributes(101), reason: "RequestTooLarge", message: "the request holds more than 100 attributes and extensions (requestLimits.maxExtensions)"},
		"more DER than is configured": {limits: csr.Limits{DERBytes: 100}, change: func(*content) {}, reason: "RequestTooLarge", message: "the PKCS#10 request in spec.request has more than 100 bytes of DER (requestLimits.maxDERBytes)"},
		"more bytes than configured":  {limits: csr.Limits{RequestBytes: 100}, change: func(*content) {}, reason: "RequestTooLarge", message: "spec.request has more than 100 bytes (requestLimits.maxRequestBytes)"},
		"more than 64 KiB of DER":     {change: subject(pkix.AttributeTypeAndValue{Type: oidCommonName, Value: strings.Repeat("x", 65<<10)}), reason: "RequestTooLarge", message: "the PKCS#10 request in spec.request has more than 65536 bytes of DER (requestLimits.maxDERBytes)"},
		"RSA of 8192 bits":            {change: rsaKey(8192, 65537)},
		"RSA of 8193 bits":            {change: rsaKey(8193, 65537), reason: "KeyNotPermitted", message: "RSA keys of 8193 bits are not permitted" + keys},
		"RSA of 65536 bits":           {change: rsaKey(65536, 65537), reason: "KeyNotPermitted", message: "RSA keys of 65536 bits are not permitted" + keys},
		"RSA of 1024 bits is read":    {change: rsaKey(1024, 65537)}, // the signer's profile refuses it
		"RSA with the exponent 1":     {change: rsaKey(2048, 1), reason: "KeyNotPermitted", message: "RSA keys with the public exponent 1 are not permitted" + keys},
		"P-224": {change: func(said *content) {
			said.PublicKey = asn1.RawValue{FullBytes: must(x509.MarshalPKIXPublicKey(p224.Public()))}
		}, reason: "KeyNotPermitted", message: "ECDSA keys on the curve P-224 are not permitted" + keys},
		"secp256k1":                     {change: curve(1, 3, 132, 0, 10), reason: "KeyNotPermitted", message: "the public key can't be read: x509: unsupported elliptic curve" + keys},
		"ML-DSA-65":                     {change: publicKey(pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 18}}, make([]byte, 1952)), reason: "KeyNotPermitted", message: "the public key can't be read: x509: unknown public key algorithm" + keys},
		"too large goes before the key": {change: func(said *content) { organizationalUnits(257)(said); rsaKey(65536, 3)(said) }, reason: "RequestTooLarge", message: "the subject has more than 256 attributes (requestLimits.maxSubjectAttributes)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req, err := test.limits.Parse(object(t, withRequest(derOf(t, test.change))))
			if test.reason == "" {
				if err != nil || req == nil {
					t.Fatalf("not read: %v", err)
				}
				return
			}
			var refused *csr.Refused
			if !errors.As(err, &refused) {
				t.Fatalf("error %v, want one that is final", err)
			}
			if diff := cmp.Diff(&csr.Refused{Reason: test.reason, Message: test.message}, refused); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// crypto/x509 never gets a refused request, so its behaviour for oversize input does not matter.
//
//nolint:paralleltest // it replaces the parser of the whole package
func TestParserRunsOnlyWithinTheLimits(t *testing.T) {
	ran := 0
	defer csr.ReplaceParser(func(der []byte) (*x509.CertificateRequest, error) {
		ran++
		return x509.ParseCertificateRequest(der)
	})()
	for _, change := range []func(*content){organizationalUnits(257), dnsNamesOf(1001), rsaKey(8193, 65537)} {
		if _, err := csr.Parse(object(t, withRequest(derOf(t, change)))); err == nil || ran > 0 {
			t.Errorf("the parser ran %d times, error %v", ran, err)
		}
	}
	if _, err := csr.Parse(object(t)); err != nil || ran != 1 {
		t.Errorf("a request within the limits: the parser ran %d times, error %v", ran, err)
	}
}

// Informers call the parser in goroutines that do not recover, where a panic would end the process.
//
//nolint:paralleltest // it replaces the parser of the whole package
func TestPanicOfTheParserIsAnError(t *testing.T) {
	defer csr.ReplaceParser(func([]byte) (*x509.CertificateRequest, error) { panic("index out of range") })()
	req, err := csr.Parse(object(t))
	var refused *csr.Refused
	if req != nil || errorText(err) != "read spec.request of csr-1: panic: index out of range" || errors.As(err, &refused) {
		t.Errorf("request %v, error %v: want an error that is not final", req, err)
	}
}

// Anything that fits into an object is refused, or read and rendered, quickly.
func TestCostlyRequestsAreCheap(t *testing.T) {
	t.Parallel()
	huge := nodeRequest()
	for i := range 4000 {
		huge.IPAddresses = append(huge.IPAddresses, net.IPv4(10, 0, byte(i>>8), byte(i)))
	}
	for name, data := range map[string][]byte{
		"60,000 organizational units": derOf(t, organizationalUnits(60_000)),
		"256 long units":              derOf(t, subject(slices.Repeat([]pkix.AttributeTypeAndValue{{Type: asn1.ObjectIdentifier{2, 5, 4, 11}, Value: strings.Repeat("\\", 200)}}, 256)...)),
		"4,000 addresses":             der(t, huge),
		"RSA of 500,000 bits":         derOf(t, rsaKey(500_000, 65537)),
	} {
		obj := object(t, withRequest(data))
		began := time.Now()
		for range 10 {
			if req, err := csr.Parse(obj); err == nil {
				_ = req.SubjectText()
			}
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("%s: ten looks take %s", name, took)
		}
	}
}

// A key that makes verification slow is refused before its signature is verified.
func TestOversizeKeysAreNotVerified(t *testing.T) {
	t.Parallel()
	key := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 65_535, 1), E: 65537}
	_, err := csr.Parse(object(t, withRequest(derOf(t, rsaKey(key.N.BitLen(), int64(key.E))))))
	if want := fmt.Sprintf("RSA keys of %d bits are not permitted", key.N.BitLen()); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v", err)
	}
}

// TestLimitsAreInclusive checks a request that is exactly as large as a limit, and one byte more.
func TestLimitsAreInclusive(t *testing.T) {
	t.Parallel()
	der := der(t, nodeRequest())
	pem := block("CERTIFICATE REQUEST", der)
	for name, test := range map[string]struct {
		limits csr.Limits
		ok     bool
	}{
		"as many bytes":        {csr.Limits{RequestBytes: len(pem)}, true},
		"one byte more":        {csr.Limits{RequestBytes: len(pem) - 1}, false},
		"as many bytes of DER": {csr.Limits{DERBytes: len(der)}, true},
		"one byte more of DER": {csr.Limits{DERBytes: len(der) - 1}, false},
	} {
		if _, err := test.limits.Parse(object(t, withRequest(der))); (err == nil) != test.ok {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestTrailingDataIsMalformed checks that trailing data is found before anything of the request is counted.
func TestTrailingDataIsMalformed(t *testing.T) {
	t.Parallel()
	_, err := csr.Limits{SubjectAttributes: 1}.Parse(object(t, withRequest(append(der(t, nodeRequest()), 0))))
	var refused *csr.Refused
	if !errors.As(err, &refused) || refused.Reason != "Malformed" {
		t.Errorf("error %v, want Malformed", err)
	}
}
