package commands

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"
	bootstraputil "k8s.io/cluster-bootstrap/token/util"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// kubeadmGroup is the group that kubeadm allows to read the configuration for kubeadm join.
const kubeadmGroup = "system:bootstrappers:kubeadm:default-node-token"

// tokenOptions are the flags of bootstrap-token.
type tokenOptions struct {
	node          string
	ttl           time.Duration
	kubeadm, rbac bool
}

// bootstrapTokenCommand returns the command that prints a bootstrap token for one node.
func bootstrapTokenCommand(clock clock.PassiveClock) *cobra.Command {
	o := tokenOptions{}
	cmd := &cobra.Command{
		Use:   "bootstrap-token --node NAME",
		Short: "Print a bootstrap token for one node",
		Long: `bootstrap-token prints a Secret with a new bootstrap token for one node. Pipe it into kubectl create -f -.
The command does not contact the cluster. It prints the token itself to standard error, as a comment.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&o.node, "node", "", "`name` of the node that may use it, as the kubelet names itself")
	flags.DurationVar(&o.ttl, "ttl", time.Hour, "`time` from now until the token expires")
	flags.BoolVar(&o.kubeadm, "kubeadm", false, "add the group "+kubeadmGroup+", which kubeadm join needs")
	flags.BoolVar(&o.rbac, "rbac", false,
		"also print the ClusterRoleBindings that let the node's group request a certificate and allow its approval")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := o.check(); err != nil {
			return err
		}
		token, err := bootstraputil.GenerateBootstrapToken()
		if err != nil {
			return err
		}
		objs := []any{o.secret(token, clock.Now().Add(o.ttl))}
		if o.rbac {
			objs = append(objs, o.binding("join", "system:node-bootstrapper"),
				o.binding("approve", "system:certificates.k8s.io:certificatesigningrequests:nodeclient"))
		}
		for _, obj := range objs {
			text, err := yaml.Marshal(obj)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "---\n%s", text); err != nil {
				return err
			}
		}
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "# %s is the token of node %s for %s, once the Secret has been created.\n",
			token, o.node, o.ttl)
		return err
	}
	return cmd
}

// check returns the first mistake in the command line.
func (o *tokenOptions) check() error {
	switch found := validation.IsDNS1123Subdomain(o.node); {
	case o.node == "":
		return errors.New("--node is missing: add the name of the node")
	case len(found) > 0:
		return fmt.Errorf("--node: %q is not a valid node name: %s", o.node, strings.Join(found, "; "))
	case o.ttl < time.Second:
		return fmt.Errorf("--ttl: %s is too short: use 1s or more", o.ttl)
	}
	return nil
}

// secret returns the Secret of token in the form that the API server's authenticator reads
// (plugin/pkg/auth/authenticator/token/bootstrap).
func (o *tokenOptions) secret(token string, end time.Time) *corev1.Secret {
	id, secret, _ := strings.Cut(token, ".")
	groups := csr.TokenGroup(o.node)
	if o.kubeadm {
		groups += "," + kubeadmGroup
	}
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               id,
			bootstrapapi.BootstrapTokenSecretKey:           secret,
			bootstrapapi.BootstrapTokenDescriptionKey:      "Bootstrap token for node " + o.node,
			bootstrapapi.BootstrapTokenExpirationKey:       end.UTC().Format(time.RFC3339),
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			bootstrapapi.BootstrapTokenUsageSigningKey:     "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey:      groups,
		},
	}
}

// binding returns a ClusterRoleBinding that grants role to the node's group.
func (o *tokenOptions) binding(purpose, role string) *rbacv1.ClusterRoleBinding {
	group := csr.TokenGroup(o.node)
	return &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: group + ":" + purpose},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
}
