package ca_test

import (
	"bytes"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

// link is a CA in a chain.
type link struct {
	template *x509.Certificate
	key      crypto.Signer
	pem      []byte
}

// below makes a CA called name whose issuer is l. If l is nil, it makes a root.
func (l *link) below(t testing.TB, name, kind string, change ...func(*x509.Certificate)) *link {
	t.Helper()
	made := &link{template: caTemplate(name), key: keys[kind]()}
	for _, each := range change {
		each(made.template)
	}
	issuer := l
	if issuer == nil {
		issuer = made
	}
	der, err := x509.CreateCertificate(rand.Reader, made.template, issuer.template, made.key.Public(), repeatable{issuer.key})
	if err != nil {
		t.Fatal(err)
	}
	made.pem = block("CERTIFICATE", der)
	return made
}

func issue(t testing.TB, by *ca.Authority) *ca.Issued {
	t.Helper()
	issued, err := by.Issue(profile(t, ca.ProfileConfig{Lifetime: 24 * time.Hour}), ca.Request{PublicKey: keys["leaf"]().Public()}, now)
	if err != nil {
		t.Fatal(err)
	}
	return issued
}

// names returns the common names in PEM after the first. It checks that every block is a CERTIFICATE block without
// headers.
func names(t testing.TB, pem []byte) []string {
	t.Helper()
	certs, err := ca.ParseCertificates(pem)
	if err != nil {
		t.Fatal(err)
	}
	var again []byte
	found := []string{}
	for i, cert := range certs {
		again = append(again, block("CERTIFICATE", cert.Raw)...)
		if i > 0 {
			found = append(found, cert.Subject.CommonName)
		}
	}
	if !bytes.Equal(again, pem) {
		t.Errorf("more than blocks of type CERTIFICATE: %q", pem)
	}
	return found
}

func TestChain(t *testing.T) {
	t.Parallel()
	pathLen := func(limit int) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.MaxPathLen, c.MaxPathLenZero = limit, limit == 0 }
	}
	var none *link
	root := none.below(t, "root", "P-256")
	upper := root.below(t, "upper", "P-384", pathLen(1))
	lower := upper.below(t, "lower", "P-521", pathLen(0))
	tooDeep := root.below(t, "upper", "P-384", pathLen(0))
	impostor := none.below(t, "upper", "Ed25519")
	notCA := root.below(t, "upper", "P-384", func(c *x509.Certificate) { c.IsCA = false })
	notSigning := root.below(t, "upper", "P-384", func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageDigitalSignature })
	otherRoot := none.below(t, "other root", "Ed25519")
	crossed := otherRoot.below(t, "upper", "P-384")
	crossRoot := otherRoot.below(t, "root", "P-256")
	rekeyed := none.below(t, "root", "P-256", func(c *x509.Certificate) { c.NotAfter = c.NotAfter.AddDate(1, 0, 0) })
	namesake := none.below(t, "root", "Ed25519")
	successor := root.below(t, "root", "Ed25519") // of the same name, and signed by root
	const notInCA = `the chain does not end in a certificate of ca.crt: the issuer "CN=upper" of "CN=lower" is missing`

	for name, test := range map[string]struct {
		signing *link
		more    []*link // in tls.crt
		anchors []*link // ca.crt
		mode    ca.Chain
		want    []string
		err     string
	}{
		"a root":                                  {signing: root, want: []string{}},
		"a root, none":                            {signing: root, mode: ca.None, want: []string{}},
		"a root, with it":                         {signing: root, mode: ca.WithRoot, want: []string{"root"}},
		"a root in ca.crt":                        {signing: root, anchors: []*link{otherRoot, root}, want: []string{}},
		"a root that was reissued for its key":    {signing: root, anchors: []*link{rekeyed}, want: []string{}},
		"a root that is not in ca.crt":            {signing: root, anchors: []*link{otherRoot}, err: `the chain does not end in a certificate of ca.crt: the issuer "CN=root" of "CN=root" is missing`},
		"a root with the name of one in ca.crt":   {signing: root, anchors: []*link{namesake}, err: `the chain does not end in a certificate of ca.crt: the issuer "CN=root" of "CN=root" is missing`},
		"below a root of the same name":           {signing: successor, more: []*link{root}, mode: ca.WithRoot, want: []string{"root", "root"}},
		"an intermediate alone":                   {signing: lower, want: []string{"lower"}},
		"an intermediate alone, none":             {signing: lower, mode: ca.None, want: []string{}},
		"an intermediate alone, with root":        {signing: lower, mode: ca.WithRoot, err: `the chain must end with its root, but ends with "CN=lower": add the certificate of its issuer "CN=upper"`},
		"all of it in tls.crt, in any order":      {signing: lower, more: []*link{root, otherRoot, upper}, want: []string{"lower", "upper"}},
		"all of it, with root":                    {signing: lower, more: []*link{upper, root}, mode: ca.WithRoot, want: []string{"lower", "upper", "root"}},
		"root in ca.crt":                          {signing: lower, more: []*link{upper}, anchors: []*link{root}, want: []string{"lower", "upper"}},
		"root in ca.crt, with root":               {signing: lower, more: []*link{upper}, anchors: []*link{root}, mode: ca.WithRoot, want: []string{"lower", "upper", "root"}},
		"an intermediate is the anchor":           {signing: lower, anchors: []*link{upper}, want: []string{"lower", "upper"}},
		"a link is missing":                       {signing: lower, anchors: []*link{root}, err: notInCA},
		"another ca.crt":                          {signing: lower, anchors: []*link{otherRoot}, err: notInCA},
		"two issuers, the way to ca.crt is taken": {signing: lower, more: []*link{upper, crossed}, anchors: []*link{otherRoot}, want: []string{"lower", "upper"}},
		"the shortest of two ways":                {signing: lower, more: []*link{upper, crossRoot, root, otherRoot}, mode: ca.WithRoot, want: []string{"lower", "upper", "root"}},
		"of the same name, with another key":      {signing: lower, more: []*link{impostor}, err: `certificate "CN=lower" is not signed by the given "CN=upper": x509: signature algorithm specifies an ECDSA public key, but have public key of type ed25519.PublicKey`},
		"of the same name, beside the right one":  {signing: lower, more: []*link{impostor, upper, root}, want: []string{"lower", "upper"}},
		"the issuer is no CA":                     {signing: lower, more: []*link{notCA, root}, err: `certificate "CN=lower" is not signed by the given "CN=upper": x509: invalid signature: parent certificate cannot sign this kind of certificate`},
		"the issuer may not sign certificates":    {signing: lower, more: []*link{notSigning, root}, err: `certificate "CN=lower" is not signed by the given "CN=upper": x509: invalid signature: parent certificate cannot sign this kind of certificate`},
		"the issuer permits no CA below":          {signing: lower, more: []*link{tooDeep, root}, err: `certificate "CN=upper" permits 0 certificates between itself and a leaf, and there are 1 (path length, RFC 5280 section 4.2.1.9)`},
		"an unknown mode":                         {signing: root, mode: "All", err: `unknown chain "All"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var certPEM, caPEM []byte
			for _, one := range slices.Concat(test.more, []*link{test.signing}) {
				certPEM = append(certPEM, one.pem...)
			}
			for _, one := range test.anchors {
				caPEM = append(caPEM, one.pem...)
			}
			loaded, err := ca.Load(certPEM, pkcs8(t, test.signing.key), caPEM)
			if err == nil {
				loaded, err = loaded.WithChain(test.mode)
			}
			if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if err != nil {
				return
			}
			issued := issue(t, loaded)
			if diff := cmp.Diff(test.want, names(t, issued.PEM)); diff != "" {
				t.Errorf("after the leaf (-want +got):\n%s", diff)
			}
			if !bytes.HasSuffix(issued.PEM, loaded.AppendedPEM()) {
				t.Error("AppendedPEM is not what is appended")
			}
		})
	}
}

// TestChainVerifies verifies issued certificates like a TLS server that knows only the root.
func TestChainVerifies(t *testing.T) {
	t.Parallel()
	var none *link
	root := none.below(t, "root", "RSA-2048")
	upper := root.below(t, "upper", "P-384")
	lower := upper.below(t, "lower", "Ed25519")
	loaded, err := ca.Load(slices.Concat(lower.pem, upper.pem), pkcs8(t, lower.key), root.pem)
	if err != nil {
		t.Fatal(err)
	}
	certs, err := ca.ParseCertificates(issue(t, loaded).PEM)
	if err != nil || len(certs) != 3 {
		t.Fatalf("%d certificates, error %v", len(certs), err)
	}
	options := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	options.Roots.AppendCertsFromPEM(root.pem)
	if _, err := certs[0].Verify(options); err == nil {
		t.Error("the leaf alone verifies")
	}
	for _, one := range certs[1:] {
		options.Intermediates.AddCert(one)
	}
	if _, err := certs[0].Verify(options); err != nil {
		t.Error(err)
	}
}

// TestChainEnds checks that no certificate outlives any certificate of its chain, and that the expired one is named.
func TestChainEnds(t *testing.T) {
	t.Parallel()
	var none *link
	from := func(start, end time.Duration) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.NotBefore, c.NotAfter = now.Add(start), now.Add(end) }
	}
	const day = 24 * time.Hour
	for name, test := range map[string]struct {
		root, upper, lower func(*x509.Certificate)
		cut                time.Duration // from the lifetime of a day
		err                string
		expired            bool
	}{
		"the signing one first":   {root: from(-day, 3*day), upper: from(-day, 2*day), lower: from(-day, 5*time.Hour), cut: 19*time.Hour - 5*time.Minute},
		"an issuer first":         {root: from(-day, 3*day), upper: from(-day, 4*time.Hour), lower: from(-day, 5*time.Hour), cut: 20*time.Hour - 5*time.Minute},
		"the root first":          {root: from(-day, 3*time.Hour), upper: from(-day, 4*time.Hour), lower: from(-day, 5*time.Hour), cut: 21*time.Hour - 5*time.Minute},
		"none earlier":            {root: from(-day, day), upper: from(-day, day), lower: from(-day, day)},
		"an issuer has ended":     {root: from(-day, day), upper: from(-day, 0), lower: from(-day, day), expired: true, err: `the signing certificate has expired: its issuer "CN=upper" expired at 2026-03-01T12:00:00Z`},
		"the root has ended":      {root: from(-day, -day/2), upper: from(-day, day), lower: from(-day, day), expired: true, err: `the signing certificate has expired: its issuer "CN=root" expired at 2026-03-01T00:00:00Z`},
		"an issuer not valid yet": {root: from(-day, day), upper: from(time.Hour, day), lower: from(-day, day), err: `the signing certificate "CN=upper" is not valid before 2026-03-01T13:00:00Z`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := none.below(t, "root", "P-256", test.root)
			upper := root.below(t, "upper", "P-384", test.upper)
			lower := upper.below(t, "lower", "P-521", test.lower)
			loaded, err := ca.Load(slices.Concat(lower.pem, upper.pem), pkcs8(t, lower.key), root.pem)
			if err != nil {
				t.Fatal(err)
			}
			issued, err := loaded.Issue(profile(t, ca.ProfileConfig{Lifetime: day}), ca.Request{PublicKey: keys["leaf"]().Public()}, now)
			if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
				t.Fatalf("error (-want +got):\n%s", diff)
			}
			if errors.Is(err, ca.ErrExpired) != test.expired {
				t.Errorf("errors.Is(err, ErrExpired) is %t", !test.expired)
			}
			if err == nil && (issued.Cut != test.cut || issued.NotAfter.After(loaded.NotAfter())) {
				t.Errorf("cut by %s, want %s", issued.Cut, test.cut)
			}
		})
	}
}

// TestPathLengthCountsEachCA checks the path length of a root with two CAs below it.
func TestPathLengthCountsEachCA(t *testing.T) {
	t.Parallel()
	for limit, ok := range map[int]bool{1: false, 2: true} {
		var none *link
		root := none.below(t, "root", "P-384", func(c *x509.Certificate) { c.MaxPathLen = limit })
		middle := root.below(t, "middle", "Ed25519")
		signing := middle.below(t, "signing", "P-256")
		_, err := ca.Load(slices.Concat(signing.pem, middle.pem, root.pem), pkcs8(t, signing.key))
		if (err == nil) != ok {
			t.Errorf("path length %d: error %v", limit, err)
		}
	}
}
