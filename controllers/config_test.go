package controllers

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/inventory/machine"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
)

var sameProfile = cmp.Comparer(func(a, b ca.Profile) bool { return reflect.DeepEqual(a, b) })

func configured(change func(*config.Configuration)) *config.Configuration {
	c := config.Default()
	change(c)
	return c
}

func span(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// served is the configuration of one signer name; CA is the state of its key pair before its source is read.
type served struct {
	CA      string
	Profile ca.Profile
	Usages  []certificatesv1.KeyUsage
}

func TestSigners(t *testing.T) {
	t.Parallel()
	const client, kubelet, serving = "kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"
	const year = 365 * 24 * time.Hour
	with := func(profile ca.ProfileConfig, source string, usages ...certificatesv1.KeyUsage) served {
		if profile.Lifetime == 0 {
			profile.Lifetime = year
		}
		checked, err := ca.NewProfile(profile)
		if err != nil {
			t.Fatal(err)
		}
		return served{CA: source + " has not been read yet", Profile: checked, Usages: usages}
	}
	plain := ca.ProfileConfig{}
	shared := config.CA{Secret: "ns/ca"}
	all := func(source string, change func(map[string]served)) map[string]served {
		signers := map[string]served{}
		for _, name := range csr.BuiltinSigners() {
			signers[name] = with(plain, source)
		}
		change(signers)
		return signers
	}
	none := func(map[string]served) {}
	files := func(name string) config.CA { return config.CA{CertFile: name + ".crt", KeyFile: name + ".key"} }

	for name, test := range map[string]struct {
		signing config.Signing
		want    map[string]served
		pairs   int
	}{
		"one Secret for all signers": {config.Signing{CA: shared}, all("Secret ns/ca", none), 1},
		"files for all signers":      {config.Signing{CA: files("ca")}, all("files ca.crt and ca.key", none), 1},
		"one duration for all signers": {
			config.Signing{CA: shared, Duration: *span(time.Hour)},
			all("Secret ns/ca", func(signers map[string]served) {
				for name := range signers {
					signers[name] = with(ca.ProfileConfig{Lifetime: time.Hour}, "Secret ns/ca")
				}
			}), 1,
		},
		"one CA each": {
			config.Signing{Signers: []config.Signer{{Name: client, CA: files("a")}, {Name: kubelet, CA: files("b")}, {Name: serving, CA: config.CA{Secret: "ns/d"}}}},
			map[string]served{
				client: with(plain, "files a.crt and a.key"), kubelet: with(plain, "files b.crt and b.key"),
				serving: with(plain, "Secret ns/d"),
			}, 3,
		},
		"only some signers": {
			config.Signing{Signers: []config.Signer{{Name: serving, CA: files("c")}}},
			map[string]served{serving: with(plain, "files c.crt and c.key")}, 1,
		},
		"own durations with a shared CA": {
			config.Signing{CA: shared, Signers: []config.Signer{{Name: serving, Duration: span(2 * time.Hour), MinDuration: span(time.Hour), MaxDuration: span(3 * time.Hour)}}},
			all("Secret ns/ca", func(signers map[string]served) {
				signers[serving] = with(ca.ProfileConfig{Lifetime: 2 * time.Hour, MinLifetime: time.Hour, MaxLifetime: 3 * time.Hour}, "Secret ns/ca")
			}), 1,
		},
		"a maximum below the default": {
			config.Signing{CA: shared, Signers: []config.Signer{{Name: serving, MaxDuration: span(time.Hour)}}},
			all("Secret ns/ca", func(signers map[string]served) {
				signers[serving] = with(ca.ProfileConfig{Lifetime: time.Hour, MaxLifetime: time.Hour}, "Secret ns/ca")
			}), 1,
		},
		"a maximum above the default": {
			config.Signing{CA: shared, Signers: []config.Signer{{Name: serving, MaxDuration: span(2 * year)}}},
			all("Secret ns/ca", func(signers map[string]served) {
				signers[serving] = with(ca.ProfileConfig{MaxLifetime: 2 * year}, "Secret ns/ca")
			}), 1,
		},
		"stronger keys": {
			config.Signing{MinRSABits: 4096, Signers: []config.Signer{{Name: serving, CA: shared}}},
			map[string]served{serving: with(ca.ProfileConfig{MinRSABits: 4096}, "Secret ns/ca")}, 1,
		},
		"other subjects are forbidden": {
			config.Signing{CA: shared, Signers: []config.Signer{{Name: client, ForbiddenSubjects: []string{"CN=admin"}}, {Name: kubelet, ForbiddenSubjects: []string{"O=a*"}}}},
			all("Secret ns/ca", func(signers map[string]served) {
				signers[client] = with(ca.ProfileConfig{ForbiddenSubjects: []string{"CN=admin"}}, "Secret ns/ca")
				signers[kubelet] = with(ca.ProfileConfig{ForbiddenSubjects: []string{"O=a*"}}, "Secret ns/ca")
			}), 1,
		},
		"forbidden subjects for all signers and for one": {
			config.Signing{ForbiddenSubjects: []string{"O=a"}, Signers: []config.Signer{{Name: client, CA: shared}, {Name: serving, CA: shared, ForbiddenSubjects: []string{"O=b"}}}},
			map[string]served{
				client:  with(ca.ProfileConfig{ForbiddenSubjects: []string{"O=a"}}, "Secret ns/ca"),
				serving: with(ca.ProfileConfig{ForbiddenSubjects: []string{"O=b"}}, "Secret ns/ca"),
			}, 1,
		},
		"no subject is forbidden": {
			config.Signing{Signers: []config.Signer{{Name: client, CA: shared, ForbiddenSubjects: []string{}}}},
			map[string]served{client: with(ca.ProfileConfig{ForbiddenSubjects: []string{}}, "Secret ns/ca")}, 1,
		},
		"one Secret named twice": {
			config.Signing{Signers: []config.Signer{{Name: client, CA: shared}, {Name: serving, CA: shared}}},
			map[string]served{client: with(plain, "Secret ns/ca"), serving: with(plain, "Secret ns/ca")}, 1,
		},
		"a custom signer beside Kubernetes' signers": {
			config.Signing{CA: shared, Signers: []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "ns/other"}, Usages: []string{"client auth", "any"}}}},
			all("Secret ns/ca", func(signers map[string]served) {
				signers["example.com/a"] = with(ca.ProfileConfig{ForbidWildcards: true}, "Secret ns/other", "client auth", "any")
			}), 2,
		},
		"a custom signer that permits wildcards": {
			config.Signing{CA: shared, Signers: []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "ns/other"}, Usages: []string{"server auth"}, AllowWildcards: true}}},
			all("Secret ns/ca", func(signers map[string]served) {
				signers["example.com/a"] = with(plain, "Secret ns/other", "server auth")
			}), 2,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			options, err := FromConfiguration(configured(func(c *config.Configuration) {
				duration, bits := c.Signing.Duration, c.Signing.MinRSABits
				c.Signing = test.signing
				if c.Signing.Duration.Duration == 0 {
					c.Signing.Duration = duration
				}
				if c.Signing.MinRSABits == 0 {
					c.Signing.MinRSABits = bits
				}
			}))
			if err != nil {
				t.Fatal(err)
			}
			got, pairs := map[string]served{}, map[*keypair.KeyPair]bool{}
			for name, one := range options.Signer.Signers {
				_, missing := one.KeyPair.Authority(time.Time{})
				got[name] = served{CA: missing.Error(), Profile: one.Profile, Usages: one.Usages}
				pairs[one.KeyPair] = true
			}
			if diff := cmp.Diff(test.want, got, sameProfile, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("signers (-want +got):\n%s", diff)
			}
			if len(pairs) != test.pairs {
				t.Errorf("%d key pairs, want %d", len(pairs), test.pairs)
			}
		})
	}
}

func TestAProfileThatIsNoneNamesItsSigner(t *testing.T) {
	t.Parallel()
	_, err := FromConfiguration(configured(func(c *config.Configuration) {
		c.Signing.Signers = []config.Signer{{Name: "example.com/a", CA: config.CA{Secret: "ns/ca"}, ForbiddenSubjects: []string{"x"}}}
	}))
	const want = `signer example.com/a: "x" is not a subject pattern: want O=value or CN=value, with at most one *, at the end`
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	const hour = time.Hour
	defaults := csr.Retention{Approved: hour, Denied: hour, Failed: hour, Pending: 24 * hour}
	for name, test := range map[string]struct {
		cleaning config.Cleaning
		want     csr.RetentionPolicy
	}{
		"nothing set": {want: csr.RetentionPolicy{Default: defaults}},
		"all set": {
			config.Cleaning{Retention: config.Retention{Approved: span(1), Denied: span(2), Failed: span(3), Pending: span(4), Expired: span(-1)}},
			csr.RetentionPolicy{Default: csr.Retention{Approved: 1, Denied: 2, Failed: 3, Pending: 4, Expired: -1}},
		},
		"a zero is a value": {
			config.Cleaning{Retention: config.Retention{Denied: span(0)}},
			csr.RetentionPolicy{Default: csr.Retention{Approved: hour, Failed: hour, Pending: 24 * hour}},
		},
		"a signer's own retention, with defaults": {
			config.Cleaning{
				Retention: config.Retention{Pending: span(2 * hour)},
				Signers:   []config.SignerRetention{{Name: "example.com/a", Retention: config.Retention{Approved: span(-1)}}, {Name: "example.com/b"}},
			},
			csr.RetentionPolicy{
				Default: csr.Retention{Approved: hour, Denied: hour, Failed: hour, Pending: 2 * hour},
				Signers: map[string]csr.Retention{
					"example.com/a": {Approved: -1, Denied: hour, Failed: hour, Pending: 2 * hour},
					"example.com/b": {Approved: hour, Denied: hour, Failed: hour, Pending: 2 * hour},
				},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test.cleaning.DeletesPerSecond = 7
			options, err := FromConfiguration(configured(func(c *config.Configuration) { c.Cleaning = test.cleaning }))
			if err != nil {
				t.Fatal(err)
			}
			// The signer and the cleaner have the same retention, so the signer does not sign a request that the cleaner
			// deletes.
			for _, got := range []csr.RetentionPolicy{options.Cleaner.Retention, options.Signer.Retention} {
				if diff := cmp.Diff(test.want, got, cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("retention (-want +got):\n%s", diff)
				}
			}
			if rate := options.Cleaner.Limiter.QPS(); rate != 7 {
				t.Errorf("%v deletions a second", rate)
			}
		})
	}
}

func TestControllersThatAreOff(t *testing.T) {
	t.Parallel()
	for list, want := range map[string][3]bool{"*": {true, true, true}, "approver": {true, false, false}, "signer": {false, true, false}, "cleaner": {false, false, true}} {
		options, err := FromConfiguration(configured(func(c *config.Configuration) { c.Controllers = []string{list} }))
		if got := [3]bool{options.Approver != nil, options.Signer != nil, options.Cleaner != nil}; err != nil || got != want {
			t.Errorf("%s: %v, error %v", list, got, err)
		}
	}
}

func TestApprover(t *testing.T) {
	t.Parallel()
	options, err := FromConfiguration(configured(func(c *config.Configuration) {
		c.Approval.Denial = "Permanent"
		c.Concurrency = config.Concurrency{Approver: 1, Signer: 2, Cleaner: 3}
	}))
	if err != nil {
		t.Fatal(err)
	}
	if rules := options.Approver.Rules; len(rules) != 1 || rules[0].SignerName != "kubernetes.io/kube-apiserver-client-kubelet" || options.Approver.Denial != "Permanent" {
		t.Errorf("%d rules, denial %s", len(rules), options.Approver.Denial)
	}
	if options.Concurrency != (Concurrency{Approver: 1, Signer: 2, Cleaner: 3}) {
		t.Errorf("concurrency %+v", options.Concurrency)
	}
}

func TestBootstrapPolicies(t *testing.T) {
	t.Parallel()
	window := approver.JoinWindow{Before: 10 * time.Second, After: 2 * time.Hour}
	for name, test := range map[string]struct {
		change func(*config.NodeClient)
		want   approver.BootstrapPolicy
	}{
		"openshift": {
			func(c *config.NodeClient) { c.Inventory = "openshift" },
			approver.BootstrapPolicy{Expected: true, MaxRequestAge: 15 * time.Minute, Window: window, Users: []string{"system:serviceaccount:openshift-machine-config-operator:node-bootstrapper"}},
		},
		"cluster-api": {
			func(c *config.NodeClient) {
				c.Inventory, c.Rejoin, c.CertificateLifetime.Duration = "cluster-api", true, time.Hour
			},
			approver.BootstrapPolicy{Expected: true, MaxRequestAge: 15 * time.Minute, Window: window, Rejoin: true, CertificateLifetime: time.Hour},
		},
		"tokens": {
			func(c *config.NodeClient) { c.RequireTokenBinding, c.BootstrapUsers = true, []string{"a"} },
			approver.BootstrapPolicy{TokenBinding: true, MaxRequestAge: 15 * time.Minute, Window: window, Users: []string{"a"}},
		},
	} {
		c := config.Default().Approval.NodeClient
		test.change(&c)
		if diff := cmp.Diff(test.want, bootstrapPolicyOf(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestPresetsChooseMachines checks that a preset reads its own Machines unless the configuration has a machine source.
func TestPresetsChooseMachines(t *testing.T) {
	t.Parallel()
	clusterAPI, openShift := machine.ClusterAPI(), machine.OpenShift()
	clusterAPI.Namespace, clusterAPI.Selector = "fleet", "cluster.x-k8s.io/cluster-name=lab"
	for preset, want := range map[string]*machine.Options{"": nil, "sources": nil, "static": nil, "cluster-api": &clusterAPI, "openshift": &openShift} {
		c := config.Default().Approval
		c.NodeClient.Inventory, c.NodeClient.ClusterName = preset, "fleet/lab"
		if diff := cmp.Diff(want, presetMachines(c)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", preset, diff)
		}
		if got, more := len(inventoryOf(c).Sources), want != nil; got != 1 && !more || got != 2 && more {
			t.Errorf("%s: %d sources", preset, got)
		}
		c.Inventory.Sources = []config.Source{{Machine: &config.MachineSource{Kind: "Host"}}}
		if presetMachines(c) != nil || len(inventoryOf(c).Sources) != 1 {
			t.Errorf("%s asks its own machines beside those that are configured", preset)
		}
	}
}

// TestNothingConfiguredAsksNothing checks that the default rule for client certificates is kube-controller-manager's.
func TestNothingConfiguredAsksNothing(t *testing.T) {
	t.Parallel()
	r := approverOf(config.Default().Approval)
	if r.Inventory != nil || len(r.Rules) != 1 || r.Rules[0].Judge != nil {
		t.Errorf("%+v", r)
	}
	for _, recogniser := range r.Rules[0].Recognisers {
		if recogniser.Gate != nil {
			t.Errorf("%s is gated", recogniser.Name)
		}
	}
}

// TestSourceOfKnowsEveryKind checks that each kind of source has a builder: a source must not become a weaker one.
func TestSourceOfKnowsEveryKind(t *testing.T) {
	t.Parallel()
	kinds := reflect.TypeFor[config.Source]()
	for i := range kinds.NumField() {
		var source config.Source
		reflect.ValueOf(&source).Elem().Field(i).Set(reflect.New(kinds.Field(i).Type.Elem()))
		got := reflect.ValueOf(sourceOf(source, config.Inventory{})).Pointer()
		if got == reflect.ValueOf(sourceOf(config.Source{}, config.Inventory{})).Pointer() {
			t.Errorf("%s: add it to sourceOf", kinds.Field(i).Name)
		}
	}
}
