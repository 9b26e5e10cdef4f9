package commands

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
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

// bootstrapTokenCommand returns the command that prints a bootstrap token for one node.
func bootstrapTokenCommand(clock clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bootstrap-token --node NAME",
		Short: "Print a bootstrap token for one node",
		Long: `bootstrap-token prints a Secret with a new bootstrap token for one node. Pipe it into kubectl create -f -.
The command does not contact the cluster. It prints the token itself to standard error, as a comment.`,
		Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	node := flags.String("node", "", "`name` of the node that may use it, as the kubelet names itself")
	_ = cmd.MarkFlagRequired("node") // the flag exists
	ttl := flags.Duration("ttl", time.Hour, "`time` from now until the token expires")
	kubeadm := flags.Bool("kubeadm", false, "add the group "+kubeadmGroup+", which kubeadm join needs")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if found := validation.IsDNS1123Subdomain(*node); len(found) > 0 {
			return fmt.Errorf("--node: %q is not a valid node name: %s", *node, strings.Join(found, "; "))
		}
		if *ttl < time.Second {
			return fmt.Errorf("--ttl: %s is too short: use 1s or more", *ttl)
		}
		token, err := bootstraputil.GenerateBootstrapToken()
		if err != nil {
			return err
		}
		groups := csr.TokenGroup(*node)
		if *kubeadm {
			groups += "," + kubeadmGroup
		}
		text, err := yaml.Marshal(tokenSecret(token, *node, groups, clock.Now().Add(*ttl)))
		if err != nil {
			return err
		}
		if _, err := cmd.OutOrStdout().Write(text); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "# %s is the token of node %s for %s, once the Secret has been created.\n", token, *node, *ttl)
		return err
	}
	return cmd
}

// tokenSecret returns the Secret of token in the form that the API server's authenticator reads
// (plugin/pkg/auth/authenticator/token/bootstrap).
func tokenSecret(token, node, groups string, end time.Time) *corev1.Secret {
	id, secret, _ := strings.Cut(token, ".")
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: bootstraputil.BootstrapTokenSecretName(id)},
		Type:       bootstrapapi.SecretTypeBootstrapToken,
		StringData: map[string]string{
			bootstrapapi.BootstrapTokenIDKey:               id,
			bootstrapapi.BootstrapTokenSecretKey:           secret,
			bootstrapapi.BootstrapTokenDescriptionKey:      "Bootstrap token for node " + node,
			bootstrapapi.BootstrapTokenExpirationKey:       end.UTC().Format(time.RFC3339),
			bootstrapapi.BootstrapTokenUsageAuthentication: "true",
			bootstrapapi.BootstrapTokenUsageSigningKey:     "true",
			bootstrapapi.BootstrapTokenExtraGroupsKey:      groups,
		},
	}
}
