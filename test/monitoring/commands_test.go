package monitoring

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

var (
	// shellText matches a block of commands and its indentation, or a command within a sentence.
	shellText = regexp.MustCompile("(?ms)^( *)```sh\n(.*?)^ *```$|`(kubectl [^`]*)`")
	// aboutRequests matches commands that list, decide or delete requests, or read what a requester wrote elsewhere.
	aboutRequests = regexp.MustCompile(`kubectl (?:get|describe|delete) csr\b(?:[^-]|$)|kubectl certificate |kubectl csr (?:pending|explain|approve|check)|get events|AUDIT_LOG`)
	// needsMore matches what this test does not have: an installation, a node, and a person at the terminal.
	needsMore = regexp.MustCompile(`rollout|openssl|journalctl|kubeadm|kubectl create |kubectl delete (?:node|-k)| edit |make |kubectl wait `)
	// placeholder matches the words that a reader replaces.
	placeholder = regexp.MustCompile(`\b(?:NAME|UID|ID|NODE|SIGNER|CERTIFICATE|AUDIT_LOG|APISERVER_AUDIT_LOG)\b`)
)

// fromObject matches shell words, and output for a terminal, that are made from fields of objects.
var fromObject = regexp.MustCompile(`\bxargs\b|\bjq (?:-\w+ )*-\w*r|\bwhile read|\$\(kubectl |get (?:csr|events)\b.*-o ?(?:name|jsonpath|custom-columns|go-template)`)

// control matches the characters that control a terminal, except tab and line feed.
var control = regexp.MustCompile(`[\x00-\x08\x0b-\x1f\x7f-\x{9f}]`)

// signer is that of all requests of the test.
const signer = certificatesv1.KubeletServingSignerName

// certificateSHA256 is the digest of a certificate in the audit log of the test.
const certificateSHA256 = "0b5f2c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852be1"

// TestNoShellWordFromObjects reads every command of the pages, the alerts and the chart's notes.
func TestNoShellWordFromObjects(t *testing.T) {
	// The API server permits only harmless names of Pods, grep selects the addresses, and a user escapes his own
	// name. The last line is a warning.
	permitted := []string{
		`for pod in $(kubectl -n $ns get pods -l app.kubernetes.io/name=csr-controller-manager -o name); do`,
		`curl -skI "$(kubectl config view --minify -o jsonpath='{.clusters[0].cluster.server}')/healthz" | grep -i ^date; date -u`,
		`while read -r address; do`,
		`user=$(kubectl auth whoami -o jsonpath='{.status.userInfo.username}' | sed 's,[/+\],\\&,g')`,
		"Never use `xargs`, `$(kubectl …)` or `jq -r` with names, users or subjects: the requester's text becomes a flag or a command, or controls your",
	}
	for _, line := range []string{
		`kubectl get csr -o json | jq -r '.items[].metadata.name' | xargs kubectl delete csr`,
		`for name in $(kubectl get csr -o name); do`,
		`kubectl get csr -o jsonpath='{.items[*].metadata.name}'`,
		`grep '"event":"Signed"' AUDIT_LOG | jq -rs '.[].subject'`,
		`oc get csr -o go-template='{{range .items}}{{.metadata.name}}{{"\n"}}{{end}}' | xargs --no-run-if-empty oc adm certificate approve`,
	} {
		kit.Check(t, fromObject.MatchString(line), "not found: %s", line)
	}
	for page, text := range pages(t) {
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			line, _, isFile := strings.Cut(line, ` -o jsonpath='{.status.certificate}' | base64 -d >`) // a PEM text into a file
			kit.Check(t, isFile || !fromObject.MatchString(line) || slices.Contains(permitted, line), "%s: %s", page, line)
		}
	}
}

// pages returns the texts with commands for an operator, by their paths.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{
		"README.md", "SECURITY.md", "docs/*.md", "docs/runbooks/*.md", "docs/how-to/*.md", "docs/reference/*.md", "docs/explanation/*.md",
		"config/prometheus/alerts.yaml", "charts/*/README.md", "charts/*/templates/NOTES.txt",
	} {
		files := kit.Must(filepath.Glob(filepath.Join("../..", pattern)))(t)
		kit.Require(t, len(files) > 0, "no %s", pattern)
		for _, file := range files {
			texts[strings.TrimPrefix(file, "../../")] = string(read(t, file))
		}
	}
	return texts
}

// TestCommandsMeetHostileNames runs each command about requests in bash, with the real kubectl, plugin and jq, while a stranger
// has requests whose names are flags, commands, other users' requests, and control characters. A command may change what it is
// meant for and nothing else, kubectl may connect only to the API server of its kubeconfig, and no control character may reach
// the terminal.
func TestCommandsMeetHostileNames(t *testing.T) {
	kit.Alone(t)
	l := newHostileLab(t)
	want := map[string][]string{ // by the part of a command that changes requests
		"kubectl delete --wait=false -f -": l.deleted(l.strangers),
		"kubectl certificate deny -f -":    {`Denied "--all"`},
		"kubectl certificate approve NAME": {`Approved "target"`},
		"kubectl certificate deny NAME":    {`Denied "target"`},
	}
	commands, changing := 0, 0
	all := pages(t)
	for _, page := range slices.Sorted(maps.Keys(all)) {
		for _, match := range shellText.FindAllStringSubmatch(all[page], -1) {
			text := strings.ReplaceAll("\n"+match[2], "\n"+match[1], "\n")[1:] + match[3]
			if !aboutRequests.MatchString(text) || needsMore.MatchString(text) {
				continue
			}
			var wanted []string
			for part, changes := range want {
				if strings.Contains(text, part) {
					wanted = changes
				}
			}
			commands++
			if len(wanted) > 0 {
				changing++
			}
			output, changes := l.run(t, text)
			kit.Equal(t, page+": changes of\n"+text, changes, wanted)
			found := control.FindString(output)
			kit.Check(t, found == "", "%s: %q reaches the terminal:\n%s\n%q", page, found, text, output)
			isASCII := !strings.ContainsFunc(output, func(r rune) bool { return r > 0x7e })
			kit.Check(t, isASCII || !strings.Contains(text, "jq "), "%s: jq without -a:\n%s\n%q", page, text, output)
		}
	}
	kit.Check(t, commands >= 35 && changing >= 4, "ran only %d commands, of which %d change requests", commands, changing)
	kit.Equal(t, "files that a name has made", kit.Must(os.ReadDir(l.dir))(t), []os.DirEntry{})
	select {
	case from := <-l.strayed:
		t.Errorf("kubectl connected to the server that a name says, from %s", from)
	default:
	}
}

// hostileLab is a control plane with requests of a stranger, whose names are hostile, and of others.
type hostileLab struct {
	requests  map[string]*kit.Request // as created, by name
	strangers []string                // the names of the stranger's requests
	values    map[string]string       // of placeholders
	dir       string                  // the working directory of the commands
	env       []string
	admin     client.Client
	strayed   chan net.Addr // a connection to the server that a name says
}

func newHostileLab(t *testing.T) *hostileLab {
	t.Helper()
	programs, logs := t.TempDir(), t.TempDir()
	l := &hostileLab{requests: map[string]*kit.Request{}, dir: t.TempDir(), admin: kit.Admin(t), strayed: make(chan net.Addr, 1)}
	listener := kit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	kit.AtEnd(t, listener.Close)
	go func() {
		if conn, err := listener.Accept(); err == nil {
			l.strayed <- conn.RemoteAddr()
			_ = conn.Close()
		}
	}()
	kit.NoError(t, errors.Join(
		os.Symlink(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), filepath.Join(programs, "kubectl")),
		os.Symlink(kit.Must(cluster.Plugin())(t), filepath.Join(programs, "kubectl-csr"))))
	l.env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"), "KUBECONFIG="+kit.Kubeconfig(t, "hostile", kit.ControlPlane(t).Config),
		"KUBECACHEDIR="+t.TempDir())

	l.strangers = []string{
		"--all", "-A", "-f", "--", "--server=" + listener.Addr().String(), "-l=a", "*", "victim\nx", "x\nvictim", "x y\tz", "nul\x00", "quote's", `double"s`,
		"back\\slash", "$(touch made)", "`touch made`", "; touch made", "'; touch made; '", "\x1b]0;title\x07\x1b[31mred", "\u009b31mred", "\u202ecod",
	}
	for _, user := range []string{"stranger", "joiner"} {
		kit.Grant(t, user, kit.MayCreate)
	}
	for _, name := range append([]string{"target", "victim", "approved"}, l.strangers...) {
		l.create(t, name)
	}
	kit.Approve(t, l.requests["approved"])
	l.values = map[string]string{
		"NAME": "target", "ID": "07401b", "NODE": "w1", "SIGNER": signer, "CERTIFICATE": certificateSHA256,
		"AUDIT_LOG": filepath.Join(logs, "audit.log"), "APISERVER_AUDIT_LOG": filepath.Join(logs, "apiserver.log"),
	}
	l.writeLogs(t)
	return l
}

// create creates the request called name again.
func (l *hostileLab) create(t *testing.T, name string) {
	t.Helper()
	user := "joiner"
	if slices.Contains(l.strangers, name) {
		user = "stranger"
	}
	l.requests[name] = kit.CreateRequest(t, kit.As(t, user), kit.NodeRequest(t, "w1", func(obj *kit.Request) {
		obj.Name, obj.GenerateName, obj.Spec.SignerName = name, "", signer
		obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: []string{csr.NodeGroup}}})
	}))
}

// writeLogs writes records about each request to the audit logs of the manager and of the API server, and Events.
func (l *hostileLab) writeLogs(t *testing.T) {
	t.Helper()
	out := kit.Must(audit.Open(audit.Options{Path: l.values["AUDIT_LOG"]}))(t)
	now := time.Now()
	for name, obj := range l.requests {
		record := audit.Of(obj, kit.Must(csr.Parse(obj))(t))
		record.Verdict = "Approve"
		out.Write(t.Context(), now, audit.Decided, record)
		record.CertificateSHA256, record.Requester.CredentialIDs = certificateSHA256, []string{"JTI=" + name}
		record.NotBefore, record.NotAfter = now, now.Add(time.Hour)
		out.Write(t.Context(), now, audit.Signed, record)
		const spoof = "\x1b[2J\x1b[3J\x1b[1;1H\x1b[m spoofed \u009b2J\b\b\a" // kubernetes/kubernetes#101695, and what kubectl does not escape
		for _, reason := range []string{"NodeBlocked", "SANContested", "LifetimeCut"} {
			kit.Create(t, l.admin, &corev1.Event{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "hostile-", Namespace: "default"}, Reason: reason, Message: name + spoof, Type: "Warning",
				InvolvedObject: corev1.ObjectReference{Kind: "CertificateSigningRequest", Name: name, UID: obj.UID},
			})
		}
	}
	kit.Write(t, l.values["APISERVER_AUDIT_LOG"], []byte(`{"requestReceivedTimestamp":"2026-11-28T00:00:00Z","sourceIPs":["192.0.2.1"],`+
		`"user":{"username":"\u001b[31mred","groups":["system:masters"]}}`+"\n"))
}

// run runs text with values for its placeholders. It returns the output, and how requests were changed, and undoes the changes.
// The commands with jq must succeed: they find something. Only logs are empty: there is no Pod.
func (l *hostileLab) run(t *testing.T, text string) (output string, changes []string) {
	t.Helper()
	l.values["UID"] = string(l.requests["--all"].UID)
	script := placeholder.ReplaceAllStringFunc(text, func(word string) string { return l.values[word] })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\n"+script)
	shell.Dir, shell.Env = l.dir, l.env
	all, err := shell.CombinedOutput()
	kit.Check(t, err == nil || !strings.Contains(text, "jq ") || strings.Contains(text, " logs "), "%v\n%s\n%s", err, script, all)

	var list certificatesv1.CertificateSigningRequestList
	kit.NoError(t, l.admin.List(t.Context(), &list))
	left := map[types.UID]kit.Request{}
	for _, obj := range list.Items {
		left[obj.UID] = obj
	}
	for _, name := range slices.Sorted(maps.Keys(l.requests)) {
		obj, found := left[l.requests[name].UID]
		switch {
		case !found:
			changes = append(changes, l.deleted([]string{name})...)
		case name != "approved" && len(obj.Status.Conditions) > 0:
			changes = append(changes, fmt.Sprintf("%s %q", obj.Status.Conditions[0].Type, name))
			kit.NoError(t, l.admin.Delete(t.Context(), &obj))
		default:
			continue
		}
		l.create(t, name)
	}
	return string(all), changes
}

// deleted returns the changes that a deletion of the requests called names is.
func (l *hostileLab) deleted(names []string) (changes []string) {
	for _, name := range slices.Sorted(slices.Values(names)) {
		changes = append(changes, fmt.Sprintf("deleted %q", name))
	}
	return changes
}
