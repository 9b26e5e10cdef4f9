package commands

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// kubeadmGroup is what kubeadm lets read what a node needs for kubeadm join.
const kubeadmGroup = "system:bootstrappers:kubeadm:default-node-token"

const bootstrapTokenHelp = `bootstrap-token prints a Secret with a new bootstrap token for one node, to be piped into kubectl create -f -. Nothing is
sent anywhere. The token itself goes to standard error, as a comment.

Usage: csr-controller-manager bootstrap-token --node NAME [flags]

`

// tokenOptions are the flags of bootstrap-token.
type tokenOptions struct {
	node, description string
	ttl               time.Duration
	kubeadm, rbac     bool
}

// BootstrapToken prints a token that is bound to one node.
func BootstrapToken(_ context.Context, args []string, out io.Writer) error {
	return bootstrapToken(args, clock.RealClock{}, out, ascii.LinesWriter(os.Stderr))
}

func bootstrapToken(args []string, clock clock.PassiveClock, out, aside io.Writer) error {
	options, err := tokenFlags(args, out)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return fmt.Errorf("bootstrap-token (--help lists the flags): %w", err)
	}
	id, secret := randomText(6), randomText(16)
	objs := []any{options.secret(id, secret, clock.Now().Add(options.ttl))}
	if options.rbac {
		objs = append(objs, options.binding("join", "system:node-bootstrapper"),
			options.binding("approve", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"))
	}
	for i, obj := range objs {
		text, err := yaml.Marshal(obj)
		if err != nil {
			return err
		}
		if i > 0 {
			text = append([]byte("---\n"), text...)
		}
		if _, err := out.Write(text); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintf(aside, "# %s.%s is the token of node %s for %s, once the Secret has been created.\n", id, secret, options.node, options.ttl)
	return err
}

func tokenFlags(args []string, out io.Writer) (tokenOptions, error) {
	options := tokenOptions{}
	set := flag.NewFlagSet("bootstrap-token", flag.ContinueOnError)
	set.StringVar(&options.node, "node", "", "`name` of the node that may use it, as the kubelet will call itself")
	set.DurationVar(&options.ttl, "ttl", time.Hour, "`time` until it ends, from now on")
	set.StringVar(&options.description, "description", "", "`text` for people (default Bootstrap token for node NAME)")
	set.BoolVar(&options.kubeadm, "kubeadm", false, "add the group "+kubeadmGroup+", which kubeadm join needs")
	set.BoolVar(&options.rbac, "rbac", false, "print the ClusterRoleBindings that let the node's group ask for a certificate and have it approved")
	rest, err := parse(set, args, bootstrapTokenHelp, out)
	if err != nil {
		return options, err
	}
	problems := []error{atMost(0, rest)}
	if options.node == "" {
		problems = append(problems, errors.New("--node: say which node"))
	} else if found := validation.IsDNS1123Subdomain(options.node); len(found) > 0 {
		problems = append(problems, fmt.Errorf("--node: %q is no node's name: %s", options.node, strings.Join(found, "; ")))
	}
	if options.ttl < time.Second {
		problems = append(problems, fmt.Errorf("--ttl: %s is too short", options.ttl))
	}
	if options.description == "" {
		options.description = "Bootstrap token for node " + options.node
	}
	return options, errors.Join(problems...)
}

// alphabet is that of tokens (k8s.io/cluster-bootstrap, BootstrapTokenPattern).
const alphabet = "0123456789abcdefghijklmnopqrstuvwxyz"

func randomText(length int) string {
	const even = 256 - 256%len(alphabet) // a byte below it makes every character as likely as any other
	text := make([]byte, 0, length)
	for len(text) < length {
		var one [1]byte
		_, _ = rand.Read(one[:]) // never fails
		if at := int(one[0]); at < even {
			text = append(text, alphabet[at%len(alphabet)])
		}
	}
	return string(text)
}

// secret is the token as the API server's authenticator reads it (plugin/pkg/auth/authenticator/token/bootstrap).
func (o tokenOptions) secret(id, secret string, end time.Time) *corev1.Secret {
	groups := csr.TokenGroup(o.node)
	if o.kubeadm {
		groups += "," + kubeadmGroup
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": id, "token-secret": secret, "description": o.description,
			"expiration":                     end.UTC().Format(time.RFC3339),
			"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": groups,
		},
	}
}

// binding gives role to the node's group.
func (o tokenOptions) binding(purpose, role string) *rbacv1.ClusterRoleBinding {
	group := csr.TokenGroup(o.node)
	return &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: group + ":" + purpose},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
}
