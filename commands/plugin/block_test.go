package plugin

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// plane is a fake cluster with two API servers, a block list, and a manager that publishes how they follow the list.
type plane struct {
	*cluster
	api *fake.Clientset
	// problem is that of the second API server. stale makes the manager publish another version. ignores is a user whom no
	// API server refuses, and unproven means that the manager publishes nothing.
	problem, ignores string
	stale, unproven  bool
}

// list returns the stored list.
func (p *plane) list() *corev1.ConfigMap {
	obj, err := p.api.Tracker().Get(corev1.SchemeGroupVersion.WithResource("configmaps"), defaultNamespace, blockListName)
	if err != nil {
		return &corev1.ConfigMap{}
	}
	return obj.(*corev1.ConfigMap)
}

// planeOf returns a plane with objs and a list with data. The person is alice, with the certificate whose SHA-256 is ab…ab.
func planeOf(t *testing.T, data map[string]string, objs ...runtime.Object) *plane {
	t.Helper()
	if data != nil {
		objs = append(objs, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: blockListName}, Data: data})
	}
	c, api := clusterOf(t, objs)
	p := &plane{cluster: c, api: api}
	api.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() != blockListName+entries.StatusSuffix || p.unproven {
			return false, nil, nil
		}
		blocked, _, err := entries.Parse(p.list().Data)
		expect.NoError(t, err)
		found := entries.Enforcement{Digest: blocked.Digest(), Servers: []entries.Server{{Address: "10.0.0.1:6443"}, {Address: "10.0.0.2:6443", Problem: p.problem}}}
		if p.stale {
			found.Digest = "old"
		}
		text, err := json.Marshal(found)
		expect.NoError(t, err)
		return true, &corev1.ConfigMap{Data: map[string]string{entries.StatusKey: string(text)}}, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		blocked, _, _ := entries.Parse(p.list().Data) // nothing if there is no list
		who := csr.Requester{Username: review.Spec.User, Extra: map[string]certificatesv1.ExtraValue{
			csr.CredentialIDKey: certificatesv1.ExtraValue(review.Spec.Extra[csr.CredentialIDKey]),
		}}
		named := blocked.Check(&csr.Request{Requester: who}, "").Made() || who.Username == blocked.Canary()
		review.Status.Denied = named && who.Username != p.ignores
		return true, review, nil
	})
	api.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		me := authenticationv1.UserInfo{Username: "alice", Extra: map[string]authenticationv1.ExtraValue{
			csr.CredentialIDKey: {csr.CertificateIDPrefix + strings.Repeat("ab", 32)},
		}}
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: me}}, nil
	})
	return p
}

func nodeOf(name string, labels ...string) *corev1.Node {
	obj := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, label := range labels {
		obj.Labels["node-role.kubernetes.io/"+label] = ""
	}
	return obj
}

const byAlice = ` # by "alice", 2026-03-01T12:00:00Z` + "\n"

// TestBlockWrites checks what is written for each form of the command line, and that an unblock takes it back to the byte.
func TestBlockWrites(t *testing.T) {
	made := kit.IssueCA(t, "ca", kit.NewKey(t), nil, time.Hour).Leaf(t, "bob").Certificate[0]
	sum, file := fmt.Sprintf("%x", sha256.Sum256(made)), filepath.Join(t.TempDir(), "file")
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made})
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{AuthInfos: map[string]*clientcmdapi.AuthInfo{"bob": {ClientCertificateData: text}}})
	kit.NoError(t, err)
	for name, test := range map[string]struct {
		args      []string
		content   []byte // of file
		key, line string
	}{
		"a node":                {args: []string{"w1"}, key: "nodes", line: "w1"},
		"a node by its user":    {args: []string{"system:node:gone"}, key: "nodes", line: "gone"},
		"a node that is gone":   {args: []string{"gone", "--node"}, key: "nodes", line: "gone"},
		"a user named as one":   {args: []string{"w1", "--user"}, key: "users", line: "w1"},
		"an account":            {args: []string{"system:serviceaccount:a:b"}, key: "users", line: "system:serviceaccount:a:b"},
		"a mail address":        {args: []string{"bob@example.com"}, key: "users", line: "bob@example.com"},
		"capitals":              {args: []string{"Bob"}, key: "users", line: "Bob"},
		"an issuer":             {args: []string{"https://issuer#bob"}, key: "users", line: `"https://issuer#bob"`},
		"a comment":             {args: []string{"bob # x"}, key: "users", line: `"bob # x"`},
		"quotes":                {args: []string{`"bob"`}, key: "users", line: `"\"bob\""`},
		"a newline":             {args: []string{"bob\nw1"}, key: "users", line: `"bob\nw1"`},
		"a line separator":      {args: []string{"bob\u2028"}, key: "users", line: `"bob\u2028"`},
		"a space":               {args: []string{" bob"}, key: "users", line: `" bob"`},
		"a letter of Greek":     {args: []string{"αlice"}, key: "users", line: `"\u03b1lice"`},
		"an essential user":     {args: []string{"system:kube-scheduler", "--force"}, key: "forcedUsers", line: "system:kube-scheduler"},
		"PEM":                   {args: []string{"--certificate", file}, content: append([]byte("x\n"), text...), key: "certificates", line: sum},
		"DER":                   {args: []string{"--certificate", file}, content: made, key: "certificates", line: sum},
		"a kubeconfig":          {args: []string{"--certificate", file}, content: kubeconfig, key: "certificates", line: sum},
		"a second user by name": {args: []string{"--user", "a b"}, key: "users", line: `"a b"`},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Write(t, file, test.content)
			before := map[string]string{"nodes": "# ours\nnot a node\nw2", "users": "\r\nb # c\r\n", "README": "x"}
			p := planeOf(t, before, nodeOf("w1"))
			want := maps.Clone(before)
			if text := want[test.key]; text != "" && !strings.HasSuffix(text, "\n") {
				want[test.key] += "\n"
			}
			kept := want[test.key]
			want[test.key] += test.line + byAlice
			out, aside, err := execute(t, p.cluster, "y\n", append([]string{"block"}, test.args...)...)
			expect.Error(t, aside, err, "")
			expect.Equal(t, "written", p.list().Data, want)
			contains(t, aside, "API servers will refuse ", "It does not end", "? [y/N] ", "is on the block list, and each API server follows.")
			if strings.ContainsAny(out+aside, "α\u2028") {
				t.Errorf("not ASCII: %q", out+aside)
			}
			out, aside, err = execute(t, p.cluster, "", append([]string{"block", "--yes"}, test.args...)...)
			expect.Error(t, out, err, "")
			expect.Equal(t, "written again", p.list().Data, want)
			contains(t, aside, "The block list needs no change.")
			_, aside, err = execute(t, p.cluster, "y\n", append([]string{"unblock"}, test.args...)...)
			expect.Error(t, aside, err, "")
			want[test.key] = kept
			expect.Equal(t, "unblocked", p.list().Data, want)
		})
	}
}

// TestBlockRefuses checks what is not written, and why.
func TestBlockRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	master := kit.IssueCA(t, "ca", kit.NewKey(t), nil, time.Hour)
	mine := nodeOf("cp1", "control-plane")
	for name, test := range map[string]struct {
		args  string
		data  map[string]string // {"nodes": ""} if empty
		want  string
		input string
		mod   func(p *plane)
		force bool // with --force it is written
	}{
		"no answer":                    {args: "w1", want: "the block list is unchanged: you did not confirm it"},
		"no":                           {args: "w1", input: "n\n", want: "you did not confirm it"},
		"neither a node nor a user":    {args: "bob", want: "there is no Node of that name that you may see: add --node or --user: "},
		"nodes can't be read":          {args: "w1", mod: func(p *plane) { forbid(p.api, "get", "nodes") }, want: "add --node or --user"},
		"not UTF-8":                    {args: "bob\xff", want: `it can't hold user "bob\xff": users, line 1: "\"bob\\ufffd\"" is not valid UTF-8`},
		"the list's own name":          {args: entries.CanaryPrefix + "x", want: "is a name that the list itself uses"},
		"no node's name":               {args: "a_b --node", want: `it can't hold node "a_b": nodes, line 1: "a_b" is not a node name`},
		"no name":                      {args: " --user", want: "give a NAME, or --certificate FILE"},
		"two kinds":                    {args: "w1 --node --user", want: "none of the others can be"},
		"no file":                      {args: "--certificate /none", want: "no such file"},
		"no certificate":               {args: "--certificate " + file, want: "holds no certificate in PEM or DER"},
		"no list":                      {args: "w1", mod: func(p *plane) { kit.NoError(t, deleteList(t, p)) }, want: "to set it up, see docs/how-to/revoke-a-credential.md"},
		"not a list":                   {args: "w1", data: map[string]string{"node": ""}, want: "it has no key nodes"},
		"may not write":                {args: "w1 --yes", mod: func(p *plane) { forbid(p.api, "update", "configmaps") }, want: "is forbidden"},
		"unknown person":               {args: "w1 --yes", mod: func(p *plane) { forbid(p.api, "create", "selfsubjectreviews") }, want: "find out who you are: ", force: true},
		"own user":                     {args: "alice --user --yes", want: "you use it yourself", force: true},
		"own certificate":              {args: "--yes --certificate " + file, mod: func(p *plane) { isMe(t, p, file, master.Leaf(t, "bob").Certificate[0]) }, want: "you use it yourself", force: true},
		"own node":                     {args: "w1 --yes", mod: func(p *plane) { meIs(p, "system:node:w1") }, want: "you use it yourself", force: true},
		"essential":                    {args: "system:anonymous --yes", want: "the cluster needs this user", force: true},
		"last control-plane node":      {args: "cp1 --yes", want: "it is the last control-plane node that is not blocked", force: true},
		"other one is blocked":         {args: "cp1 --yes", data: map[string]string{"nodes": "CP2"}, mod: func(p *plane) { kit.NoError(t, p.api.Tracker().Add(nodeOf("cp2", "control-plane"))) }, want: "it is the last control-plane node", force: true},
		"unknown control-plane nodes":  {args: "w1 --yes", mod: func(p *plane) { forbid(p.api, "list", "nodes") }, want: "it is unknown whether it is the last control-plane node", force: true},
		"certificate of masters":       {args: "--yes --certificate " + file, mod: func(*plane) { kit.Write(t, file, ofMasters(t)) }, want: "API servers never ask about the group system:masters", force: true},
		"user, nodes can't be listed":  {args: "bob --user --yes", mod: func(p *plane) { forbid(p.api, "list", "nodes") }},
		"one of two control-plane":     {args: "cp1 --yes", mod: func(p *plane) { kit.NoError(t, p.api.Tracker().Add(nodeOf("cp2", "control-plane"))) }},
		"a node of a name like that":   {args: "w1 --yes", mod: func(p *plane) { meIs(p, "system:node:w2") }},
		"a user with a node's name":    {args: "cp1 --user --yes"},
		"certificates can't be listed": {args: "w1 --yes", mod: func(p *plane) { forbid(p.api, "list", "certificatesigningrequests") }},
	} {
		t.Run(name, func(t *testing.T) {
			if test.data == nil {
				test.data = map[string]string{"nodes": ""}
			}
			kit.Write(t, file, nil)
			p := planeOf(t, test.data, nodeOf("w1"), mine.DeepCopy())
			if test.mod != nil {
				test.mod(p)
			}
			before := p.list().DeepCopy().Data
			out, aside, err := execute(t, p.cluster, test.input, append([]string{"block"}, strings.Fields(test.args)...)...)
			if test.want == "" {
				expect.Error(t, out+aside, err, "")
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(out, "yes") {
				t.Errorf("error %v, want %q:\n%s%s", err, test.want, out, aside)
			}
			expect.Equal(t, "the list", p.list().Data, before)
			if test.force {
				_, aside, err := execute(t, p.cluster, "", append([]string{"block", "--force"}, strings.Fields(test.args)...)...)
				expect.Error(t, aside, err, "")
				expect.True(t, fmt.Sprint(p.list().Data) != fmt.Sprint(before), "nothing is written with --force")
			}
		})
	}
}

func deleteList(t *testing.T, p *plane) error {
	t.Helper()
	return p.api.Tracker().Delete(corev1.SchemeGroupVersion.WithResource("configmaps"), defaultNamespace, blockListName)
}

// meIs makes the person a user.
func meIs(p *plane, user string, ids ...string) {
	p.api.PrependReactor("create", "selfsubjectreviews", func(clienttesting.Action) (bool, runtime.Object, error) {
		me := authenticationv1.UserInfo{Username: user, Extra: map[string]authenticationv1.ExtraValue{csr.CredentialIDKey: ids}}
		return true, &authenticationv1.SelfSubjectReview{Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: me}}, nil
	})
}

// isMe writes a certificate to file with which the person has authenticated.
func isMe(t *testing.T, p *plane, file string, der []byte) {
	t.Helper()
	kit.Write(t, file, der)
	meIs(p, "alice", csr.CertificateIDPrefix+fmt.Sprintf("%X", sha256.Sum256(der)))
}

// ofMasters returns a certificate with the group system:masters.
func ofMasters(t *testing.T) []byte {
	t.Helper()
	key := kit.NewKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}}
	return kit.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
}

// TestBlockWaits checks that no block looks successful that is none.
func TestBlockWaits(t *testing.T) {
	for name, test := range map[string]struct {
		mod            func(p *plane)
		block, unblock string // errors
	}{
		"all follow":             {},
		"one does not":           {func(p *plane) { p.problem = "it is\n\x1b\u202eold" }, `10.0.0.2:6443: it is \x1b\u202eold`, `10.0.0.2:6443: it is \x1b\u202eold`},
		"the manager is behind":  {func(p *plane) { p.stale = true }, "has not asked about this version", "has not asked about this version"},
		"not set up":             {func(p *plane) { p.unproven = true }, "no API server is known to follow the block list, which stops new certificates only: ", ""},
		"status can't be read":   {func(p *plane) { forbidStatus(p) }, "is forbidden", "is forbidden"},
		"writer's own user":      {func(p *plane) { p.ignores = "bob" }, `does not refuse "bob"; none refuses the user of write-authorization`, ""},
		"you may not ask it":     {func(p *plane) { forbid(p.api, "create", "subjectaccessreviews") }, "", ""},
		"the API server is gone": {func(p *plane) { fail(p, "create", "subjectaccessreviews") }, "it is off", ""},
		"nobody is published": {func(p *plane) { publish(p, `{"servers": []}`) }, "names 0 API servers: want 1 to 100",
			"names 0 API servers: want 1 to 100"},
		"a flood is published": {func(p *plane) { publish(p, `{"servers": [{}`+strings.Repeat(",{}", 100)+`]}`) }, "names 101 API servers", "names 101 API servers"},
		"not JSON":             {func(p *plane) { publish(p, "x") }, "invalid character", "invalid character"},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := planeOf(t, map[string]string{"nodes": "", "users": "bob2"})
			if test.mod != nil {
				test.mod(p)
			}
			for _, verb := range []string{"block", "unblock"} {
				want := map[string]string{"block": test.block, "unblock": test.unblock}[verb]
				out, aside, err := execute(t, p.cluster, "", verb, "bob", "--user", "--yes")
				if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("%s, %s: error %v, want %q:\n%s%s", name, verb, err, want, out, aside)
				}
				if strings.ContainsAny(out+aside, "\x1b\u202e") || err != nil && strings.ContainsAny(err.Error(), "\n\x1b") {
					t.Errorf("%s, %s: text of others controls the terminal: %q, %v", name, verb, out+aside, err)
				}
				listed := map[string]string{"block": "bob2\nbob" + byAlice, "unblock": "bob2\n"}[verb]
				expect.Equal(t, name+", "+verb, p.list().Data["users"], listed)
			}
		})
	}
}

// TestBlockIsUndone has a person who takes the line away while the command waits.
func TestBlockIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := planeOf(t, map[string]string{"nodes": ""}, nodeOf("w1"))
		p.api.PrependReactor("update", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) { return true, p.list(), nil })
		_, _, err := execute(t, p.cluster, "", "block", "w1", "--yes")
		if err == nil || !strings.Contains(err.Error(), "somebody has changed it back") {
			t.Errorf("error %v", err)
		}
	})
}

func fail(p *plane, verb, resource string) {
	p.api.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, fmt.Errorf("it is off") })
}

// publish makes text the status.
func publish(p *plane, text string) {
	p.api.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() == blockListName {
			return false, nil, nil
		}
		return true, &corev1.ConfigMap{Data: map[string]string{entries.StatusKey: text}}, nil
	})
}

func forbidStatus(p *plane) {
	p.api.PrependReactor("get", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.GetAction).GetName() == blockListName {
			return false, nil, nil
		}
		return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "status", fmt.Errorf("no"))
	})
}

// TestBlockConflict has a second person who writes at the same time: both lines stay, and of two control-plane nodes one stays.
func TestBlockConflict(t *testing.T) {
	for name, test := range map[string]struct {
		args, others, want string
	}{
		"another node":            {"w1", "w3 # mine", ""},
		"the same node":           {"w1", "W1 # mine", ""},
		"the other control plane": {"cp1", "cp2", "it is the last control-plane node that is not blocked"},
	} {
		p := planeOf(t, map[string]string{"nodes": "w2\n"}, nodeOf("w1"), nodeOf("cp1", "control-plane"), nodeOf("cp2", "control-plane"))
		conflicts := 0
		p.api.PrependReactor("update", "configmaps", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if conflicts++; conflicts > 1 {
				return false, nil, nil
			}
			changed := p.list().DeepCopy()
			changed.Data["nodes"] += test.others + "\n"
			kit.NoError(t, p.api.Tracker().Update(action.GetResource(), changed, defaultNamespace))
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), blockListName, fmt.Errorf("changed"))
		})
		_, aside, err := execute(t, p.cluster, "", "block", test.args, "--yes")
		want := "w2\n" + test.others + "\n"
		if name == "another node" {
			want += "w1" + byAlice
		}
		expect.Equal(t, name, p.list().Data["nodes"], want)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v:\n%s", name, err, aside)
		}
	}
}

// TestUnblockRemovesEachSpelling removes all lines that name the same, and no other.
func TestUnblockRemovesEachSpelling(t *testing.T) {
	der := kit.IssueCA(t, "ca", kit.NewKey(t), nil, time.Hour).Leaf(t, "bob").Certificate[0]
	sum, file := fmt.Sprintf("%X", sha256.Sum256(der)), filepath.Join(t.TempDir(), "file")
	kit.Write(t, file, der)
	var colons []string
	for pair := range slices.Chunk([]byte(sum), 2) {
		colons = append(colons, string(pair))
	}
	for args, test := range map[string]struct{ data, want map[string]string }{
		"w1": {
			map[string]string{"nodes": "\ufeffW1\r\nw10\n w1 # stolen\nw1 x\n# w1\nw1", "users": "w1"},
			map[string]string{"nodes": "w10\nw1 x\n# w1\n", "users": "w1"},
		},
		"system:kube-scheduler": {
			map[string]string{"nodes": "", "users": "system:kube-scheduler\nx", "forcedUsers": "\"system:kube-scheduler\"\nsystem:kube-scheduler # a\ny\n"},
			map[string]string{"nodes": "", "users": "system:kube-scheduler\nx", "forcedUsers": "y\n"}, // of users it never was one
		},
		"Bob": {
			map[string]string{"nodes": "bob", "users": "Bob\nbob\n\"\\u0042ob\"\n", "forcedUsers": "Bob"},
			map[string]string{"nodes": "bob", "users": "bob\n", "forcedUsers": ""},
		},
		"--certificate " + file: {
			map[string]string{"nodes": "", "certificates": sum + "\nsha256 Fingerprint=" + strings.Join(colons, ":") + "\nX509SHA256=" + strings.ToLower(sum) + "\n" + strings.Repeat("0a", 32)},
			map[string]string{"nodes": "", "certificates": strings.Repeat("0a", 32)},
		},
	} {
		p := planeOf(t, test.data, nodeOf("w1"))
		_, aside, err := execute(t, p.cluster, "", append([]string{"unblock", "--yes"}, strings.Fields(args)...)...)
		expect.Error(t, args+": "+aside, err, "")
		expect.Equal(t, args, p.list().Data, test.want)
	}
}

// TestBlockShows checks what a person is shown before the question: text of others quoted, and every list bounded.
func TestBlockShows(t *testing.T) {
	objs := []runtime.Object{nodeOf("w1")}
	authority := kit.IssueCA(t, "ca", kit.NewKey(t), nil, time.Hour)
	var sum string
	for i := range 12 {
		leaf := authority.Leaf(t, "system:node:w1").Certificate[0]
		sum = fmt.Sprintf("%x", sha256.Sum256(leaf))
		objs = append(objs, requestOf(t, fmt.Sprintf("r%d", i), decidedAs(certificatesv1.CertificateApproved), func(obj *request) {
			obj.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: leaf})
			if i == 11 {
				obj.Name = "x\x1b $(reboot)"
			}
		}))
	}
	serving := objs[12].(*request).DeepCopy() // no client uses its certificate
	serving.Name, serving.Spec.SignerName = "serving", certificatesv1.KubeletServingSignerName
	objs = append(objs, serving, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}})
	p := planeOf(t, map[string]string{"nodes": ""}, objs...)
	p.clock = clocktesting.NewFakeClock(time.Now())
	_, aside, _ := execute(t, p.cluster, "", "block", "w1")
	contains(t, aside, `API servers will refuse node "w1"`, "Node          system:node:w1, and the tokens of the Pods on it", "Pods          1, which go on running there", "and 4 more", "request r0",
		"port 10250", "TokenReview", "system:masters", "can-i --list", `Block node "w1"? [y/N] `)
	_, aside, _ = execute(t, p.cluster, "", "block", "--node", "gone")
	contains(t, aside, `unknown       nodes "gone" not found`)
	file := filepath.Join(t.TempDir(), "file")
	kit.NoError(t, os.WriteFile(file, objs[12].(*request).Status.Certificate, 0o600))
	_, aside, _ = execute(t, p.cluster, "", "block", "--certificate", file)
	contains(t, aside, `API servers will refuse certificate "`+sum, `subject       "CN=system:node:w1`, "valid until", "weakness",
		"certificates  "+sum, `request 'x\x1b $(reboot)'`)
	for _, resource := range []string{"certificatesigningrequests", "pods"} {
		forbid(p.api, "list", resource)
	}
	_, aside, _ = execute(t, p.cluster, "", "block", "w1")
	contains(t, aside, "unknown       list pods: ", "unknown       list requests: ", `Block node "w1"?`)
}

// TestBlockListInCheckAndExplain checks what both say about API servers.
func TestBlockListInCheckAndExplain(t *testing.T) {
	const none = "Blocking works only for new certificates: API servers are not known to follow the block list."
	for name, test := range map[string]struct {
		mod            func(p *plane)
		check, explain string
		unknown        bool
	}{
		"all follow":       {nil, "block-list-enforced  ok       API server 10.0.0.2:6443: it follows since 0001-01-01T00:00:00Z", "API server 10.0.0.2:6443: it follows since 0001-01-01T00:00:00Z", false},
		"one does not":     {func(p *plane) { p.problem = "old\x1b" }, `block-list-enforced  failed   API server 10.0.0.2:6443: old\x1b`, `API server 10.0.0.2:6443: old\x1b`, false},
		"another version":  {func(p *plane) { p.stale = true }, "block-list-enforced  failed   API server 10.0.0.1:6443: the manager has not asked", "API server 10.0.0.1:6443: the manager has not asked", false},
		"not set up":       {func(p *plane) { p.unproven = true }, none, none, false},
		"can't be read":    {forbidStatus, "block-list-enforced  unknown  the block list", "the block list: ", true},
		"there is no list": {func(p *plane) { kit.NoError(t, deleteList(t, p)) }, none, "", false},
	} {
		p := planeOf(t, map[string]string{"nodes": "a"}, requestOf(t, "r"))
		if test.mod != nil {
			test.mod(p)
		}
		out, _, _ := execute(t, p.cluster, "", "check", "-v")
		contains(t, out, test.check)
		var report checkReport
		_ = executeJSON(t, p.cluster, &report, "check")
		expect.Equal(t, name+": note", strings.HasPrefix(report.Note, none), test.check == none)
		out, _, err := execute(t, p.cluster, "", "explain", "r")
		expect.Error(t, name, err, "")
		contains(t, out, test.explain)
		expect.Equal(t, name, strings.Contains(out, "API server"), test.explain != "" && !test.unknown)
	}
}
