package ca_test

import (
	"crypto"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509/pkix"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

const tooShort = " is too short: certificates are backdated by 5m0s and clients renew after as little as 70% of the validity, " +
	"so a certificate of 2m9s or less is due for renewal as soon as it is issued"

func TestNewProfile(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		config ca.ProfileConfig
		err    string
	}{
		"empty":                          {},
		"the shortest":                   {config: ca.ProfileConfig{Lifetime: 130 * time.Second}},
		"the default equals the maximum": {config: ca.ProfileConfig{Lifetime: time.Hour, MaxLifetime: time.Hour}},
		"minimum over the maximum":       {config: ca.ProfileConfig{Lifetime: time.Hour, MinLifetime: 2 * time.Hour}},
		"too short":                      {config: ca.ProfileConfig{Lifetime: 2 * time.Minute}, err: "2m0s" + tooShort},
		"negative":                       {config: ca.ProfileConfig{Lifetime: -time.Hour}, err: "-1h0m0s" + tooShort},
		"minimum too short":              {config: ca.ProfileConfig{MinLifetime: time.Minute}, err: "1m0s" + tooShort},
		"maximum too short":              {config: ca.ProfileConfig{Lifetime: time.Hour, MaxLifetime: time.Second}, err: "1s" + tooShort},
		"default over the maximum":       {config: ca.ProfileConfig{Lifetime: 2 * time.Hour, MaxLifetime: time.Hour}, err: "the default lifetime 2h0m0s exceeds the maximum lifetime 1h0m0s"},
		"one year over the maximum":      {config: ca.ProfileConfig{MaxLifetime: time.Hour}, err: "the default lifetime 8760h0m0s exceeds the maximum lifetime 1h0m0s"},
		"bad pattern":                    {config: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=a", "OU=b"}}, err: `"OU=b" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := ca.NewProfile(test.config)
			if diff := cmp.Diff(test.err, errorText(err)); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// If 70 % of (lifetime + 5 min) is 5 min or less, a client renews at once. The limit is 15/7 min = 128.57 s.
func TestCheckLifetimeBoundary(t *testing.T) {
	t.Parallel()
	const limit = 5 * time.Minute * 3 / 7
	if err := ca.CheckLifetime(limit + 1); err != nil {
		t.Errorf("just over the limit: %v", err)
	}
	if err := ca.CheckLifetime(limit); err == nil {
		t.Error("the limit itself passed")
	}
}

func TestCheckSubjectPattern(t *testing.T) {
	t.Parallel()
	for pattern, ok := range map[string]bool{
		"O=system:masters": true, "CN=admin": true, "CN=system:*": true, "O=*": true, "CN=a=b": true,
		"": false, "O": false, "O=": false, "o=x": false, "OU=x": false, "=x": false, "CN=a*b": false, "CN=a**": false, "CN=*a": false,
	} {
		if err := ca.CheckSubjectPattern(pattern); (err == nil) != ok {
			t.Errorf("%q: error %v", pattern, err)
		}
	}
}

func TestProfileCheck(t *testing.T) {
	t.Parallel()
	masters := ca.ProfileConfig{ForbiddenSubjects: []string{"O=system:masters"}}
	forbidden := func(subject, pattern string) ca.Violation {
		return ca.Violation{Reason: "SubjectNotPermitted", Message: "subject \"" + subject + "\" is not permitted: this signer never issues " + pattern}
	}
	unpermitted := func(message string) []ca.Violation {
		return []ca.Violation{{Reason: "KeyNotPermitted", Message: message + "; use RSA of at most 8192 bits, ECDSA P-256, P-384 or P-521, or Ed25519"}}
	}
	rsaOf := func(bits uint, exponent int) *rsa.PublicKey {
		return &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), int(bits-1), 1), E: exponent}
	}
	weak := func(message string) []ca.Violation { return []ca.Violation{{Reason: "KeyTooWeak", Message: message}} }
	shortRSA := &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 2046), E: 65537}

	for name, test := range map[string]struct {
		config  ca.ProfileConfig
		key     crypto.PublicKey // P-256 when nil
		subject pkix.Name
		names   []string
		want    []ca.Violation
	}{
		"P-256":                       {},
		"P-224":                       {key: keys["P-224"]().Public(), want: unpermitted("ECDSA keys on the curve P-224 are not permitted")},
		"P-521":                       {key: keys["P-521"]().Public()},
		"Ed25519":                     {key: keys["Ed25519"]().Public()},
		"RSA of 2048 bits":            {key: keys["RSA-2048"]().Public()},
		"RSA of 2047 bits":            {key: shortRSA, want: weak("RSA key of 2047 bits is too weak: at least 2048 bits are needed")},
		"RSA of 1024 bits":            {key: keys["RSA-1024"]().Public(), want: weak("RSA key of 1024 bits is too weak: at least 2048 bits are needed")},
		"RSA of 1024 bits, permitted": {config: ca.ProfileConfig{MinRSABits: 1024}, key: keys["RSA-1024"]().Public()},
		"RSA of 2048 bits, too short": {config: ca.ProfileConfig{MinRSABits: 3072}, key: keys["RSA-2048"]().Public(), want: weak("RSA key of 2048 bits is too weak: at least 3072 bits are needed")},
		"X25519":                      {key: must(ecdh.X25519().GenerateKey(rand.Reader)).PublicKey(), want: unpermitted("public keys of type *ecdh.PublicKey are not permitted")},
		"unknown to Go":               {key: struct{}{}, want: unpermitted("public keys of type struct {} are not permitted")},
		"RSA of 8192 bits":            {key: rsaOf(8192, 65537)},
		"RSA of 8193 bits":            {key: rsaOf(8193, 65537), want: unpermitted("RSA keys of 8193 bits are not permitted")},
		"RSA of 524288 bits":          {key: rsaOf(524288, 65537), want: unpermitted("RSA keys of 524288 bits are not permitted")},
		"RSA exponent of 1":           {key: rsaOf(2048, 1), want: unpermitted("RSA keys with the public exponent 1 are not permitted")},
		"RSA exponent of 3":           {key: rsaOf(2048, 3)},
		"RSA exponent is even":        {key: rsaOf(2048, 65536), want: unpermitted("RSA keys with the public exponent 65536 are not permitted")},
		"RSA exponent of 31 bits":     {key: rsaOf(2048, 1<<31-1)},
		"RSA exponent of 32 bits":     {key: rsaOf(2048, 1<<31+1), want: unpermitted("RSA keys with the public exponent 2147483649 are not permitted")},
		"RSA short, exponent of 1":    {key: rsaOf(512, 1), want: unpermitted("RSA keys with the public exponent 1 are not permitted")},

		"names":                          {names: []string{"a", "*.a", "fd00::1"}},
		"a name that contains two names": {names: []string{"a", "b, DNS:\u202ec"}, want: []ca.Violation{{Reason: "NameNotPermitted", Message: `DNS name "b, DNS:\u202ec" is not a DNS name: labels may contain only letters, digits, - and _, and must not begin with -`}}},
		"a wildcard":                     {config: ca.ProfileConfig{ForbidWildcards: true}, names: []string{"*.a"}, want: []ca.Violation{{Reason: "NameNotPermitted", Message: `DNS name "*.a" is a wildcard, which this signer does not permit`}}},
		"a long name":                    {names: []string{strings.Repeat("a", 60_000)}, want: []ca.Violation{{Reason: "NameNotPermitted", Message: `DNS name "` + strings.Repeat("a", 253) + `..." is longer than 253 bytes`}}},
		"another organization":           {config: masters, subject: pkix.Name{Organization: []string{"system:nodes"}}},
		"only a prefix of it":            {config: masters, subject: pkix.Name{Organization: []string{"system:masters2", "system:master"}}},
		"as common name":                 {config: masters, subject: pkix.Name{CommonName: "system:masters"}},
		"as organizational unit":         {config: masters, subject: pkix.Name{OrganizationalUnit: []string{"system:masters"}}},
		"the organization":               {config: masters, subject: pkix.Name{Organization: []string{"system:masters"}}, want: []ca.Violation{forbidden("O=system:masters", "O=system:masters")}},
		"one of its organizations":       {config: masters, subject: pkix.Name{CommonName: "a", Organization: []string{"x", "system:masters"}}, want: []ca.Violation{forbidden("CN=a,O=x+O=system:masters", "O=system:masters")}},
		"the common name":                {config: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=admin"}}, subject: pkix.Name{CommonName: "admin"}, want: []ca.Violation{forbidden("CN=admin", "CN=admin")}},
		"another case":                   {config: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=admin"}}, subject: pkix.Name{CommonName: "Admin"}},
		"a prefix":                       {config: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=system:*"}}, subject: pkix.Name{CommonName: "system:node:a"}, want: []ca.Violation{forbidden("CN=system:node:a", "CN=system:*")}},
		"the prefix itself":              {config: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=system:*"}}, subject: pkix.Name{CommonName: "system:"}, want: []ca.Violation{forbidden("CN=system:", "CN=system:*")}},
		"not the prefix":                 {config: ca.ProfileConfig{ForbiddenSubjects: []string{"CN=system:*"}}, subject: pkix.Name{CommonName: "system"}},
		"any organization, but none set": {config: ca.ProfileConfig{ForbiddenSubjects: []string{"O=*"}}, subject: pkix.Name{CommonName: "a"}},
		"all violations": {
			config: ca.ProfileConfig{ForbiddenSubjects: []string{"O=a", "CN=b"}}, key: keys["RSA-1024"]().Public(),
			subject: pkix.Name{CommonName: "b", Organization: []string{"a"}},
			want: append(weak("RSA key of 1024 bits is too weak: at least 2048 bits are needed"),
				forbidden("CN=b,O=a", "O=a"), forbidden("CN=b,O=a", "CN=b")),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test.key == nil {
				test.key = keys["leaf"]().Public()
			}
			got := profile(t, test.config).Check(ca.Request{PublicKey: test.key, Subject: test.subject, DNSNames: test.names})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("violations (-want +got):\n%s", diff)
			}
		})
	}
}

func TestProfileKeepsItsOwnPatterns(t *testing.T) {
	t.Parallel()
	patterns := []string{"CN=a"}
	checked := profile(t, ca.ProfileConfig{ForbiddenSubjects: patterns})
	patterns[0] = "CN=b"
	if found := checked.Check(ca.Request{PublicKey: keys["leaf"]().Public(), Subject: pkix.Name{CommonName: "a"}}); len(found) != 1 {
		t.Errorf("a change of the caller's slice changed the profile: %v", found)
	}
}
