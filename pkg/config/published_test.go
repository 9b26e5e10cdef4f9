package config

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// publish returns c as a reader of the ConfigMap gets it.
func publish(t *testing.T, c *Configuration) *Configuration {
	t.Helper()
	published, err := c.Published("ns")
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(published)
	if err != nil {
		t.Fatal(err)
	}
	got, unknown, err := ParsePublished(data)
	if err != nil || unknown != nil {
		t.Fatalf("error %v, unknown %v:\n%s", err, unknown, data)
	}
	return got
}

func TestPublishedFillsInDefaults(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Controllers, c.Rotation.Enabled = []string{"-csrcleaner", "*"}, true
	c.DryRun = []string{"csrapproving"}
	want := Default()
	want.Controllers, want.DryRun = []string{"approver", "signer", "rotation"}, []string{"approver"}
	want.Rotation.Enabled, want.LeaderElection.ResourceNamespace = true, "ns"
	want.Approval.Inventory.Elsewhere = true
	after := func(duration time.Duration) *metav1.Duration { return &metav1.Duration{Duration: duration} }
	want.Cleaning.Retention = Retention{
		Approved: after(time.Hour), Denied: after(time.Hour), Failed: after(time.Hour), Pending: after(24 * time.Hour), Expired: after(0),
	}
	if diff := cmp.Diff(want, publish(t, c)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An empty list of forbidden subjects forbids nothing, and an unset one forbids system:masters.
func TestPublishedKeepsEmptyLists(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Signing.ForbiddenSubjects = []string{}
	for _, name := range []string{"example.com/a", "example.com/b"} {
		c.Signing.Signers = append(c.Signing.Signers, Signer{Name: name, Usages: []string{"client auth"}, CA: CA{Secret: "ns/a"}})
	}
	c.Signing.Signers[0].ForbiddenSubjects = []string{}
	got := publish(t, c).Signing
	if got.ForbiddenSubjects == nil || got.Signers[0].ForbiddenSubjects == nil || got.Signers[1].ForbiddenSubjects != nil {
		t.Errorf("%#v", got)
	}
}

func TestPublishedHasNoCredentials(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Approval.Inventory.Sources = []Source{
		{Webhook: &WebhookSource{URL: "https://inventory/hooks/secret?token=secret", KeyFile: "/etc/key"}},
		{Webhook: &WebhookSource{URL: "https://user:sec ret@%zz"}},
	}
	published, err := c.Published("ns")
	if err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(published)
	if err != nil || strings.Contains(string(data), "hooks") || strings.Contains(string(data), "=secret") || strings.Contains(string(data), "ret@") {
		t.Errorf("error %v:\n%s", err, data)
	}
	if got := published.Approval.Inventory.Sources[0].Webhook; got.URL != "https://REMOVED" || got.KeyFile != "/etc/key" {
		t.Errorf("webhook %+v", got)
	}
	if original := c.Approval.Inventory.Sources[0].Webhook.URL; !strings.Contains(original, "secret") {
		t.Errorf("Published has changed the configuration itself: %s", original)
	}
}

// TestEveryTextIsReviewed lists the fields with free text. If you add a field, decide whether it can hold a credential,
// which Published must then remove.
func TestEveryTextIsReviewed(t *testing.T) {
	t.Parallel()
	reviewed := strings.Fields(`
		kind apiVersion controllers dryRun kubeconfig leaderElection.resourceName leaderElection.resourceNamespace
		metricsBindAddress healthProbeBindAddress metricsCertDir audit.path selfCheck.bootstrapGroups selfCheck.nodeGroups
		approval.denial approval.nodeClient.inventory approval.nodeClient.clusterName approval.nodeClient.bootstrapUsers
		approval.kubeletServing.clusterDomain approval.kubeletServing.reserved approval.kubeletServing.apiServerNodes
		approval.inventory.sources.machine.group approval.inventory.sources.machine.version
		approval.inventory.sources.machine.kind approval.inventory.sources.machine.namespace
		approval.inventory.sources.machine.selector approval.inventory.sources.machine.nodeRefPath
		approval.inventory.sources.machine.addressesPath approval.inventory.sources.machine.namePath
		approval.inventory.sources.machine.nameTypes approval.inventory.sources.machine.createdPath
		approval.inventory.sources.static.configMap approval.inventory.sources.static.rows.name
		approval.inventory.sources.static.rows.namePattern approval.inventory.sources.static.rows.suffixes
		approval.inventory.sources.static.rows.dnsNames approval.inventory.sources.static.rows.addresses
		approval.inventory.sources.webhook.url approval.inventory.sources.webhook.caFile
		approval.inventory.sources.webhook.certFile approval.inventory.sources.webhook.keyFile
		approval.inventory.kubeconfig nodeBlockList
		signing.secret signing.certFile signing.keyFile signing.chain signing.keyAlgorithm signing.forbiddenSubjects
		signing.signers.name signing.signers.secret signing.signers.certFile signing.signers.keyFile
		signing.signers.chain signing.signers.keyAlgorithm signing.signers.usages signing.signers.forbiddenSubjects
		signing.signers.allowedNames cleaning.signers.name`)
	var found []string
	var walk func(path string, of reflect.Type)
	walk = func(path string, of reflect.Type) {
		switch of.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(path, of.Elem())
		case reflect.Struct:
			for i := range of.NumField() {
				name, options, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
				switch {
				case name == "-" || !of.Field(i).IsExported():
				case name == "" && strings.Contains(options, "inline"):
					walk(path, of.Field(i).Type)
				default:
					walk(strings.TrimPrefix(path+"."+name, "."), of.Field(i).Type)
				}
			}
		case reflect.String:
			found = append(found, path)
		case reflect.Map, reflect.Interface:
			t.Errorf("%s: Published does not look into a %s", path, of)
		default:
		}
	}
	walk("", reflect.TypeFor[Configuration]())
	slices.Sort(found)
	slices.Sort(reviewed)
	if diff := cmp.Diff(reviewed, slices.Compact(found)); diff != "" {
		t.Errorf("if a new field can hold a credential, make Published remove it; then add the field to reviewed "+
			"(-reviewed +found):\n%s", diff)
	}
}

// The files and the servers of a published configuration are the manager's. Its reader must not use the same names.
func TestParsePublishedUsesNothingOfTheReadersMachine(t *testing.T) {
	t.Parallel()
	c := Default()
	c.Kubeconfig, c.Verbosity, c.Audit.Path = "/kubeconfig", 9, "/audit.log"
	c.Approval.Inventory.Kubeconfig = "/machines"
	c.Signing.CertFile, c.Signing.KeyFile = "/ca.crt", "/ca.key"
	usages := []string{"client auth"}
	c.Signing.Signers = []Signer{
		{Name: "example.com/a", Usages: usages, CA: CA{Secret: "ns/a"}},
		{Name: "example.com/b", Usages: usages, CA: CA{CertFile: "/b.crt", KeyFile: "/b.key"}},
	}
	got := publish(t, c)
	if got.Kubeconfig != "" || got.Verbosity != 0 || got.Audit.Path != "" || !got.Approval.Inventory.Elsewhere {
		t.Errorf("%+v", got)
	}
	if signing := got.Signing; !signing.Elsewhere || signing.Signers[0].Elsewhere || !signing.Signers[1].Elsewhere {
		t.Errorf("%+v", signing)
	}
}

func TestParsePublishedOfANewerManager(t *testing.T) {
	t.Parallel()
	head := "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"
	c, unknown, err := ParsePublished([]byte(head + "controllers: [signer]\nnewField: 1\n"))
	if err != nil || unknown == nil || !strings.Contains(unknown.Error(), "newField") || !slices.Equal(c.Controllers, []string{"signer"}) {
		t.Errorf("%+v, unknown %v, error %v", c, unknown, err)
	}
	for name, text := range map[string]string{"no YAML": "{", "another kind": "apiVersion: v1\nkind: Secret\n", "nothing": "", "a mistake": head + "requestLimits: {maxNames: -1}\n"} {
		if _, _, err := ParsePublished([]byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestMergeTakesEachControllerFromItsManager(t *testing.T) {
	t.Parallel()
	of := func(change func(*Configuration)) *Configuration {
		c := Default()
		change(c)
		return c
	}
	approver := of(func(c *Configuration) {
		c.Controllers, c.DryRun, c.Approval.Denial = []string{"approver"}, []string{"approver"}, "Permanent"
		c.Signing.Secret, c.RequestLimits.MaxNames = "ns/not-this", 7
	})
	signer := of(func(c *Configuration) {
		c.Controllers, c.Signing.Secret, c.Rotation.Enabled = []string{"signer"}, "ns/ca", true
		c.DryRun = []string{"approver"} // which is not its own
	})
	cleaner := of(func(c *Configuration) { c.Controllers, c.Cleaning.DeletesPerSecond = []string{"cleaner"}, 5 })
	rotation := of(func(c *Configuration) {
		c.Controllers, c.Rotation.Enabled, c.Rotation.SettleFor.Duration = []string{"rotation"}, true, time.Hour
	})
	want := of(func(c *Configuration) {
		c.Controllers, c.DryRun = []string{"approver", "signer", "cleaner", "rotation"}, []string{"approver"}
		c.Approval.Denial, c.RequestLimits.MaxNames = "Permanent", 7
		c.Signing.Secret, c.Cleaning.DeletesPerSecond, c.Rotation = "ns/ca", 5, rotation.Rotation
	})
	if diff := cmp.Diff(want, Merge([]*Configuration{cleaner, approver, rotation, signer})); diff != "" {
		t.Errorf("four managers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(Default(), Merge(nil)); diff != "" {
		t.Errorf("none (-want +got):\n%s", diff)
	}
	got := Merge([]*Configuration{of(func(*Configuration) {})})
	if !slices.Equal(got.Controllers, []string{"approver", "signer", "cleaner"}) {
		t.Errorf("one manager of all: %q", got.Controllers)
	}
}
