package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/spf13/cobra"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/authz"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/verdict"
)

// checkTimeout bounds all calls to the API server together.
const checkTimeout = time.Minute

// NewCheckCommand returns the command that checks what the manager depends on, or where a node's certificate is stuck.
func NewCheckCommand(source Source) *cobra.Command {
	node := ""
	cmd := &cobra.Command{
		Use:   "check [--node NAME]",
		Short: "Look whether everything around the manager is as it must be",
		Long: `check says whether everything around the manager is as it must be: its rights, the kubelets' rights, the trust
in its CA, the authorities of its signers, and whether a manager runs;
with --node, where the certificate of that node is stuck. The rights are those of whoever asks. Give it the manager's
configuration (--config, --signing-secret, ...). It changes nothing. The exit code is 1 unless all is well.`,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              MaxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
			defer cancel()
			setup, err := source.Setup(ctx, cmd)
			if err != nil {
				return err
			}
			configuration := setup.Configuration
			if !cmd.Flags().Changed("audit-log-path") {
				configuration.Audit.Path = "" // a running manager may have the file open, and rotates it
			}
			ctx = log.IntoContext(ctx, NewLogger(configuration.Verbosity, os.Stderr)) // it records every trust probe
			server, err := connect(ctx, source, cmd)
			if err != nil {
				return err
			}
			c, err := newChecker(ctx, server, configuration)
			if err != nil {
				return err
			}
			if node != "" {
				return c.node(ctx, node, cmd.OutOrStdout())
			}
			return c.all(ctx, cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&node, "node", "", "`name` of a node: go through the four steps of its client certificate instead")
	source.Bind(cmd, Configuration)
	return cmd
}

// checker asks the API server with the rights of the user who runs the command.
type checker struct {
	server
	configuration *config.Configuration
	options       controllers.Options
	trust         check.Trust
	cas           []check.CA       // that the API server must trust
	unread        map[string]error // why a signer's CA could not be read
	now           time.Time
}

func newChecker(ctx context.Context, server server, configuration *config.Configuration) (*checker, error) {
	options, err := controllers.FromConfiguration(configuration)
	if err != nil {
		return nil, err
	}
	c := &checker{
		server: server, configuration: configuration, options: options, now: server.clock.Now(),
		trust: check.Trust{Reader: server.api, Cluster: server.config, Audit: options.Audit},
	}
	if options.Approver != nil {
		options.Approver.Clock, options.Approver.Authorizer = server.clock, authz.SubjectAccess{Client: server.api}
	}
	options.ReadBlockList(ctx, server.api)
	if options.Signer == nil {
		return c, nil
	}
	options.Signer.Clock = server.clock
	if c.unread, err = options.Signer.ReadOnce(ctx, server.api); err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	c.cas = controllers.ClientCAs(options.Signer, c.now)
	for i := range c.cas {
		c.cas[i].Err = cmp.Or(c.unread[c.cas[i].Signers[0]], c.cas[i].Err)
	}
	if len(options.Signer.Signers) == 0 {
		const none = "the configuration names none: give --config, --signing-secret or the files of the manager"
		c.cas = []check.CA{{Signers: []string{"Kubernetes' signers"}, Err: errors.New(none)}}
	}
	return c, nil
}

// all makes every check of the manager.
func (c *checker) all(ctx context.Context, out io.Writer) error {
	rights, err := controllers.Rights(c.configuration, controllers.LeaseNamespace(c.configuration))
	if err != nil {
		return err
	}
	results := check.Rights(ctx, c.api, rights)
	if c.options.Approver != nil {
		groups := c.configuration.SelfCheck
		results = append(results, check.Kubelets(ctx, c.api, groups.BootstrapGroups, groups.NodeGroups)...)
	}
	results = append(results, c.trust.CAs(ctx, c.cas, c.now)...)
	results = append(results, c.authorities(ctx)...)
	results = append(results, c.running(ctx)...)
	heading := fmt.Sprintf("Asked %s as %s: %s and %s are this user's.",
		c.config.Host, c.whoAmI(ctx), check.OwnRights, check.OptionalRights)
	if err := writeResults(out, heading, results); err != nil {
		return err
	}
	count := map[check.Status]int{}
	for _, result := range results {
		count[result.Status]++
	}
	switch {
	case count[check.Failed] > 0:
		return fmt.Errorf("check: %d failed, %d unknown", count[check.Failed], count[check.Unknown])
	case count[check.Unknown] > 0:
		return fmt.Errorf("check: nothing failed, but %d could not be found out", count[check.Unknown])
	default:
		return nil
	}
}

// installed is the namespace of the shipped manifests.
const installed = "csr-controller-manager-system"

// running checks whether a manager runs. Without leader election nothing shows it.
func (c *checker) running(ctx context.Context) []check.Result {
	election := c.configuration.LeaderElection
	if !election.Enabled {
		return nil
	}
	leases := []types.NamespacedName{
		{Namespace: controllers.LeaseNamespace(c.configuration), Name: election.ResourceName},
	}
	if election.ResourceNamespace == "" && leases[0].Namespace != installed { // the command may run outside of the cluster
		leases = append(leases, types.NamespacedName{Namespace: installed, Name: election.ResourceName})
	}
	pause := 2*election.RetryPeriod.Duration + time.Second
	return check.Running{Reader: c.api, Leases: leases, Pause: pause, Clock: c.clock}.Check(ctx)
}

// whoAmI returns the name of the caller.
func (c *checker) whoAmI(ctx context.Context) string {
	review := &authenticationv1.SelfSubjectReview{}
	if err := c.api.Create(ctx, review); err != nil {
		return fmt.Sprintf("somebody unknown (%v)", err)
	}
	return review.Status.UserInfo.Username
}

// writeResults writes heading and a row for each of results, with the next step below its evidence.
func writeResults(out io.Writer, heading string, results []check.Result) error {
	rows := [][]string{{"CHECK", "WHAT", "STATUS", "EVIDENCE AND NEXT STEP"}}
	for _, result := range results {
		rows = append(rows, []string{result.Check, result.Subject, string(result.Status), result.Evidence})
		if result.NextStep != "" {
			rows = append(rows, []string{"", "", "", "-> " + result.NextStep})
		}
	}
	if _, err := io.WriteString(out, heading+"\n\n"); err != nil {
		return err
	}
	return writeTable(out, rows)
}

// node finds out where the certificate of one node is stuck.
func (c *checker) node(ctx context.Context, name string, out io.Writer) error {
	results := check.Node{
		Name: name, Reader: c.api, Trust: c.trust, BootstrapGroups: c.configuration.SelfCheck.BootstrapGroups, CAs: c.cas,
		RequestLimits: c.options.RequestLimits,
		Approve:       c.approve, Issue: c.issue,
	}.Check(ctx, c.now)
	heading := fmt.Sprintf("Node %s, asked %s as %s.", name, c.config.Host, c.whoAmI(ctx))
	if err := writeResults(out, heading, results); err != nil {
		return err
	}
	if stuck := check.Stuck(results); stuck != nil {
		return fmt.Errorf("check: node %s: %s is %s", name, stuck.Check, stuck.Status)
	}
	return nil
}

// approve returns what the approver would do.
func (c *checker) approve(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) check.Opinion {
	if c.options.Approver == nil {
		return check.Opinion{}
	}
	_, decision, err := c.options.Approver.Decide(ctx, obj)
	does := decision.Verdict == verdict.Approve
	return check.Opinion{Does: does, Reason: decision.Reason, Message: decision.Message, Err: err}
}

// issue returns what the signer would do.
func (c *checker) issue(obj *certificatesv1.CertificateSigningRequest) check.Opinion {
	if c.options.Signer == nil {
		return check.Opinion{}
	}
	name := obj.Spec.SignerName
	if _, served := c.options.Signer.Signers[name]; !served {
		return check.Opinion{}
	}
	judged := c.options.Signer.Judge(obj, c.now)
	if err := c.unread[name]; err != nil && judged.Authority == nil && judged.Reason == "CAMissing" {
		return check.Opinion{Err: err}
	}
	return check.Opinion{Does: judged.Authority != nil, Reason: judged.Reason, Message: judged.Sentence(name)}
}

// authorities compares the served signers with those of the SigningAuthority of their Secret. A signer that no
// authority names is approved for, and never signed for.
func (c *checker) authorities(ctx context.Context) []check.Result {
	served := controllers.GuardedSigners(c.configuration)
	if len(served) == 0 {
		return nil
	}
	list := &v1alpha1.SigningAuthorityList{}
	if err := c.api.List(ctx, list); err != nil {
		if apierrors.IsForbidden(err) && !c.configuration.Enabled(config.RotationController) {
			return nil // a signer without the rotation may not list them, and need not
		}
		result := check.Result{
			Check: check.Authorities, Subject: "SigningAuthorities", Status: check.Unknown,
			Evidence: check.ReadError("list signingauthorities", err),
			NextStep: "ask as one who may list them, once the API server answers",
		}
		if meta.IsNoMatchError(err) {
			result.Status, result.NextStep = check.Failed, "kubectl apply -k config/rotation"
			result.Evidence = "the API server has no such objects, and rotation.enabled signs for nobody without them"
		}
		return []check.Result{result}
	}
	var results []check.Result
	for _, signer := range served {
		results = append(results, compareAuthorities(signer, list.Items))
	}
	return results
}

// compareAuthorities reports whether an authority of the signer's Secret names the signer.
func compareAuthorities(served controllers.GuardedSigner, authorities []v1alpha1.SigningAuthority) check.Result {
	result := check.Result{Check: check.Authorities, Subject: served.Signer, Status: check.Failed}
	secret := v1alpha1.SecretReference{Namespace: served.Secret.Namespace, Name: served.Secret.Name}
	var names []string // of the authorities of its Secret
	for i := range authorities {
		authority := &authorities[i]
		if authority.Spec.Secret != secret {
			continue
		}
		names = append(names, authority.Name)
		if slices.Contains(authority.Spec.Signers, served.Signer) {
			result.Status = check.OK
			result.Evidence = fmt.Sprintf("SigningAuthority %s of Secret %s names it", authority.Name, served.Secret)
		}
	}
	switch {
	case result.Status == check.OK:
	case len(names) == 0:
		result.Evidence = fmt.Sprintf("no SigningAuthority has its Secret %s: it is never signed for (CANotProven)",
			served.Secret)
		result.NextStep = "make one for that Secret, which names the signer in spec.signers: docs/reference/rotation.md"
	default:
		result.Evidence = fmt.Sprintf("SigningAuthority %s of Secret %s does not name it in spec.signers: "+
			"it is never signed for (CANotProven)", strings.Join(names, ", "), served.Secret)
		result.NextStep = "make an authority with a Secret of its own and spec.from, as docs/reference/rotation.md says, " +
			"or stop serving it"
		switch served.Signer {
		case certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName:
			result.NextStep = "add it to spec.signers: it is signed for at once if API servers verify another signer there"
		}
	}
	return result
}
