package ca_test

import (
	"crypto/x509/pkix"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
)

func TestSubjectText(t *testing.T) {
	t.Parallel()
	everything := pkix.Name{
		Country: []string{"DE"}, Province: []string{"BE"}, Locality: []string{"Berlin"}, StreetAddress: []string{"Weg 1"}, PostalCode: []string{"1"},
		Organization: []string{"b, c", "a+\\", "#x", " y "}, OrganizationalUnit: []string{"u"}, CommonName: "Zo\u00eb \u202e", SerialNumber: "7",
	}
	for name, test := range map[string]struct {
		subject pkix.Name
		room    int
		want    string
	}{
		"empty":                     {pkix.Name{}, 100, ""},
		"as pkix.Name.String":       {everything, 1000, everything.String()},
		"exactly as long":           {pkix.Name{CommonName: "abcdef"}, 9, "CN=abcdef"},
		"one byte too long":         {pkix.Name{CommonName: "abcdefg"}, 9, "CN=abc..."},
		"cut in a letter":           {pkix.Name{CommonName: "abc\u20ac\u20ac"}, 11, "CN=abc..."},
		"cut in a later value":      {pkix.Name{CommonName: "abc", Organization: []string{"defghi"}}, 12, "CN=abc,O=..."},
		"reads only what is needed": {pkix.Name{CommonName: strings.Repeat("x", 1<<20)}, 10, "CN=xxxx..."},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := ca.SubjectText(test.subject, test.room)
			if got != test.want || len(got) > test.room || !utf8.ValidString(got) {
				t.Errorf("%q of %d bytes, want %q", got, len(got), test.want)
			}
		})
	}
}

// The time is proportional to the size. pkix.Name.String takes minutes for this subject.
func TestSubjectTextIsLinear(t *testing.T) {
	t.Parallel()
	name := pkix.Name{OrganizationalUnit: slices.Repeat([]string{"unit"}, 100_000)}
	began := time.Now()
	ca.SubjectText(name, 1<<20)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("it takes %s", took)
	}
}

// TestSubjectTextShowsThatMoreFollows has a first attribute that fills the room.
func TestSubjectTextShowsThatMoreFollows(t *testing.T) {
	t.Parallel()
	name := pkix.Name{CommonName: "abc", Organization: []string{"x"}}
	if got := ca.SubjectText(name, len("CN=abc")); got != "CN=..." {
		t.Errorf("got %s", got)
	}
}
