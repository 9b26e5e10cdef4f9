package commands

import (
	"bytes"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/spf13/cobra"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/commands/explain"
	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

// checkTimeout bounds all calls to the API server together.
const checkTimeout = time.Minute

// checkOptions are the flags of check.
type checkOptions struct {
	node   string
	all    bool
	format *string
}

// NewCheckCommand returns the command that checks what the manager depends on, or where a node's certificate is stuck.
func NewCheckCommand(source Source) *cobra.Command {
	o := &checkOptions{}
	cmd := &cobra.Command{
		Use:   "check [--node NAME]",
		Short: "Check what the manager depends on, or why a node has no certificate",
		Long: `check asks the API server about everything that the manager depends on: the manager's rights, the kubelets'
rights, the trust in the CA, the authorities of the signers, and whether a manager runs. With --node it goes through the
steps of that node's certificate, and shows the step that is not done. It changes nothing.

It prints what is wrong, what is unknown, and how many checks passed. The exit code is 1 unless all checks pass.`,
		ValidArgsFunction: cobra.NoFileCompletions,
		Args:              MaxArgs(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(*o.format); err != nil {
				return usageError(cmd, err)
			}
			return o.run(cmd, source)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.node, "node", "", "`name` of a node: check the steps of its certificate instead")
	flags.BoolVar(&o.all, "all", false, "list the checks that passed too")
	o.format = outputFlag(cmd, "table")
	source.Bind(cmd, Configuration)
	return cmd
}

func (o *checkOptions) run(cmd *cobra.Command, source Source) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), checkTimeout)
	defer cancel()
	setup, err := source.Setup(ctx, cmd)
	if err != nil {
		return err
	}
	if !cmd.Flags().Changed("audit-log-path") {
		setup.Configuration.Audit.Path = "" // a running manager may have the file open, and rotates it
	}
	// The log has a line for each trust probe. The evidence and the audit log name the certificate, too.
	logger := logr.Discard()
	if setup.Configuration.Verbosity > 0 {
		logger = NewLogger(setup.Configuration.Verbosity, os.Stderr)
	}
	ctx = log.IntoContext(ctx, logger)
	server, err := connect(ctx, source, cmd)
	if err != nil {
		return err
	}
	c, err := newChecker(ctx, server, setup)
	if err != nil {
		return err
	}
	report := &checkReport{APIServer: server.config.Host, User: c.whoAmI(ctx), Node: o.node}
	var results []check.Result
	if o.node == "" {
		results = c.cluster(ctx)
	} else if results, err = c.node(ctx, o.node); err != nil {
		return err
	}
	report.add(results)
	if err := o.write(cmd, report); err != nil {
		return err
	}
	return report.err()
}

// checkReport is the result of check. Scripts read its fields.
type checkReport struct {
	APIServer string `json:"apiServer"`
	// User is the user who asked.
	User    string        `json:"user"`
	Node    string        `json:"node,omitempty"`
	Passed  int           `json:"passed"`
	Failed  int           `json:"failed"`
	Unknown int           `json:"unknown"`
	Results []checkResult `json:"results"`
}

// checkResult is a check.Result with names for scripts.
type checkResult struct {
	Check    string       `json:"check"`
	Subject  string       `json:"subject"`
	Status   check.Status `json:"status"`
	Evidence string       `json:"evidence"`
	NextStep string       `json:"nextStep,omitempty"`
}

// add adds results to r, and counts them.
func (r *checkReport) add(results []check.Result) {
	r.Results = []checkResult{} // never null
	for _, result := range results {
		r.Results = append(r.Results, checkResult(result))
		switch result.Status {
		case check.OK:
			r.Passed++
		case check.Failed:
			r.Failed++
		case check.Unknown:
			r.Unknown++
		}
	}
}

// err returns an error unless all checks passed. For a node it names the first step that is not done.
func (r *checkReport) err() error {
	if r.Node != "" {
		for _, result := range r.Results {
			if result.Status != check.OK {
				return fmt.Errorf("check: node %s: %s is %s", r.Node, result.Check, result.Status)
			}
		}
		return nil
	}
	switch {
	case r.Failed > 0:
		return fmt.Errorf("check: %d failed, %d unknown", r.Failed, r.Unknown)
	case r.Unknown > 0:
		return fmt.Errorf("check: nothing failed, but %d could not be found out", r.Unknown)
	default:
		return nil
	}
}

// write writes report in the format of -o. JSON and YAML hold all results.
func (o *checkOptions) write(cmd *cobra.Command, report *checkReport) error {
	out := cmd.OutOrStdout()
	if isFields(*o.format) {
		return writeFields(out, *o.format, report)
	}
	flag := "--all"
	if cmd.Flags().ShorthandLookup("v") == cmd.Flags().Lookup("verbose") {
		flag = "-v"
	}
	return report.writeTable(out, o.all, flag)
}

// writeTable writes the results. Without all it leaves out the checks that passed. flag is the flag that lists them.
func (r *checkReport) writeTable(out io.Writer, all bool, flag string) error {
	var page bytes.Buffer // takes all
	if r.Node != "" {
		fmt.Fprintf(&page, "Node %s, asked %s as %s.\n\n", oneLine(r.Node), oneLine(r.APIServer), oneLine(r.User))
	} else {
		fmt.Fprintf(&page, "Asked %s as %s.\n\n", oneLine(r.APIServer), oneLine(r.User))
	}
	if all || r.Failed+r.Unknown > 0 {
		r.writeResults(&page, all)
	}
	if r.Passed == 1 {
		page.WriteString("1 check passed")
	} else {
		fmt.Fprintf(&page, "%d checks passed", r.Passed)
	}
	if !all && r.Passed > 0 {
		fmt.Fprintf(&page, "; %s lists them", flag)
	}
	page.WriteString(".\n")
	_, err := out.Write(page.Bytes())
	return err
}

// writeResults writes the results, each with its evidence, and below it the next step. A next step is not wrapped,
// because it may be a command to copy.
func (r *checkReport) writeResults(page *bytes.Buffer, all bool) {
	longest := 0
	for _, result := range r.Results {
		longest = max(longest, len(result.Check))
	}
	for _, result := range r.Results {
		if result.Status == check.OK && !all {
			continue
		}
		label := fmt.Sprintf("%-*s  %-7s  ", longest, result.Check, result.Status)
		page.WriteString(ascii.Wrap(label, oneLine(result.Subject+": "+result.Evidence)))
		if result.NextStep != "" {
			page.WriteString(strings.Repeat(" ", len(label)) + "-> " + oneLine(result.NextStep) + "\n")
		}
	}
	page.WriteString("\n")
}

// checker asks the API server with the rights of the user who runs the command.
type checker struct {
	server
	setup         *Setup
	configuration *config.Configuration
	options       controllers.Options
	trust         check.Trust
	cas           []check.CA // that the API server must trust
	now           time.Time
}

func newChecker(ctx context.Context, server server, setup *Setup) (*checker, error) {
	options, err := controllers.FromConfiguration(setup.Configuration)
	if err != nil {
		return nil, err
	}
	c := &checker{
		server: server, setup: setup, configuration: setup.Configuration, options: options, now: server.clock.Now(),
		trust: check.Trust{Reader: server.api, Cluster: server.config, Audit: options.Audit},
	}
	if options.Signer == nil {
		return c, nil
	}
	options.Signer.Clock = server.clock
	unread, err := options.Signer.ReadOnce(ctx, server.api)
	if err != nil {
		return nil, fmt.Errorf("read the CA: %w", err)
	}
	c.cas = clientCAs(options.Signer, c.now)
	for i := range c.cas {
		found := &c.cas[i]
		found.Err = cmp.Or(unread[found.Signers[0]], found.Err)
		if found.Authority == nil {
			found.Certificate, found.Sent = setup.certificate(found.Signers[0])
		}
	}
	if len(options.Signer.Signers) == 0 {
		const none = "the configuration names no CA"
		c.cas = []check.CA{{Signers: []string{"Kubernetes' signers"}, Err: errors.New(none)}}
	}
	return c, nil
}

// clientCAs returns the CAs that the API server must trust at now, without duplicates.
func clientCAs(r *signer.Reconciler, now time.Time) []check.CA {
	var all []check.CA
	places := map[*keypair.KeyPair]int{}
	for _, name := range csr.BuiltinSigners() {
		pair := r.Signers[name].KeyPair
		if pair == nil || !csr.VerifiedByAPIServers(name) {
			continue
		}
		if i, known := places[pair]; known {
			all[i].Signers = append(all[i].Signers, name)
			continue
		}
		authority, err := pair.Authority(now)
		places[pair], all = len(all), append(all, check.CA{Signers: []string{name}, Authority: authority, Err: err})
	}
	return all
}

// certificate returns the certificate of the CA that signs for signer, as its manager has published it, or nil. sent
// holds the CA certificates that follow each certificate that the CA issues.
func (s *Setup) certificate(signer string) (certificate *x509.Certificate, sent []*x509.Certificate) {
	for _, manager := range s.Managers {
		for _, authority := range manager.Status.Authorities {
			if !slices.Contains(authority.Signers, signer) {
				continue
			}
			parsed, err := ca.ParseCertificates([]byte(authority.Certificate))
			if err != nil || len(parsed) == 0 {
				continue
			}
			sent, err := ca.ParseCertificates([]byte(authority.Chain))
			if err != nil {
				sent = nil
			}
			return parsed[0], sent
		}
	}
	return nil, nil
}

// cluster makes every check of the manager.
func (c *checker) cluster(ctx context.Context) []check.Result {
	results := append(c.published(), c.rights(ctx)...)
	if c.options.Approver != nil {
		groups := c.configuration.SelfCheck
		results = append(results, check.Kubelets(ctx, c.api, groups.BootstrapGroups, groups.NodeGroups)...)
	}
	results = append(results, c.trust.CAs(ctx, c.cas, c.now)...)
	results = append(results, c.authorities(ctx)...)
	return append(results, c.running(ctx)...)
}

// published reports whether the managers have published their configuration. It returns nothing if the configuration
// comes from flags or from a file.
func (c *checker) published() []check.Result {
	if err := c.setup.Unpublished; err != nil {
		result := check.Result{
			Check: check.Configured, Subject: "the manager's configuration", Status: check.Failed,
			Evidence: err.Error() + "; the other checks use the defaults",
			NextStep: "check that a manager runs, and that its Role lets it update the ConfigMap; or give --config",
		}
		if c.setup.unread {
			result.Status, result.NextStep = check.Unknown, "run the command as a user who may list ConfigMaps in "+
				"that namespace; or give --config"
		}
		return []check.Result{result}
	}
	var results []check.Result
	for _, manager := range c.setup.Managers {
		results = append(results, check.Result{
			Check: check.Configured, Subject: "manager " + manager.Lease.Name, Status: check.OK,
			Evidence: fmt.Sprintf("version %s has published its configuration; it runs %s", manager.Status.Version,
				strings.Join(manager.Configuration.Controllers, ", ")),
		})
	}
	return results
}

// rights asks for the rights of each manager. A manager that has not published its user has the user of the command, if
// the command runs as the manager.
func (c *checker) rights(ctx context.Context) []check.Result {
	if c.setup.AsManager {
		return check.Rights(ctx, c.api, controllers.Rights(c.configuration, controllers.LeaseNamespace(c.configuration)))
	}
	unknown := func(subject string) check.Result {
		return check.Result{
			Check: check.OwnRights, Subject: subject, Status: check.Unknown,
			Evidence: "the manager has not published its user, so its rights cannot be checked",
			NextStep: "start a manager of this version, or run csr-controller-manager check as the manager",
		}
	}
	if len(c.setup.Managers) == 0 {
		return []check.Result{unknown("the rights of the manager")}
	}
	var results []check.Result
	for _, manager := range c.setup.Managers {
		if manager.Status.User == "" {
			results = append(results, unknown("the rights of manager "+manager.Lease.Name))
			continue
		}
		user := check.User{Name: manager.Status.User, Groups: manager.Status.Groups}
		found := check.RightsOf(ctx, c.api, user, controllers.Rights(manager.Configuration, manager.Lease.Namespace))
		for i := range found {
			if len(c.setup.Managers) > 1 {
				found[i].Subject = manager.Lease.Name + ": " + found[i].Subject
			}
		}
		results = append(results, found...)
	}
	return results
}

// running checks whether the managers run. Without leader election there is no Lease that shows it.
func (c *checker) running(ctx context.Context) []check.Result {
	found := make([][]check.Result, len(c.setup.Managers))
	var asked sync.WaitGroup // so that many managers do not take longer than one
	for i, manager := range c.setup.Managers {
		asked.Go(func() {
			found[i] = c.holds(ctx, manager.Configuration.LeaderElection, []types.NamespacedName{manager.Lease})
		})
	}
	asked.Wait()
	election := c.configuration.LeaderElection
	if len(found) > 0 || !election.Enabled {
		return slices.Concat(found...)
	}
	leases := []types.NamespacedName{
		{Namespace: controllers.LeaseNamespace(c.configuration), Name: election.ResourceName},
	}
	// The command may run outside of the cluster.
	if election.ResourceNamespace == "" && leases[0].Namespace != DefaultNamespace {
		leases = append(leases, types.NamespacedName{Namespace: DefaultNamespace, Name: election.ResourceName})
	}
	return c.holds(ctx, election, leases)
}

// holds checks whether a manager holds the first of leases that exists. It waits at most half of the command's time: a
// forged published configuration may have a long retryPeriod.
func (c *checker) holds(
	ctx context.Context, election config.LeaderElection, leases []types.NamespacedName,
) []check.Result {
	pause := min(2*election.RetryPeriod.Duration+time.Second, checkTimeout/2)
	return check.Running{Reader: c.api, Leases: leases, Pause: pause, Clock: c.clock}.Check(ctx)
}

// whoAmI returns the name of the caller.
func (c *checker) whoAmI(ctx context.Context) string {
	review := &authenticationv1.SelfSubjectReview{}
	if err := c.api.Create(ctx, review); err != nil {
		return fmt.Sprintf("an unknown user (%v)", err)
	}
	return review.Status.UserInfo.Username
}

// node returns the steps of the certificate of one node, up to the one that is not done.
func (c *checker) node(ctx context.Context, name string) ([]check.Result, error) {
	e, err := explain.New(ctx, c.configuration, explain.Server{Client: c.api, Config: c.config}, c.clock)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return check.Node{
		Name: name, Reader: c.api, Trust: c.trust, BootstrapGroups: c.configuration.SelfCheck.BootstrapGroups, CAs: c.cas,
		RequestLimits: e.Limits(),
		Approve: func(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) check.Opinion {
			return e.JudgeWithEvents(ctx, obj).ApprovalOpinion()
		},
		Issue: func(ctx context.Context, obj *certificatesv1.CertificateSigningRequest) check.Opinion {
			if !c.serves(obj.Spec.SignerName) {
				return check.Opinion{}
			}
			return e.Judge(ctx, obj).SigningOpinion()
		},
	}.Check(ctx, c.now), nil
}

// serves reports whether the configuration names a CA for the signer.
func (c *checker) serves(signer string) bool {
	if c.options.Signer == nil {
		return false
	}
	_, served := c.options.Signer.Signers[signer]
	return served
}

// authorities compares the served signers with those of the SigningAuthority of their Secret. If no authority names a
// signer, its requests are approved and never signed.
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
			NextStep: "run the command as a user who may list them, once the API server answers",
		}
		if meta.IsNoMatchError(err) {
			result.Status, result.NextStep = check.Failed, "kubectl apply -k config/rotation"
			result.Evidence = "the API server has no such kind, and with rotation.enabled no signer signs without it"
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
		result.Evidence = fmt.Sprintf("no SigningAuthority has its Secret %s: its requests are never signed (CANotProven)",
			served.Secret)
		result.NextStep = "create one for that Secret with the signer in spec.signers: docs/reference/rotation.md"
	default:
		result.Evidence = fmt.Sprintf("SigningAuthority %s of Secret %s does not name it in spec.signers: "+
			"its requests are never signed (CANotProven)", strings.Join(names, ", "), served.Secret)
		result.NextStep = "create an authority with a Secret of its own and spec.from, as docs/reference/rotation.md says, " +
			"or remove the signer from the configuration"
		if csr.VerifiedByAPIServers(served.Signer) {
			result.NextStep = "add it to spec.signers: if API servers verify another signer there, it is served at once"
		}
	}
	return result
}
