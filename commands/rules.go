package commands

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/utils/clock"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ascii"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// rulesCommand returns the command about approval rules.
func rulesCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "rules", Short: "Try approval rules before use"}
	var configFile string
	test := &cobra.Command{
		Use:   "test --config FILE REQUEST...",
		Short: "Show which approval rules accept the requests in files",
		Long: `test shows for each request in the files and for each approval rule of its signer whether the rule accepts the
content of the request, or the first condition that fails. It fails if a test in approval.tests of the configuration file
has another outcome. The command asks no API server. So it takes for true that the requester may use each rule, that its
ServiceAccount and the Services exist, and that no API server trusts the CA of a signer of this configuration.`,
		Args: cobra.MinimumNArgs(1),
	}
	test.Flags().StringVar(&configFile, "config", "", "`file` with the configuration of the manager")
	_ = test.MarkFlagRequired("config") // the flag exists
	test.RunE = func(cmd *cobra.Command, files []string) error {
		configuration, err := config.LoadFile(configFile)
		if err != nil {
			return fmt.Errorf("bad configuration:\n%w", err)
		}
		var objs []*certificatesv1.CertificateSigningRequest
		for _, name := range files {
			file, err := os.Open(name)
			if err != nil {
				return err
			}
			found, err := readRequests(name, file)
			_ = file.Close()
			if err != nil {
				return err
			}
			objs = append(objs, found...)
		}
		return testRules(cmd.Context(), configuration, objs, cmd.OutOrStdout(), clock.RealClock{})
	}
	cmd.AddCommand(test)
	return cmd
}

// testRules writes what each rule says of each request. It returns an error if a test fails.
func testRules(
	ctx context.Context, c *config.Configuration, objs []*certificatesv1.CertificateSigningRequest, out io.Writer,
	clock clock.PassiveClock,
) error {
	judge, err := newOffline(c, clock)
	if err != nil || judge.options.Approver == nil {
		return errors.Join(err, errors.New("no approver judges by this configuration"))
	}
	accepted := map[string][]string{} // the rules by the name of the request
	for _, obj := range objs {
		if _, twice := accepted[obj.Name]; twice || obj.Name == "" {
			return fmt.Errorf("each request needs a name of its own: %q is empty or given twice", obj.Name)
		}
		tried, err := judge.options.Approver.TryRules(ctx, obj)
		if len(tried) > 0 { // otherwise no rule was tried, and every test of it fails
			accepted[obj.Name] = acceptedBy(tried)
		}
		for _, line := range linesAbout(obj, tried, err) {
			if _, err := fmt.Fprintln(out, ascii.Quote(obj.Name+": "+line)); err != nil {
				return err
			}
		}
	}
	return checkTests(c.Approval.Tests, accepted)
}

// acceptedBy returns the names of the rules that accept a request.
func acceptedBy(tried []approver.Tried) []string {
	names := []string{}
	for _, each := range tried {
		if each.Refusal == "" {
			names = append(names, each.Rule)
		}
	}
	return names
}

// linesAbout returns what each rule says of obj, or why no rule was tried.
func linesAbout(obj *certificatesv1.CertificateSigningRequest, tried []approver.Tried, err error) (lines []string) {
	for _, each := range tried {
		lines = append(lines, fmt.Sprintf("rule %s: %s", each.Rule, cmp.Or(each.Refusal, "accept")))
	}
	switch {
	case err != nil:
		lines = append(lines, err.Error())
	case len(tried) == 0:
		lines = append(lines, "no approval rule is for signer "+obj.Spec.SignerName)
	}
	return lines
}

// checkTests returns an error for each test with another outcome.
func checkTests(tests []config.RuleTest, accepted map[string][]string) error {
	var failures []error
	for _, test := range tests {
		found, given := accepted[test.Request]
		if !given || !slices.Equal(slices.Sorted(slices.Values(found)), slices.Sorted(slices.Values(test.Accepts))) {
			failures = append(failures, fmt.Errorf("test of request %s: accepted by %q, want %q", test.Request, found, test.Accepts))
		}
	}
	return errors.Join(failures...)
}
