package entries

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// stolen and another are the SHA-256 of certificates.
var stolen, another = strings.Repeat("0a", 32), strings.Repeat("f9", 32)

// TestParse checks what is read of the two keys, and which lines are reported.
func TestParse(t *testing.T) {
	notSum := func(line int, text string) string {
		return fmt.Sprintf("certificates, line %d: %q is not the SHA-256 of a certificate: write its 64 hex digits", line, text)
	}
	unknown := func(key string) string {
		return fmt.Sprintf("key %q is unknown: the keys are nodes and certificates", key)
	}
	for name, test := range map[string]struct {
		nodes, certificates string
		others              map[string]string // by key
		want                string            // nodes and certificates
		problems            []string
	}{
		"CRLF line ends":                  {nodes: "a\r\nb\r\n", certificates: stolen + "\r\n", want: "a b; " + stolen},
		"in capitals":                     {nodes: "Worker-A\nWORKER-A\n", certificates: strings.ToUpper(another), want: "worker-a; " + another},
		"files that begin with a BOM":     {nodes: "\ufeffa\nb\n\ufeff\r\n\ufeff c\n", certificates: "\ufeffX509SHA256=" + stolen, want: "a b c; " + stolen},
		"certificates as in a request":    {certificates: "X509SHA256=" + stolen, want: "; " + stolen},
		"certificates as openssl prints":  {certificates: "sha256 Fingerprint=F9" + strings.Repeat(":F9", 31), want: "; " + another},
		"certificates as a browser shows": {certificates: "F9" + strings.Repeat(" F9", 31) + "\n0A:" + strings.Repeat(" 0A:", 30) + " 0A\n", want: "; " + stolen + " " + another},
		"names, bad lines among good": {
			nodes: "a\nb c\nsystem:node:d\n- e\nf_g\n*\nh\n", want: "a h; ",
			problems: []string{
				`nodes, line 2: "b c" is not a node name`, `nodes, line 3: "system:node:d" is a user name: remove the prefix system:node:`,
				`nodes, line 4: "- e" is not a node name`, `nodes, line 5: "f_g" is not a node name`, `nodes, line 6: "*" is not a node name`,
			},
		},
		"certificates, bad lines among good": {
			nodes: "a", certificates: strings.Join([]string{stolen, "abc", stolen + "00", stolen[:62] + "0g", "JTI=" + stolen, "worker-7", another}, "\n"),
			want: "a; " + stolen + " " + another,
			problems: []string{
				notSum(2, "abc"), notSum(3, stolen+"00"), notSum(4, stolen[:62]+"0g"), notSum(5, "jti="+stolen), notSum(6, "worker-7"),
			},
		},
		"unknown keys": {
			nodes: "a", others: map[string]string{"certificate": stolen, "README": ""}, want: "a; ",
			problems: []string{unknown("README"), unknown("certificate")},
		},
	} {
		data := map[string]string{"nodes": test.nodes, "certificates": test.certificates}
		maps.Copy(data, test.others)
		read, problems, err := Parse(data)
		expect.Error(t, name, err, "")
		expect.Equal(t, name, strings.Join(sets.List(read.Nodes), " ")+"; "+strings.Join(sets.List(read.Certificates), " "), test.want)
		expect.Equal(t, name+": problems", problems, test.problems)
	}
	for _, data := range []map[string]string{nil, {"node": "a"}, {"certificates": stolen}} {
		_, _, err := Parse(data)
		expect.Error(t, fmt.Sprint(data), err, "it has no key nodes: add it, with an empty value if no node is blocked")
	}
}
