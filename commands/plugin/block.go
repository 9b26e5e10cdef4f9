package plugin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/retry"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/internal/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

const (
	// blockListPage says how API servers come to follow the block list.
	blockListPage = "docs/how-to/revoke-a-credential.md"
	masters       = "system:masters"
	// notMasters says why nothing of the group masters can be blocked.
	notMasters = "API servers never ask about the group " + masters + ": only a new CA stops its certificates"
)

// block puts an entry on the block list, or removes it.
type block struct {
	*cluster
	remove, node, user, force, yes bool
	certificate                    string // a file
	timeout                        time.Duration
	aside                          io.Writer

	list            types.NamespacedName
	what, key, line string            // what the entry is, its key in the list, and the line that names it
	who             csr.Requester     // a user whom an API server refuses because of the entry
	cert            *x509.Certificate // nil unless the entry is one
	me              csr.Requester
}

// blockCommand returns the command block or unblock.
func blockCommand(connect connector, verb, short string) *cobra.Command {
	b := &block{remove: verb == "unblock"}
	cmd := &cobra.Command{
		Use: verb + " {NAME [--node | --user] | --certificate FILE}", Short: short, Args: cobra.MaximumNArgs(1),
		Long: `block shows what API servers will refuse, asks, and adds a line to the block list, with your rights. unblock asks, and removes
each line that names the same. Both wait until each API server follows the list. NAME is a node if there is a Node of that name,
and a user if no Node can have it. The exit code is 1 if an API server does not follow, and for block if none is known to.`,
	}
	list := cmd.Flags().String("block-list", blockListName, "`name` of the ConfigMap, in the namespace of the manager or as namespace/name")
	cmd.Flags().BoolVar(&b.node, "node", false, "NAME is a node")
	cmd.Flags().BoolVar(&b.user, "user", false, "NAME is a user")
	cmd.Flags().StringVar(&b.certificate, "certificate", "", "`file` with a certificate: PEM, DER, or the kubeconfig of one user")
	cmd.Flags().BoolVar(&b.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&b.force, "force", false, "block also what you or the cluster need")
	cmd.Flags().DurationVar(&b.timeout, "timeout", time.Minute, "longest `time` to wait for the API servers")
	cmd.MarkFlagsMutuallyExclusive("node", "user", "certificate")
	cmd.RunE = run(connect, func(cmd *cobra.Command, c *cluster, args []string) error {
		if (len(args) == 0) == (b.certificate == "") {
			return errors.New("give a NAME, or --certificate FILE")
		}
		b.cluster, b.list, b.aside = c, c.listName(*list), cmd.ErrOrStderr()
		if err := b.find(cmd.Context(), strings.Join(args, "")); err != nil {
			return err
		}
		if err := b.edit(cmd.Context(), cmd.InOrStdin()); err != nil {
			return err
		}
		return b.follow(cmd.Context())
	})
	return cmd
}

// find sets what the command line names.
func (b *block) find(ctx context.Context, name string) (err error) {
	b.what, b.key, b.who = "user", entries.UsersKey, csr.Requester{Username: name}
	if slices.Contains(entries.Essential(), name) {
		b.key = entries.ForcedUsersKey
	}
	node, isNode := strings.CutPrefix(name, csr.NodeUserPrefix)
	if isNode = isNode || b.node; !isNode && !b.user && b.certificate == "" && len(validation.IsDNS1123Subdomain(name)) == 0 {
		if _, err := b.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("there is no Node of that name that you may see: add --node or --user: %w", err)
		}
		isNode = true
	}
	switch {
	case isNode:
		name, b.what, b.key, b.who.Username = node, "node", entries.NodesKey, csr.NodeUserPrefix+node
	case b.certificate != "":
		if b.cert, err = certificateIn(b.certificate); err != nil {
			return err
		}
		name = fmt.Sprintf("%x", sha256.Sum256(b.cert.Raw))
		b.what, b.key, b.who.Username = "certificate", entries.CertificatesKey, entries.CanaryPrefix+"holder"
		b.who.Extra = map[string]certificatesv1.ExtraValue{csr.CredentialIDKey: {csr.CertificateIDPrefix + name}}
	}
	b.what += " " + strconv.QuoteToASCII(csr.ShortenTo(name, csr.MaxName))
	if b.line = name; name == "" || check.Word(name) != name {
		text, _ := json.Marshal(name) // a string
		b.line = string(ascii.JSON(text))
	}
	return nil
}

// certificateIn returns the first certificate in a file: PEM, DER, or the kubeconfig of one user.
func certificateIn(file string) (*x509.Certificate, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if config, err := clientcmd.Load(data); err == nil && len(config.AuthInfos) == 1 {
		for _, user := range config.AuthInfos {
			data = user.ClientCertificateData
		}
	}
	certs, err := ca.ParseCertificates(data)
	if len(certs) == 0 {
		certs, err = x509.ParseCertificates(data)
	}
	if err != nil || len(certs) == 0 {
		return nil, fmt.Errorf("%s holds no certificate in PEM or DER: %w", file, cmp.Or(err, errors.New("it is empty")))
	}
	return certs[0], nil
}

// edit changes the list, after a person has confirmed it.
func (b *block) edit(ctx context.Context, in io.Reader) (err error) {
	if b.me, err = b.self(ctx); err != nil && !b.force {
		return fmt.Errorf("find out who you are: %w; --force goes on without it", err)
	}
	_, changes, err := b.change(ctx)
	if err != nil {
		return err
	}
	if !b.remove {
		b.show(ctx)
	}
	switch {
	case !changes:
		_, _ = fmt.Fprintf(b.aside, "The block list needs no change.\n")
	case !b.yes && !confirmed(in, b.aside, map[bool]string{true: "Unblock ", false: "Block "}[b.remove]+b.what):
		return errors.New("the block list is unchanged: you did not confirm it")
	}
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		obj, changes, err := b.change(ctx) // the list may have changed meanwhile
		if err == nil && changes {
			_, err = b.CoreV1().ConfigMaps(b.list.Namespace).Update(ctx, obj, metav1.UpdateOptions{FieldManager: "kubectl-csr-block"})
		}
		return err
	})
}

// in reports whether list blocks the entry.
func (b *block) in(list entries.Entries) bool {
	return list.Check(&csr.Request{Requester: b.who}, "").Made()
}

// change returns the newest version of the list with the change, and whether it changes. All other lines stay as they are.
func (b *block) change(ctx context.Context) (obj *corev1.ConfigMap, changes bool, err error) {
	obj, before, err := b.readList(ctx, b.list)
	if err != nil || b.in(before) != b.remove {
		return obj, false, err
	}
	if b.remove {
		for key, text := range obj.Data {
			lines := slices.DeleteFunc(strings.SplitAfter(text, "\n"), func(line string) bool {
				only, _, _ := entries.Parse(map[string]string{entries.NodesKey: "", key: line})
				return b.in(only)
			})
			obj.Data[key] = strings.Join(lines, "")
		}
		return obj, true, nil
	}
	only, problems, _ := entries.Parse(map[string]string{entries.NodesKey: "", b.key: b.line})
	if !b.in(only) {
		return nil, false, fmt.Errorf("it can't hold %s: %s", b.what, strings.Join(problems, ""))
	}
	if why := b.objections(ctx, only, before); len(why) > 0 && !b.force {
		return nil, false, fmt.Errorf("%s is not blocked without --force: %s", b.what, strings.Join(why, "; "))
	}
	text := obj.Data[b.key]
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	by := strconv.QuoteToASCII(csr.Shorten(b.me.Username))
	obj.Data[b.key] = fmt.Sprintf("%s%s # by %s, %s\n", text, b.line, by, b.now().UTC().Format(time.RFC3339))
	return obj, true, nil
}

// objections returns why only the flag --force blocks the entry, of which only consists.
func (b *block) objections(ctx context.Context, only, blocked entries.Entries) (why []string) {
	if b.key == entries.ForcedUsersKey {
		why = append(why, "the cluster needs this user, and stops working without it")
	}
	if only.Check(&csr.Request{Requester: b.me}, "").Made() {
		why = append(why, "you use it yourself, and could not unblock it")
	}
	if b.cert != nil && slices.Contains(b.cert.Subject.Organization, masters) {
		why = append(why, notMasters)
	}
	left := sets.New[string]() // of the control plane
	err := each(ctx, b.CoreV1().Nodes().List, metav1.ListOptions{LabelSelector: "node-role.kubernetes.io/control-plane"}, func(node *corev1.Node) {
		left.Insert(node.Name)
	})
	switch left = left.Difference(blocked.Nodes); {
	case len(only.Nodes) == 0:
	case err != nil:
		why = append(why, "it is unknown whether it is the last control-plane node: "+err.Error())
	case left.Equal(only.Nodes):
		why = append(why, "it is the last control-plane node that is not blocked")
	}
	return why
}

// show writes what API servers will refuse, and what that does not end.
func (b *block) show(ctx context.Context) {
	var stored []string
	err := b.requests(ctx, metav1.ListOptions{}, func(obj *certificatesv1.CertificateSigningRequest) {
		certs, _ := ca.ParseCertificates(obj.Status.Certificate)
		if csr.StateOf(obj) != csr.Issued || obj.Spec.SignerName == certificatesv1.KubeletServingSignerName || len(certs) == 0 {
			return
		}
		sum := fmt.Sprintf("%x", sha256.Sum256(certs[0].Raw))
		if sum == b.line || certs[0].Subject.CommonName == b.who.Username {
			stored = append(stored, fmt.Sprintf("%s until %s, groups %.99q, request %s",
				sum, certs[0].NotAfter.UTC().Format(time.RFC3339), certs[0].Subject.Organization, cell(obj.Name)))
		}
	})
	_ = b.write(b.aside, false, nil, func(p *page) {
		p.title("API servers will refuse " + b.what)
		if b.key == entries.NodesKey {
			b.showNode(ctx, p)
		}
		if b.cert != nil {
			p.row("subject", quoted(ca.SubjectText(b.cert.Subject, csr.MaxName))...)
			p.row("valid until", p.moment(b.cert.NotAfter))
			p.row("weakness", "a thief can write the signature in another way: rather block the node or the user")
		}
		p.row("certificates", csr.ShortenAll(stored)...)
		if err != nil {
			p.row("unknown", err.Error())
		}
		p.title("It does not end")
		p.row("", "open watches until the time that their client asked for, open execs and port-forwards",
			"calls to a kubelet's port 10250 until its authorization cache ends, 5 minutes by default",
			"TokenReview elsewhere (Vault, clouds), and other clusters", notMasters)
		p.line("From now on, \"kubectl auth can-i --list\" is incomplete.")
	})
}

// showNode writes what is known about the node of the entry.
func (b *block) showNode(ctx context.Context, p *page) {
	p.row("Node", b.who.Username+", and the tokens of the Pods on it")
	if _, err := b.CoreV1().Nodes().Get(ctx, b.line, metav1.GetOptions{}); err != nil {
		p.row("unknown", err.Error())
	}
	pods, here := 0, metav1.ListOptions{FieldSelector: "spec.nodeName=" + b.line}
	if err := each(ctx, b.CoreV1().Pods(metav1.NamespaceAll).List, here, func(*corev1.Pod) { pods++ }); err != nil {
		p.row("unknown", "list pods: "+err.Error())
	}
	p.row("Pods", strconv.Itoa(pods)+", which go on running there, while replacements start elsewhere: a blocked node is a partition")
}

// follow waits until each API server follows the list.
func (b *block) follow(ctx context.Context) error {
	var problem error
	_ = wait.PollUntilContextTimeout(ctx, time.Second, b.timeout, true, func(ctx context.Context) (bool, error) {
		if err := b.enforced(ctx); ctx.Err() == nil || problem == nil { // otherwise the error is that the time is over
			problem = err
		}
		return problem == nil || apierrors.IsNotFound(problem), nil
	})
	text := b.what + map[bool]string{false: " is on the block list", true: " is not on the block list"}[b.remove]
	switch {
	case problem == nil:
		text += ", and each API server follows"
	case b.remove && apierrors.IsNotFound(problem): // it has stopped nothing but new certificates
		text += "; " + problem.Error()
	case apierrors.IsNotFound(problem):
		return fmt.Errorf("%s, but %w", text, problem)
	default:
		return fmt.Errorf("%s, but not each API server is known to follow after %s: %w; to wait again, repeat the command", text, b.timeout, problem)
	}
	_, err := fmt.Fprintf(b.aside, "%s.\n", text)
	return err
}

// enforced returns an error if one of the API servers is not known to follow the newest list. The API server that answers must also
// refuse what is blocked: others may be able to write what the manager publishes, and nothing refuses the user of write-authorization.
func (b *block) enforced(ctx context.Context) error {
	blocked, servers, err := b.servers(ctx, b.list)
	if blocked.Nodes != nil && b.in(blocked) == b.remove {
		return errors.New("somebody has changed it back")
	}
	for _, server := range servers {
		if server.Problem != "" {
			return errors.New(oneLine(csr.Shorten(server.Address) + ": " + csr.Shorten(server.Problem)))
		}
	}
	if err != nil || b.remove {
		return err
	}
	review := b.who.Review(authorizationv1.ResourceAttributes{Verb: "get", Resource: "namespaces"})
	answer, err := b.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	switch {
	case apierrors.IsForbidden(err):
		return nil // you may not ask
	case err == nil && !answer.Status.Denied:
		return fmt.Errorf("the one that answers you does not refuse %q; none refuses the user of write-authorization", b.who.Username)
	}
	return err
}

// listName returns the name of the block list that text names as [namespace/]name.
func (c *cluster) listName(text string) types.NamespacedName {
	namespace, name, found := strings.Cut(text, "/")
	if !found {
		namespace, name = cmp.Or(c.namespace, defaultNamespace), text
	}
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// readList returns the block list, and what it blocks.
func (c *cluster) readList(ctx context.Context, list types.NamespacedName) (obj *corev1.ConfigMap, blocked entries.Entries, err error) {
	if obj, err = c.CoreV1().ConfigMaps(list.Namespace).Get(ctx, list.Name, metav1.GetOptions{}); err == nil {
		blocked, _, err = entries.Parse(obj.Data)
	}
	if err != nil {
		err = fmt.Errorf("read block list %s: %w; to set it up, see %s", list, err, blockListPage)
	}
	return obj, blocked, err
}

// servers returns what the list blocks, and what the manager has published about each API server, at least one and at most entries.MostServers. The
// Problem of each says so if it is about another version of the list.
func (c *cluster) servers(ctx context.Context, list types.NamespacedName) (blocked entries.Entries, servers []entries.Server, err error) {
	if _, blocked, err = c.readList(ctx, list); err != nil {
		return blocked, nil, err
	}
	var found entries.Enforcement
	obj, err := c.CoreV1().ConfigMaps(list.Namespace).Get(ctx, list.Name+entries.StatusSuffix, metav1.GetOptions{})
	if err != nil {
		return blocked, nil, fmt.Errorf("no API server is known to follow the block list, which stops new certificates only: %w; see %s", err, blockListPage)
	}
	err = json.Unmarshal([]byte(obj.Data[entries.StatusKey]), &found)
	if all := len(found.Servers); err != nil || all == 0 || all > entries.MostServers {
		return blocked, nil, fmt.Errorf("ConfigMap %s%s names %d API servers: %w", list, entries.StatusSuffix, all, cmp.Or(err, errors.New("want 1 to 100")))
	}
	for i := range found.Servers {
		if found.Digest != blocked.Digest() {
			found.Servers[i].Problem = "the manager has not asked about this version of the list yet"
		}
	}
	return blocked, found.Servers, nil
}
