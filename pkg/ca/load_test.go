package ca_test

import (
	"bytes"
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// TestLoadChoosesTheSigningCertificate checks which certificate of a file signs, and why none can.
func TestLoadChoosesTheSigningCertificate(t *testing.T) {
	good := root("good", "P-256").pem
	with := func(change func(*x509.Certificate)) []byte { return root("changed", "P-256", change).pem }
	parts := map[string][]byte{
		"good": good, "foreign": root("foreign", "P-384").pem, "key": pkcs8(keys["P-256"]()), "crl": block("X509 CRL", []byte("crl")),
		"longer":         with(func(c *x509.Certificate) { c.NotAfter = c.NotAfter.AddDate(1, 0, 0) }),
		"expired":        with(func(c *x509.Certificate) { c.NotAfter = now.AddDate(0, 0, -1) }),
		"no-CA":          with(func(c *x509.Certificate) { c.IsCA = false }),
		"no-constraints": with(func(c *x509.Certificate) { c.IsCA, c.BasicConstraintsValid = false, false }),
		"no-cert-sign":   with(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }),
		"no-key-usage":   with(func(c *x509.Certificate) { c.KeyUsage = 0 }),
		"extension": with(func(c *x509.Certificate) {
			c.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}}
		}),
		"broken": block("CERTIFICATE", []byte("no DER")), "text": []byte("subject=CA\n"), "garbage": []byte("\x00garbage"),
		"CRLF": bytes.ReplaceAll(good, []byte("\n"), []byte("\r\n")),
	}
	const notCA = `certificate "CN=changed" is not a CA (basic constraints CA:TRUE missing, RFC 5280 section 4.2.1.9)`
	for file, want := range map[string]string{ // the parts of the file, and the part that signs or the error
		"good":         "good",
		"foreign good": "good",
		"longer good":  "longer", // two that fit: the later expiry
		"good longer":  "longer",
		"no-CA good":   "good",
		"expired":      "expired", // it is still named
		"no-key-usage": "no-key-usage",
		"CRLF":         "good",
		"crl key good": "good",

		"":                "no PEM block of type CERTIFICATE found",
		"broken":          "parse certificate 1: x509: malformed certificate",
		"good crl broken": "parse certificate 2: x509: malformed certificate",
		"foreign":         "the private key does not match any of the 1 certificate(s)",
		"no-CA":           notCA,
		"no-constraints":  notCA,
		"extension":       `certificate "CN=changed" has critical extensions that verifiers do not know: [1.2.3] (RFC 5280 section 4.2)`,
		"no-cert-sign":    `certificate "CN=changed" may not sign certificates (key usage keyCertSign missing, RFC 5280 section 4.2.1.3)`,
	} {
		var data []byte
		for _, part := range strings.Fields(file) {
			data = append(data, parts[part]...)
		}
		loaded, err := ca.Load(data, parts["key"], nil)
		signs, wanted := parts[want]
		if wanted != (err == nil) || !wanted && fmt.Sprint(err) != want || wanted && !bytes.Equal(loaded.CertificatePEM(), signs) {
			t.Errorf("%s: error %v, want %s", file, err, want)
		}
	}
}

// TestLoadReadsEveryKindOfKey checks the encodings of keys. TestIssueWithEveryKindOfKey reads every kind from PKCS#8.
func TestLoadReadsEveryKindOfKey(t *testing.T) {
	pkcs1 := block("RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(keys["RSA-2048"]().(*rsa.PrivateKey)))
	sec1 := block("EC PRIVATE KEY", must(x509.MarshalECPrivateKey(keys["P-256"]().(*ecdsa.PrivateKey))))
	parameters := block("EC PARAMETERS", []byte{6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7})
	//nolint:staticcheck // the format is obsolete, and people still have such files
	dekInfo := must(x509.EncryptPEMBlock(rand.Reader, "RSA PRIVATE KEY", []byte("secret"), []byte("passphrase"), x509.PEMCipherAES256))
	x25519 := block("PRIVATE KEY", must(x509.MarshalPKCS8PrivateKey(must(ecdh.X25519().GenerateKey(rand.Reader)))))
	seedKind, seedError := "ML-DSA-44", ""
	if noMLDSA {
		seedKind, seedError = "P-256", "the private key can't be read: "+unavailable
	}
	const (
		seedAlone = "the private key can't be read: of an ML-DSA key, crypto/x509 reads the seed alone: convert it with " +
			`"openssl pkey -provparam ml-dsa.output_formats=seed-only", or make another key if it holds no seed`
		none      = "no private key found: want a PEM block of type PRIVATE KEY, RSA PRIVATE KEY or EC PRIVATE KEY"
		encrypted = "the private key is encrypted: store it without a passphrase"
		holdsNone = " holds no private key in PKCS#1, PKCS#8 or SEC 1"
	)
	for name, test := range map[string]struct {
		kind string // of the certificate
		key  []byte
		err  string // empty means that the key is read
	}{
		"RSA in PKCS#1":                 {"RSA-2048", pkcs1, ""},
		"ECDSA in SEC 1":                {"P-256", sec1, ""},
		"after EC PARAMETERS":           {"P-256", append(parameters, sec1...), ""},
		"SEC 1 under PKCS#1":            {"P-256", bytes.ReplaceAll(sec1, []byte("EC PRIVATE"), []byte("RSA PRIVATE")), ""},
		"empty":                         {"P-256", nil, none},
		"encrypted PKCS#8":              {"P-256", block("ENCRYPTED PRIVATE KEY", []byte("secret")), encrypted},
		"encrypted PKCS#1":              {"P-256", pem.EncodeToMemory(dekInfo), encrypted},
		"broken PKCS#8":                 {"P-256", block("PRIVATE KEY", []byte("secret")), "PEM block of type PRIVATE KEY" + holdsNone},
		"another type, OpenSSH's":       {"P-256", block("OPENSSH PRIVATE KEY", []byte("secret")), "PEM block of type OPENSSH PRIVATE KEY" + holdsNone},
		"the seed of an ML-DSA key":     {seedKind, mldsaKey([]byte{0x80, 32}, make([]byte, 32)), seedError},
		"seed and key, OpenSSL's form":  {"P-256", mldsaKey([]byte{0x30, 38, 4, 32}, make([]byte, 32), []byte{4, 2, 0, 0}), seedAlone},
		"an ML-DSA key without seed":    {"P-256", mldsaKey([]byte{4, 2, 0, 0}), seedAlone},
		"an ML-DSA key without any tag": {"P-256", mldsaKey(make([]byte, 32)), seedAlone},
		"a key that cannot sign":        {"P-256", x25519, "a private key of type *ecdh.PrivateKey cannot sign"},
	} {
		_, err := ca.Load(root("CA", test.kind).pem, test.key, nil)
		expect.Error(t, name, err, test.err)
	}
}

// mldsaKey returns an ML-DSA-44 key in PKCS#8 that holds content (RFC 9881 section 6).
func mldsaKey(content ...[]byte) []byte {
	return block("PRIVATE KEY", must(asn1.Marshal(struct {
		Version   int
		Algorithm pkix.AlgorithmIdentifier
		Content   []byte
	}{0, pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 17}}, slices.Concat(content...)})))
}

// TestLoadNeverTellsTheKey checks that no error about a key file contains a part of its bytes, encoded or not.
func TestLoadNeverTellsTheKey(t *testing.T) {
	seed, _ := pem.Decode(mldsaKey([]byte{0x80, 32}, bytes.Repeat([]byte("seed"), 8)))
	for _, der := range [][]byte{must(x509.MarshalPKCS8PrivateKey(keys["P-256"]())), seed.Bytes} {
		checkNeverTold(t, der)
	}
}

func checkNeverTold(t *testing.T, der []byte) {
	t.Helper()
	good := root("CA", "P-384").pem
	for length := 1; length <= len(der); length++ {
		for _, kind := range []string{"PRIVATE KEY", "EC PRIVATE KEY", "RSA PRIVATE KEY", "ENCRYPTED PRIVATE KEY"} {
			_, err := ca.Load(good, block(kind, der[:length]), nil)
			if err == nil {
				t.Fatalf("%d bytes under %s were accepted", length, kind)
			}
			for start := 0; start+6 <= length; start += 3 {
				run := der[start : start+6]
				if text := err.Error(); strings.Contains(text, string(run)) || strings.Contains(text, base64.StdEncoding.EncodeToString(run)) {
					t.Fatalf("error %q tells bytes %d to %d of the key", text, start, start+6)
				}
			}
		}
	}
}

// TestMLDSAChains checks CAs with ML-DSA keys below and above others, and that the key must be that of the certificate.
func TestMLDSAChains(t *testing.T) {
	for _, kind := range withMLDSA() {
		different := map[bool]string{true: "ML-DSA-65", false: "ML-DSA-44"}[kind == "ML-DSA-44"]
		for _, other := range []string{"P-256", different} {
			for _, pair := range [][2]string{{kind, other}, {other, kind}} {
				top := root("root", pair[0])
				lower := top.below("lower", pair[1])
				loaded := must(must(lower.load(nil, top.pem)).WithChain(ca.WithRoot))
				chain := parse(t, issue(loaded).PEM)
				expect.Equal(t, fmt.Sprint(pair, ": certificates"), len(chain), 3)
				expect.NoError(t, verify(chain[0], chain[2:], chain[1:2]))
				expect.True(t, loaded.Signed(chain[0]) && !must(top.load()).Signed(chain[0]), "%s: signed by another key", pair)
			}
		}
		_, err := ca.Load(root("CA", kind).pem, pkcs8(keys[different]()), nil)
		expect.Error(t, kind, err, "the private key does not match any of the 1 certificate(s)")
	}
}

// TestMLDSACertificateBesideTheCA checks a certificate with an ML-DSA key beside a CA of P-256. A program without ML-DSA reads it too.
func TestMLDSACertificateBesideTheCA(t *testing.T) {
	var cert struct {
		TBS struct {
			Version                                      int `asn1:"explicit,tag:0"`
			Serial, Algorithm, Issuer, Validity, Subject asn1.RawValue
			Key                                          struct {
				Algorithm pkix.AlgorithmIdentifier
				Key       asn1.BitString
			}
			Extensions asn1.RawValue `asn1:"explicit,tag:3"`
		}
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}
	ours := root("CA", "P-256")
	_ = must(asn1.Unmarshal(parse(t, root("other", "P-384").pem)[0].Raw, &cert))
	cert.TBS.Key.Algorithm = pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 3, 17}}
	cert.TBS.Key.Key = asn1.BitString{Bytes: make([]byte, mldsa.MLDSA44PublicKeySize), BitLength: 8 * mldsa.MLDSA44PublicKeySize}
	made := block("CERTIFICATE", must(asn1.Marshal(cert)))
	expect.Equal(t, "unread", must(ours.load(made)).Unread(), false)
	expect.Equal(t, "its key is known", must(ca.ParseCertificates(made))[0].PublicKey != nil, !noMLDSA)
}

// TestIdentityIsTheKey checks that the key decides which CA has signed, whatever the name, and that the certificate does not change
// the key ID.
func TestIdentityIsTheKey(t *testing.T) {
	one, renewed, other := authority("P-256"), must(root("renewed", "P-256").load()), authority("P-384")
	if one.KeyID() != renewed.KeyID() || one.KeyID() == other.KeyID() || len(one.KeyID()) != 16 {
		t.Errorf("key IDs %s, renewed %s, of another key %s", one.KeyID(), renewed.KeyID(), other.KeyID())
	}
	if cert := parse(t, issue(one).PEM)[0]; !one.Signed(cert) || other.Signed(cert) {
		t.Errorf("signed by its issuer: %t, by another of that name: %t", one.Signed(cert), other.Signed(cert))
	}
}

// TestChain checks which certificates follow a leaf, and that a verifier accepts them. It trusts ca.crt, or else the CA.
func TestChain(t *testing.T) {
	pathLen := func(limit int) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = limit, limit == 0 }
	}
	top, otherRoot := root("root", "P-256"), root("otherRoot", "Ed25519")
	upper := top.below("upper", "P-384", pathLen(1))
	links := map[string]*link{
		"root": top, "otherRoot": otherRoot, "upper": upper, "lower": upper.below("lower", "P-521", pathLen(0)),
		"tooDeep":    top.below("upper", "P-384", pathLen(0)),
		"impostor":   root("upper", "Ed25519"),
		"notCA":      top.below("upper", "P-384", func(c *x509.Certificate) { c.IsCA = false }),
		"notSigning": top.below("upper", "P-384", func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature }),
		"crossed":    otherRoot.below("upper", "P-384"),
		"crossRoot":  otherRoot.below("root", "P-256"),
		"rekeyed":    root("root", "P-256", func(c *x509.Certificate) { c.NotAfter = c.NotAfter.AddDate(1, 0, 0) }),
		"narrow":     root("root", "P-256", pathLen(1)),
		"namesake":   root("root", "Ed25519"),
		"successor":  top.below("root", "Ed25519"), // of the same name, and signed by root
	}
	pems := func(names string) (all []byte) {
		for _, name := range strings.Fields(names) {
			all = append(all, links[name].pem...)
		}
		return all
	}
	const (
		noChain = `no chain leads from "CN=lower" to its root: x509: `
		missing = `no chain leads from "CN=lower" to a certificate of ca.crt: the issuer "CN=upper" of "CN=lower" is missing`
		foreign = `no chain leads from "CN=root" to a certificate of ca.crt: x509: certificate signed by unknown authority (possibly because of ` +
			`"x509: signature algorithm specifies an ECDSA public key, but have public key of type ed25519.PublicKey" ` +
			`while trying to verify candidate authority certificate "root")`
		cannotSign = noChain + `certificate signed by unknown authority (possibly because of ` +
			`"x509: invalid signature: parent certificate cannot sign this kind of certificate" ` +
			`while trying to verify candidate authority certificate "upper")`
		tooLong = noChain + "too many intermediates for path length constraint"
	)
	for name, test := range map[string]struct {
		signing string
		more    string // beside it in tls.crt
		anchors string // ca.crt
		mode    ca.Chain
		want    string // the chain, or an error
	}{
		"a root":                                  {"root", "", "", "", ""},
		"a root, with it":                         {"root", "", "", ca.WithRoot, "root"},
		"a root that was reissued for its key":    {"root", "", "rekeyed", "", ""},
		"a root with the name of one in ca.crt":   {"root", "", "namesake", "", foreign},
		"below a root of the same name":           {"successor", "root", "", ca.WithRoot, "root root"},
		"an intermediate alone":                   {"lower", "", "", "", "lower"},
		"all of it in tls.crt, in any order":      {"lower", "root otherRoot upper", "", "", "lower upper"},
		"root in ca.crt, with root":               {"lower", "upper", "root", ca.WithRoot, "lower upper root"},
		"an intermediate is the anchor":           {"lower", "", "upper", "", "lower upper"},
		"a link is missing":                       {"lower", "", "root", "", missing},
		"another ca.crt":                          {"lower", "", "otherRoot", "", missing},
		"two issuers, the way to ca.crt is taken": {"lower", "upper crossed", "otherRoot", "", "lower upper"},
		"the shortest of two ways":                {"lower", "upper crossRoot root otherRoot", "", ca.WithRoot, "lower upper root"},
		"of the same name, beside the right one":  {"lower", "impostor upper root", "", "", "lower upper"},
		"the issuer is no CA":                     {"lower", "notCA root", "", "", cannotSign},
		"an unknown mode":                         {"root", "", "", "All", `unknown chain "All"`},
		"an intermediate alone, with root": {"lower", "", "", ca.WithRoot,
			`the chain must end with its root, but ends with "CN=lower": add the certificate of its issuer "CN=upper"`},
		"the root permits one CA below":  {"lower", "upper narrow", "", "", tooLong},
		"the issuer permits no CA below": {"lower", "tooDeep root", "", "", tooLong},
	} {
		loaded, err := ca.Load(append(pems(test.more), pems(test.signing)...), pkcs8(links[test.signing].key), pems(test.anchors))
		if err == nil {
			loaded, err = loaded.WithChain(test.mode)
		}
		got := fmt.Sprint(err)
		if err == nil {
			var names []string
			issued := issue(loaded)
			certs := parse(t, issued.PEM)
			for _, cert := range certs[1:] {
				names = append(names, cert.Subject.CommonName)
			}
			roots := must(ca.ParseCertificates(pems(test.anchors)))
			if len(roots) == 0 {
				roots = append(roots, loaded.Certificate())
			}
			expect.Error(t, name+": a verifier of the leaf with its chain", verify(certs[0], roots, certs[1:]), "")
			if got = strings.Join(names, " "); !bytes.HasSuffix(issued.PEM, loaded.AppendedPEM(now)) {
				t.Errorf("%s: AppendedPEM is not what is appended", name)
			}
		}
		expect.Equal(t, name+": the chain after the leaf, or error", got, test.want)
	}
}

// TestChainEnds checks that no certificate outlives any certificate of its chain, and that the expired one is named.
func TestChainEnds(t *testing.T) {
	type period struct{ start, end time.Duration }
	from := func(p period) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(p.start), now.Add(p.end) }
	}
	const expired = `the signing certificate has expired: its issuer `
	for name, test := range map[string]struct {
		root, upper, lower period
		cut                time.Duration // from the lifetime of a day
		err                string
	}{
		"the signing one first": {period{-day, 3 * day}, period{-day, 2 * day}, period{-day, 5 * time.Hour}, 19*time.Hour - 5*time.Minute, ""},
		"the root first":        {period{-day, 3 * time.Hour}, period{-day, 4 * time.Hour}, period{-day, day}, 21*time.Hour - 5*time.Minute, ""},
		"an issuer has ended":   {period{-day, day}, period{-day, 0}, period{-day, day}, 0, expired + `"CN=upper" expired at 2026-03-01T12:00:00Z`},
		"an issuer not valid yet": {period{-day, day}, period{time.Hour, day}, period{-day, day}, 0,
			`the signing certificate "CN=upper" is not valid before 2026-03-01T13:00:00Z`},
	} {
		top := root("root", "P-256", from(test.root))
		upper := top.below("upper", "P-384", from(test.upper))
		loaded := must(upper.below("lower", "P-521", from(test.lower)).load(upper.pem, top.pem))
		issued, err := loaded.Issue(profile(ca.ProfileConfig{Lifetime: day}), request(), now)
		expect.Error(t, name, err, test.err)
		expect.Equal(t, name+": has expired", errors.Is(err, ca.ErrExpired), strings.HasPrefix(test.err, expired))
		if err == nil && (issued.Cut != test.cut || issued.NotAfter.After(loaded.NotAfter(now))) {
			t.Errorf("%s: cut by %s, want %s", name, issued.Cut, test.cut)
		}
	}
}

// pieces are parts of Secrets and CA files. A recipe selects and changes them, so that no corpus holds a key.
type pieces struct {
	parts   [][]byte
	secrets []string // base64 lines of the keys
}

func newPieces() *pieces {
	top := root("root", "P-384")
	middle := top.below("middle", "Ed25519")
	signing := middle.below("signing", "P-256")
	leaf := top.below("leaf", "leaf", func(c *x509.Certificate) { c.IsCA = false })
	later := top.below("signing", "P-256", func(c *x509.Certificate) { c.NotAfter = c.NotAfter.Add(time.Hour) })
	impostor := root("middle", "P-521")
	sec1 := must(x509.MarshalECPrivateKey(keys["P-256"]().(*ecdsa.PrivateKey)))
	p := &pieces{parts: [][]byte{
		signing.pem, pkcs8(keys["P-256"]()), middle.pem, top.pem, leaf.pem, later.pem, impostor.pem,
		block("EC PRIVATE KEY", sec1), pkcs8(keys["leaf"]()), pkcs8(keys["P-384"]()),
		block("CERTIFICATE", []byte("garbage")), block("EC PARAMETERS", []byte{6, 1, 1}), []byte("# text\n"), nil,
	}}
	for _, part := range p.parts {
		if bytes.Contains(part, []byte("PRIVATE KEY")) {
			for line := range strings.Lines(string(part)) {
				if !strings.HasPrefix(line, "-----") && len(line) > 32 {
					p.secrets = append(p.secrets, strings.TrimSpace(line))
				}
			}
		}
	}
	return p
}

// cook returns the concatenation of the pieces that recipe selects, two bytes for each: a piece, and a change.
func (p *pieces) cook(recipe []byte) []byte {
	var all []byte
	for ; len(recipe) > 1; recipe = recipe[2:] {
		part := slices.Clone(p.parts[int(recipe[0])%len(p.parts)])
		change := int(recipe[1])
		switch at := change / 8 * len(part) / 32; change % 8 {
		case 1: // cut
			part = part[:at]
		case 2: // flip
			if len(part) > 0 {
				part[at] ^= 1
			}
		case 3:
			part = bytes.ReplaceAll(part, []byte("\n"), []byte("\r\n"))
		case 4:
			part = bytes.ReplaceAll(part, []byte("EC PRIVATE KEY"), []byte("RSA PRIVATE KEY"))
		case 5:
			part = bytes.Replace(part, []byte("-----\n"), []byte("-----\nDEK-Info: a\n\n"), 1)
		case 6:
			part = bytes.ReplaceAll(part, []byte("CERTIFICATE"), []byte("TRUSTED CERTIFICATE"))
		}
		all = append(all, part...)
	}
	return all
}

// FuzzLoad checks that a loaded CA is one with which a strict verifier accepts what it issues, and that no error shows
// a line of the key.
func FuzzLoad(f *testing.F) {
	for _, seed := range [][3][]byte{
		{{0, 0}, {1, 0}, nil}, {{0, 0, 2, 0, 3, 0}, {1, 0}, {3, 0}}, {{2, 0, 0, 0}, {11, 0, 7, 0}, {3, 0, 6, 0}}, {{3, 0}, {9, 0}, {3, 0}},
		{{5, 0, 0, 0}, {7, 4}, nil}, {{4, 0}, {8, 0}, nil}, {{0, 0, 6, 0}, {1, 0}, nil}, {{0, 0}, {1, 0}, {6, 0}}, {{0, 3, 12, 0}, {12, 0, 1, 3}, {10, 0}},
		{{0, 6}, {1, 5}, nil}, {{0, 65}, {1, 66}, nil},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	p := newPieces()
	f.Fuzz(func(t *testing.T, certs, key, anchors []byte) {
		if len(certs)+len(key)+len(anchors) > 64 {
			return // a chain of more certificates says nothing new, and takes long
		}
		certPEM, keyPEM, caPEM := p.cook(certs), p.cook(key), p.cook(anchors)
		loaded, err := ca.Load(certPEM, keyPEM, caPEM)
		if (loaded == nil) == (err == nil) {
			t.Fatalf("loaded %v, error %v", loaded, err)
		}
		if err != nil {
			for _, secret := range p.secrets {
				if strings.Contains(err.Error(), secret[:16]) {
					t.Error("the error shows the key")
				}
			}
			return
		}
		if loaded.Usable(now) != nil {
			return // a flipped bit of its validity
		}
		checkLoaded(t, loaded, certPEM, caPEM)
	})
}

// checkLoaded checks that one of certPEM and caPEM holds the signing certificate and each appended certificate, and that no
// self-signed certificate is appended. A verifier accepts a leaf with its chain, if it trusts the CA, and if it trusts only caPEM. An
// anchor is a name and a key (RFC 5280 section 6.1.1), so a certificate with the name and the key of an anchor is trusted too.
func checkLoaded(t *testing.T, loaded *ca.Authority, certPEM, caPEM []byte) {
	t.Helper()
	signing := loaded.Certificate()
	if !signing.IsCA || signing.KeyUsage != 0 && signing.KeyUsage&x509.KeyUsageCertSign == 0 {
		t.Errorf("%q may not sign certificates", signing.Subject)
	}
	known := map[string]bool{}
	for _, data := range [][]byte{certPEM, caPEM} { // each on its own: the end of one may spoil the beginning of the next
		for first, rest := pem.Decode(data); first != nil; first, rest = pem.Decode(rest) {
			known[string(first.Bytes)] = true
		}
	}
	anchors, err := ca.ParseCertificates(caPEM)
	if err != nil {
		anchors = nil
	}
	chain := must(ca.ParseCertificates(issue(loaded).PEM))
	between, anchored := append(chain[1:len(chain):len(chain)], signing), anchors
	for _, cert := range between {
		// One with its own name as the issuer may be signed by an older key of that name (RFC 4210 section 4.4).
		own := cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) == nil
		if cert != signing && own && bytes.Equal(cert.RawSubject, cert.RawIssuer) || !known[string(cert.Raw)] {
			t.Errorf("the chain holds %q, which is self-signed or was not given", cert.Subject)
		}
		if slices.ContainsFunc(anchors, func(anchor *x509.Certificate) bool {
			return bytes.Equal(anchor.RawSubject, cert.RawSubject) && bytes.Equal(anchor.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo)
		}) {
			anchored = append(anchored, cert)
		}
	}
	expect.Error(t, "a verifier of the leaf", verify(chain[0], []*x509.Certificate{signing}, between), "")
	if err := verify(chain[0], anchored, between); err != nil && len(anchors) > 0 {
		t.Errorf("the chain does not end in ca.crt: %v", err)
	}
}
