package controllers

import (
	"cmp"
	"errors"
	"reflect"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge/bootstrap"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

const (
	clients        = "kubernetes.io/kube-apiserver-client"
	kubelet        = "kubernetes.io/kube-apiserver-client-kubelet"
	kubeletServing = "kubernetes.io/kubelet-serving"
)

func configured(change func(*config.Configuration)) *config.Configuration {
	c := config.Default()
	change(c)
	return c
}

func optionsOf(t *testing.T, change func(*config.Configuration)) Options {
	t.Helper()
	options, err := FromConfiguration(configured(change))
	if err != nil {
		t.Fatal(err)
	}
	return options
}

// signersWith returns the signers of a configuration with s. s has the default duration and key size if it has none.
func signersWith(t *testing.T, s config.Signing) map[string]signer.Signer {
	t.Helper()
	return optionsOf(t, func(c *config.Configuration) {
		s.Duration, s.MinRSABits = cmp.Or(s.Duration, c.Signing.Duration), cmp.Or(s.MinRSABits, c.Signing.MinRSABits)
		c.Signing = s
	}).Signer.Signers
}

func span(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// TestSignersHaveTheirCA checks which signers are served, and from which source each has its key pair. Signers with the
// same source share a key pair.
func TestSignersHaveTheirCA(t *testing.T) {
	shared, files := config.CA{Secret: "ns/ca"}, config.CA{CertFile: "a.crt", KeyFile: "a.key"}
	const secretCA, filesCA = "Secret ns/ca has not been read yet", "files a.crt and a.key has not been read yet"
	of := func(ca config.CA, name string) config.Signer { return config.Signer{Name: name, CA: ca} }
	for name, test := range map[string]struct {
		signing config.Signing
		want    map[string]string
		pairs   int
	}{
		"files for all signers": {config.Signing{CA: files}, map[string]string{clients: filesCA, kubelet: filesCA, kubeletServing: filesCA}, 1},
		"one CA each": {
			config.Signing{Signers: []config.Signer{of(files, clients), of(config.CA{CertFile: "b", KeyFile: "c"}, kubelet), of(shared, kubeletServing)}},
			map[string]string{clients: filesCA, kubelet: "files b and c has not been read yet", kubeletServing: secretCA}, 3,
		},
		"one Secret named twice, and a signer without a CA": {
			config.Signing{Signers: []config.Signer{of(shared, clients), of(shared, kubeletServing)}},
			map[string]string{clients: secretCA, kubeletServing: secretCA}, 1,
		},
		"a custom signer beside Kubernetes' signers": {
			config.Signing{CA: shared, Signers: []config.Signer{of(files, "example.com/a")}},
			map[string]string{clients: secretCA, kubelet: secretCA, kubeletServing: secretCA, "example.com/a": filesCA}, 2,
		},
	} {
		got, pairs := map[string]string{}, map[*keypair.KeyPair]bool{}
		for signerName, one := range signersWith(t, test.signing) {
			_, missing := one.KeyPair.Authority(time.Time{})
			got[signerName], pairs[one.KeyPair] = missing.Error(), true
		}
		if diff := gocmp.Diff(test.want, got); diff != "" || len(pairs) != test.pairs {
			t.Errorf("%s: %d key pairs, want %d; signers (-want +got):\n%s", name, len(pairs), test.pairs, diff)
		}
	}
}

// TestProfiles checks the profile and the usages of a signer with settings of its own, and that the other signers have
// the profile of all signers.
func TestProfiles(t *testing.T) {
	const hour, year = time.Hour, 365 * 24 * time.Hour
	usages, a, b := []certificatesv1.KeyUsage{"client auth", "any"}, []string{"O=a"}, []string{"O=b"}
	type (
		want = ca.ProfileConfig
		all  = config.Signing
		one  = config.Signer
	)
	for name, test := range map[string]struct {
		all  all
		one  one // kubeletServing, unless it has a name
		want want
	}{
		"nothing set":    {},
		"a duration":     {all{Duration: *span(hour)}, one{}, want{Lifetime: hour}},
		"stronger keys":  {all{MinRSABits: 4096}, one{}, want{MinRSABits: 4096}},
		"other subjects": {all{ForbiddenSubjects: a}, one{}, want{ForbiddenSubjects: a}},
		"own durations": {
			all{}, one{Duration: span(2 * hour), MinDuration: span(hour), MaxDuration: span(3 * hour)},
			want{Lifetime: 2 * hour, MinLifetime: hour, MaxLifetime: 3 * hour},
		},
		"a maximum below the default":            {all{}, one{MaxDuration: span(hour)}, want{Lifetime: hour, MaxLifetime: hour}},
		"a maximum above the default":            {all{}, one{MaxDuration: span(2 * year)}, want{MaxLifetime: 2 * year}},
		"own subjects in place of all signers'":  {all{ForbiddenSubjects: a}, one{ForbiddenSubjects: b}, want{ForbiddenSubjects: b}},
		"no subject is forbidden":                {all{}, one{ForbiddenSubjects: []string{}}, want{ForbiddenSubjects: []string{}}},
		"no subject is forbidden for any signer": {all{ForbiddenSubjects: []string{}}, one{}, want{ForbiddenSubjects: []string{}}},
		"a custom signer":                        {all{}, one{Name: "example.com/a", Usages: usages}, want{ForbidWildcards: true}},
		"a custom signer that permits wildcards": {all{}, one{Name: "example.com/a", Usages: usages, AllowWildcards: true}, want{}},
	} {
		others := ca.ProfileConfig{Lifetime: cmp.Or(test.all.Duration.Duration, year), MinRSABits: test.all.MinRSABits}
		others.ForbiddenSubjects = test.all.ForbiddenSubjects
		test.want.Lifetime = cmp.Or(test.want.Lifetime, year)
		test.all.Secret, test.one.Name = "ns/ca", cmp.Or(test.one.Name, kubeletServing)
		test.all.Signers = []config.Signer{test.one}
		signers := signersWith(t, test.all)
		for signerName, c := range map[string]ca.ProfileConfig{test.one.Name: test.want, clients: others, kubelet: others} {
			if want, err := ca.NewProfile(c); err != nil || !reflect.DeepEqual(signers[signerName].Profile, want) {
				t.Errorf("%s: %s has %+v, want %+v, error %v", name, signerName, signers[signerName].Profile, want, err)
			}
		}
		if diff := gocmp.Diff(test.one.Usages, signers[test.one.Name].Usages, cmpopts.EquateEmpty()); diff != "" || len(signers[clients].Usages) > 0 {
			t.Errorf("%s: usages (-want +got):\n%s%v", name, diff, signers[clients].Usages)
		}
	}
}

func TestAProfileThatIsNoneNamesItsSigner(t *testing.T) {
	_, err := FromConfiguration(configured(func(c *config.Configuration) {
		c.Signing.Signers = []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "ns/ca"}, ForbiddenSubjects: []string{"x"}}}
	}))
	const want = `signer example.com/a: "x" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

// TestRetention checks the retention of the cleaner. The signer has the same one, so that it does not sign a request that
// the cleaner deletes.
func TestRetention(t *testing.T) {
	const hour = time.Hour
	options := optionsOf(t, func(c *config.Configuration) {
		c.Cleaning = config.Cleaning{DeletesPerSecond: 7, Retention: config.Retention{Pending: span(2 * hour), Failed: span(3), Denied: span(0)}}
		c.Cleaning.Signers = []config.SignerRetention{
			{Name: "example.com/a", Retention: config.Retention{Approved: span(-1), Expired: span(4)}}, {Name: "example.com/b"},
		}
	})
	all := csr.Retention{Approved: hour, Failed: 3, Pending: 2 * hour} // a zero is a value
	a := all
	a.Approved, a.Expired = -1, 4
	want := csr.RetentionPolicy{Default: all, Signers: map[string]csr.Retention{"example.com/a": a, "example.com/b": all}}
	for _, got := range []csr.RetentionPolicy{options.Cleaner.Retention, options.Signer.Retention} {
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("retention (-want +got):\n%s", diff)
		}
	}
	if rate := options.Cleaner.Limiter.QPS(); rate != 7 {
		t.Errorf("%v deletions a second", rate)
	}
}

// TestControllersThatAreOn checks what a list of controllers switches on, and what only an inventory does: the rule for client
// certificates is kube-controller-manager's.
func TestControllersThatAreOn(t *testing.T) {
	for list, want := range map[string][3]bool{
		"*": {true, true, true}, "approver": {true, false, false}, "signer": {false, true, false}, "cleaner": {false, false, true},
	} {
		options := optionsOf(t, func(c *config.Configuration) {
			c.Controllers, c.Approval.Denial = []string{list}, "Permanent"
			c.Concurrency = config.Concurrency{Approver: 1, Signer: 2, Cleaner: 3}
			if list == "signer" {
				c.SelfCheck.Interval.Duration = 0
			}
		})
		got := [3]bool{options.Approver != nil, options.Signer != nil, options.Cleaner != nil}
		if got != want || (options.SelfCheck == nil) != (list == "signer") {
			t.Errorf("%s: %v, self-check %+v", list, got, options.SelfCheck)
		}
		if list == "*" && [3]int{options.Approver.Workers, options.Signer.Workers, options.Cleaner.Workers} != [3]int{1, 2, 3} {
			t.Errorf("workers %d, %d and %d", options.Approver.Workers, options.Signer.Workers, options.Cleaner.Workers)
		}
		r := options.Approver
		if r != nil && (r.Denial != "Permanent" || r.Inventory != nil || len(r.Judges) != 1 || r.Judges[kubelet] != approver.Judge(approver.KubeletClient{})) {
			t.Errorf("%s: %+v", list, r)
		}
	}
}

func TestBootstrapPolicies(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*config.NodeClient)
		want   bootstrap.Policy
	}{
		"openshift": {
			func(c *config.NodeClient) { c.Inventory = "openshift" },
			bootstrap.Policy{
				Expected: true, Trusted: true, Users: []string{"system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"},
			},
		},
		"cluster-api": {
			func(c *config.NodeClient) {
				c.Inventory, c.Rejoin, c.CertificateLifetime.Duration = "cluster-api", true, time.Hour
			},
			bootstrap.Policy{Expected: true, Rejoin: true, CertificateLifetime: time.Hour},
		},
		"tokens": {
			func(c *config.NodeClient) { c.RequireTokenBinding, c.BootstrapUsers = true, []string{"a"} },
			bootstrap.Policy{TokenBinding: true, Users: []string{"a"}},
		},
	} {
		c := config.Default().Approval.NodeClient
		test.change(&c)
		test.want.MaxRequestAge, test.want.Window = 15*time.Minute, bootstrap.Window{Before: 10 * time.Second, After: 2 * time.Hour}
		if diff := gocmp.Diff(&test.want, bootstrapPolicyOf(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		groups := 2 // of which one must be able to join; none joins in OpenShift
		if name == "openshift" {
			groups = 0
		}
		self := optionsOf(t, func(all *config.Configuration) { all.Approval.NodeClient = c }).SelfCheck
		if len(self.BootstrapGroups) != groups || len(self.NodeGroups) != 1 {
			t.Errorf("%s: self-check of %+v", name, self)
		}
	}
}

// TestPresetsChooseMachines checks that a preset reads its own Machines unless the configuration has a machine source.
func TestPresetsChooseMachines(t *testing.T) {
	clusterAPI, openShift := machine.ClusterAPI(), machine.OpenShift()
	clusterAPI.Namespace, clusterAPI.Selector = "fleet", "cluster.x-k8s.io/cluster-name=lab"
	for preset, want := range map[string]*machine.Options{"": nil, "sources": nil, "static": nil, "cluster-api": &clusterAPI, "openshift": &openShift} {
		c := config.Default().Approval
		c.NodeClient.Inventory, c.NodeClient.ClusterName = preset, "fleet/lab"
		if diff := gocmp.Diff(want, presetMachines(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", preset, diff)
		}
		if got, more := len(inventoryOf(c).Sources), want != nil; got != 1 && !more || got != 2 && more {
			t.Errorf("%s: %d sources", preset, got)
		}
		c.Inventory.Sources = []config.Source{{Machine: &machine.Options{Kind: "Host"}}}
		if presetMachines(c) != nil || len(inventoryOf(c).Sources) != 1 {
			t.Errorf("%s asks its own machines beside those that are configured", preset)
		}
	}
}

// TestSourceOfKnowsEveryKind checks that each kind of source has a builder: a source must not become a weaker one.
func TestSourceOfKnowsEveryKind(t *testing.T) {
	kinds := reflect.TypeFor[config.Source]()
	for i := range kinds.NumField() {
		var source config.Source
		reflect.ValueOf(&source).Elem().Field(i).Set(reflect.New(kinds.Field(i).Type.Elem()))
		err := func() (err error) {
			defer func() { _ = recover() }() // there is no manager
			_, err = sourceOf(source, "")(nil, nil, nil)
			return err
		}()
		if errors.Is(err, errUnknownSource) {
			t.Errorf("%s: add it to sourceOf", kinds.Field(i).Name)
		}
	}
}

// ruled returns the approval rules of a configuration with approval rules for three signers, one of which it signs for.
func ruled(t *testing.T, change func(*config.Configuration)) map[string]*approver.ApprovalRules {
	t.Helper()
	options := optionsOf(t, func(c *config.Configuration) {
		c.Signing.Signers = []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "b/a"}, Usages: []certificatesv1.KeyUsage{"server auth"}}}
		for _, each := range [][2]string{{"a1", "example.com/a"}, {"b", "example.com/b"}, {"a2", "example.com/a"}} {
			c.CompiledRules = append(c.CompiledRules, &rules.Compiled{Rule: rules.Rule{Name: each[0], SignerName: each[1]}})
		}
		change(c)
	})
	all := map[string]*approver.ApprovalRules{}
	for name, each := range options.Approver.Judges {
		if rules, are := each.(*approver.ApprovalRules); are {
			all[name] = rules
		}
	}
	return all
}

// TestApprovalRulesOfSigners checks that the rules of each signer keep their order, and that they know only a lifetime that this manager issues.
func TestApprovalRulesOfSigners(t *testing.T) {
	all := ruled(t, func(*config.Configuration) {})
	a, b := all["example.com/a"], all["example.com/b"]
	if len(all) != 2 || len(a.Rules) != 2 || a.Rules[0].Name != "a1" || a.Rules[1].Name != "a2" || len(b.Rules) != 1 {
		t.Fatalf("approval rules %+v", all)
	}
	if got := a.Lifetime(time.Minute); got != 10*time.Minute || a.Lifetime(0) != 365*24*time.Hour || b.Lifetime != nil || b.Trusted != nil {
		t.Errorf("lifetime %s, and %t for another signer", got, b.Lifetime != nil)
	}
	if trust, reading := a.Trusted(time.Now()); trust.Untrusted || trust.Why == "" || reading {
		t.Errorf("before the CA is read: %+v, %t", trust, reading)
	}
	apart := ruled(t, func(c *config.Configuration) { c.Controllers = []string{"approver"} })["example.com/a"]
	if got := apart.Lifetime(time.Minute); got != 10*time.Minute || apart.Trusted != nil {
		t.Errorf("another Deployment signs: lifetime %s, and the trust is known: %t", got, apart.Trusted != nil)
	}
	dry := ruled(t, func(c *config.Configuration) { c.DryRun = []string{"signer"} })["example.com/a"]
	if dry.Lifetime != nil || dry.Trusted != nil {
		t.Error("a dry run signs nothing, but the lifetime or the trust are known")
	}
}
