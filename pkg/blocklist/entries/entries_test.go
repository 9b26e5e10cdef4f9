package entries

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// stolen and another are the SHA-256 of certificates.
var stolen, another = strings.Repeat("0a", 32), strings.Repeat("f9", 32)

// TestParseUsers checks which names of users are read, exactly as written.
func TestParseUsers(t *testing.T) {
	for name, test := range map[string]struct {
		users, forced string
		want          []string
		problems      []string
	}{
		"names":           {users: "alice\n  Bob Smith  # left\n# nobody\n\nhttps://issuer#sub\nhttps://issuer#sub2 # left", want: []string{"Bob Smith", "alice", "https://issuer#sub", "https://issuer#sub2"}},
		"strings":         {users: `"a # b" # left` + "\n" + `"\u0000\n\""`, want: []string{"\x00\n\"", "a # b"}},
		"bad strings":     {users: `"a` + "\n" + `""` + "\n" + `"\ud800"` + "\nb", want: []string{"b"}, problems: []string{`users, line 1: "\"a" is not a string of JSON`, `users, line 2: "\"\"" is empty`, `users, line 3: "\"\\ud800\"" is not valid UTF-8: block the node or the certificate`}},
		"after a string":  {users: `"a", "b"` + "\n" + `"c"#left` + "\n" + `"d"` + "\t\n" + `"e"f`, want: []string{"c", "d"}, problems: []string{`users, line 1: "\"a\", \"b\"" has more than a comment after the string of JSON: write one name in a line`, `users, line 4: "\"e\"f" has more than a comment after the string of JSON: write one name in a line`}},
		"tabs":            {users: "a\tb\t# left\nc # d\t# left", want: []string{"a\tb", "c"}},
		"nodes":           {users: "system:node:w1\nb", want: []string{"b"}, problems: []string{`users, line 1: "system:node:w1" is a node: write w1 under the key nodes`}},
		"too long":        {users: strings.Repeat("x", 2001) + "\nb", want: []string{"b"}, problems: []string{fmt.Sprintf("users, line 1: %q is longer than 2,000 bytes: block the certificate", csr.Shorten(strings.Repeat("x", 2001)))}},
		"the list's":      {users: CanaryPrefix + "control", want: []string{}, problems: []string{`users, line 1: "csr-controller-manager.io:block-list:control" is a name that the list itself uses`}},
		"needed":          {users: "system:kube-scheduler\nb", want: []string{"b"}, problems: []string{`users, line 1: "system:kube-scheduler" is needed by the cluster itself, and stays unblocked: write it under the key forcedUsers if you accept the outage`}},
		"needed by force": {users: "b", forced: "system:kube-scheduler\nc", want: []string{"b", "c", "system:kube-scheduler"}},
	} {
		read, problems, err := Parse(map[string]string{"nodes": "", "users": test.users, "forcedUsers": test.forced})
		expect.Error(t, name, err, "")
		expect.Equal(t, name, sets.List(read.Users), test.want)
		expect.Equal(t, name+": problems", problems, test.problems)
	}
}

// TestParseConfigMap checks that a file of another encoding is reported.
func TestParseConfigMap(t *testing.T) {
	read, problems, err := ParseConfigMap(&corev1.ConfigMap{Data: map[string]string{"nodes": "a\nb c"}, BinaryData: map[string][]byte{"users": {0xff, 0xfe, 'b', 0}}})
	expect.Error(t, "", err, "")
	expect.Equal(t, "problems", problems, []string{`nodes, line 2: "b c" is not a node name`, `key "users" is ignored, because its file was not UTF-8`})
	expect.Equal(t, "read", fmt.Sprint(sets.List(read.Nodes), sets.List(read.Users)), "[a] []")
}

// TestDigest checks that the digest depends on what is blocked only, also where programs were built with other versions of Go.
func TestDigest(t *testing.T) {
	digest := func(nodes, users string) string {
		read, _, err := Parse(map[string]string{"nodes": nodes, "users": users})
		expect.Error(t, "", err, "")
		return read.Digest()
	}
	expect.Equal(t, "order and comments", digest("b\nA # x", "u"), digest("a\n\nb", "u"))
	expect.Equal(t, "what JSON escapes", digest("a", `"<&>"`+"\n"+`"\u0001\u007f"`+"\n\"\u2028\"\né\U0001f511"),
		"a85d1bcae974c6545a7dbbfe61d1300c4b401beb3ef1b2a80a255b4306cd47e9") // by Go 1.26
	for _, other := range []string{digest("a\nb", ""), digest("a", "b"), digest("a", "")} {
		if other == digest("a\nb", "u") || other == digest("", "a\nb") {
			t.Errorf("another list has the digest %s", other)
		}
	}
}

// TestParse checks what is read of the two keys, and which lines are reported.
func TestParse(t *testing.T) {
	notSum := func(line int, text string) string {
		return fmt.Sprintf("certificates, line %d: %q is not the SHA-256 of a certificate: write its 64 hex digits", line, text)
	}
	unknown := func(key string) string {
		return fmt.Sprintf("key %q is unknown: the keys are nodes, users, forcedUsers and certificates", key)
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
				notSum(2, "abc"), notSum(3, stolen+"00"), notSum(4, stolen[:62]+"0g"), notSum(5, "JTI="+stolen), notSum(6, "worker-7"),
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
