package commands

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// publishedBy returns the ConfigMap of a manager, and its Lease with a holder, or without one.
func publishedBy(t *testing.T, lease, holder string, change func(*config.Configuration)) []client.Object {
	t.Helper()
	c := config.Default()
	change(c)
	published, err := c.Published("ns")
	if err != nil {
		t.Fatal(err)
	}
	text, err := yaml.Marshal(published)
	if err != nil {
		t.Fatal(err)
	}
	renewed := metav1.NewMicroTime(time.Unix(1_700_000_000, 0))
	return []client.Object{
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: lease + "-configuration", Labels: map[string]string{"csr-controller-manager.io/publishes": "configuration"}},
			Data:       map[string]string{"configuration.yaml": string(text), "manager.yaml": "version: v1\nuser: " + lease + "\n"},
		},
		&coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: lease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder), RenewTime: &renewed},
		},
	}
}

func TestReadPublished(t *testing.T) {
	t.Parallel()
	runs := func(secret string, controllers ...string) func(*config.Configuration) {
		return func(c *config.Configuration) { c.Controllers, c.Signing.Secret = controllers, secret }
	}
	all := publishedBy(t, "csr-controller-manager", "", runs("ns/old", "*"))
	approver := publishedBy(t, "csr-approver", "a", runs("ns/not-this", "approver"))
	signer := publishedBy(t, "csr-signer", "a", runs("ns/new", "signer"))
	cleaner := publishedBy(t, "csr-cleaner", "a", runs("", "cleaner"))
	broken := []client.Object{&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "broken-configuration", Labels: all[0].GetLabels()}, Data: map[string]string{"configuration.yaml": "{"},
	}}
	shipped := []client.Object{&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "csr-controller-manager-configuration", Labels: all[0].GetLabels()}}}
	for name, test := range map[string]struct {
		objects     [][]client.Object
		managers    []string // whose Leases are
		secret      string
		unpublished string
		aside       string
	}{
		"one":                              {[][]client.Object{all}, []string{"csr-controller-manager"}, "ns/old", "", ""},
		"split":                            {[][]client.Object{cleaner, signer, approver}, []string{"csr-approver", "csr-cleaner", "csr-signer"}, "ns/new", "", ""},
		"split, and one from before":       {[][]client.Object{all, cleaner, signer, approver}, []string{"csr-approver", "csr-cleaner", "csr-signer"}, "ns/new", "", "csr-controller-manager-configuration is ignored: the Lease has no holder"},
		"one that others do not stand for": {[][]client.Object{all, signer}, []string{"csr-signer", "csr-controller-manager"}, "ns/new", "", ""},
		"a broken one beside it":           {[][]client.Object{broken, signer}, []string{"csr-signer"}, "ns/new", "", "broken-configuration is ignored"},
		"as it is shipped":                 {[][]client.Object{shipped}, nil, "", "no manager has published its configuration in namespace ns", "The defaults are used instead"},
		"none":                             {nil, nil, "", "no manager has published its configuration in namespace ns", "The defaults are used instead"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			builder := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme)
			for _, each := range test.objects {
				for _, obj := range each {
					builder.WithObjects(obj.DeepCopyObject().(client.Object))
				}
			}
			var aside bytes.Buffer
			setup := ReadPublished(t.Context(), builder.Build(), "ns", &aside)
			var managers []string
			for _, manager := range setup.Managers {
				managers = append(managers, manager.Lease.Name)
				if manager.Status.User != manager.Lease.Name || manager.Lease.Namespace != "ns" {
					t.Errorf("%+v", manager)
				}
			}
			if diff := cmp.Diff(test.managers, managers); diff != "" || setup.Configuration.Signing.Secret != test.secret {
				t.Errorf("Secret %q, managers (-want +got):\n%s", setup.Configuration.Signing.Secret, diff)
			}
			if (setup.Unpublished == nil) != (test.unpublished == "") || setup.Unpublished != nil && !strings.Contains(setup.Unpublished.Error(), test.unpublished) {
				t.Errorf("unpublished: %v", setup.Unpublished)
			}
			if !strings.Contains(aside.String(), test.aside) || test.aside == "" && aside.Len() > 0 {
				t.Errorf("warned %q", aside.String())
			}
		})
	}
}

// Without a namespace, the plugin finds a manager in the default namespace, and else in kube-system.
func TestReadPublishedInDefaultNamespaces(t *testing.T) {
	t.Parallel()
	in := func(namespace, secret string) []client.Object {
		objects := publishedBy(t, "csr-controller-manager", "a", func(c *config.Configuration) { c.Signing.Secret = secret })
		for _, obj := range objects {
			obj.SetNamespace(namespace)
		}
		return objects
	}
	shipped := in("csr-controller-manager-system", "")[0].(*corev1.ConfigMap)
	shipped.Data = nil
	host := in("kube-system", "host/ca")
	for name, test := range map[string]struct {
		objects              []client.Object
		denied, secret, want string
	}{
		"in kube-system":                    {host, "", "host/ca", ""},
		"in kube-system, and a shipped one": {slices.Concat(host, []client.Object{shipped}), "", "host/ca", ""},
		"in both":                           {slices.Concat(host, in("csr-controller-manager-system", "pod/ca")), "", "pod/ca", ""},
		"in neither":                        {nil, "", "", "in namespace csr-controller-manager-system or kube-system: "},
		"kube-system is not readable":       {host, "kube-system", "", "in namespace csr-controller-manager-system: "},
		"the default is not readable":       {host, "csr-controller-manager-system", "", "list ConfigMaps in namespace csr-controller-manager-system: "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			builder := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme)
			for _, obj := range test.objects {
				builder.WithObjects(obj.DeepCopyObject().(client.Object)) // the builder sets resourceVersions
			}
			api := interceptor.NewClient(builder.Build(), interceptor.Funcs{
				List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if (&client.ListOptions{}).ApplyOptions(options).Namespace == test.denied {
						return errors.New("denied")
					}
					return api.List(ctx, list, options...)
				},
			})
			setup := ReadPublished(t.Context(), api, "", io.Discard)
			if got := setup.Configuration.Signing.Secret; got != test.secret || (setup.Unpublished == nil) != (test.want == "") {
				t.Fatalf("Secret %q, unpublished: %v", got, setup.Unpublished)
			}
			if test.want != "" && !strings.Contains(setup.Unpublished.Error(), test.want) {
				t.Errorf("unpublished: %v, want %q", setup.Unpublished, test.want)
			}
		})
	}
}

// The writer of a ConfigMap can neither name another Lease as its own nor write lines of its own to the terminal.
func TestReadPublishedOfAForger(t *testing.T) {
	t.Parallel()
	runs := func(secret string) func(*config.Configuration) {
		return func(c *config.Configuration) { c.Controllers, c.Signing.Secret = []string{"signer"}, secret }
	}
	forged := publishedBy(t, "forged", "x", runs("ns/forged"))
	written := forged[0].(*corev1.ConfigMap)
	written.Data["configuration.yaml"] = strings.Replace(written.Data["configuration.yaml"], "resourceNamespace: ns", "resourceNamespace: elsewhere", 1) +
		"\"unknown\\nWarning: all is well\": 1\n"
	written.Data["manager.yaml"] = `version: "1\nWarning: all is well\n` + strings.Repeat("x", 10_000) + `"`
	lease := forged[1].(*coordinationv1.Lease)
	lease.Namespace, lease.Spec.RenewTime = "elsewhere", &metav1.MicroTime{Time: time.Unix(1_800_000_000, 0)}
	objects := append(forged, publishedBy(t, "csr-signer", "a", runs("ns/true"))...)
	var aside bytes.Buffer
	setup := ReadPublished(t.Context(), fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(objects...).Build(), "ns", &aside)
	if got := setup.Configuration.Signing.Secret; got != "ns/true" || setup.Incomplete == nil {
		t.Errorf("Secret %s, incomplete %v", got, setup.Incomplete)
	}
	if aside.Len() == 0 {
		t.Error("no warning")
	}
	for line := range strings.Lines(aside.String()) {
		if !strings.HasPrefix(line, "Warning: ConfigMap ns/forged") || len(line) > 1100 {
			t.Errorf("a line of %d bytes: %.200q", len(line), line)
		}
	}
}

// TestCheckReportFitsATerminal compares what check writes about faults with a file that `make docs-shots` draws.
func TestCheckReportFitsATerminal(t *testing.T) {
	t.Parallel()
	report := &checkReport{APIServer: "https://192.0.2.1:6443", User: "kubernetes-admin", Passed: 59}
	report.add([]check.Result{
		{
			Check: "kubelet-rights", Subject: "nodes can renew (system:nodes)", Status: check.Failed,
			Evidence: "group system:nodes may not create certificatesigningrequests/selfnodeclient or create certificatesigningrequests/nodeclient: " +
				"nodes join, but do not renew, and are lost when their certificates expire",
			NextStep: "kubectl create clusterrolebinding approve-selfnodeclient-nodes " +
				"--clusterrole=system:certificates.k8s.io:certificatesigningrequests:selfnodeclient --group=system:nodes",
		},
		{
			Check: "ca-trusted", Subject: "the CA of kubernetes.io/kube-apiserver-client-kubelet", Status: check.Unknown,
			Evidence: "you may not get secrets in namespace csr-controller-manager-system (csr-signer)",
			NextStep: "run the command as a user who may",
		},
	})
	var out bytes.Buffer
	if err := report.writeTable(&out, false, "-v"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata", "check", "faults.txt")
	if *updateRotation {
		if err := os.WriteFile(file, out.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), out.String()); diff != "" {
		t.Errorf("(-%s +got; go test ./commands -update-rotation writes it):\n%s", file, diff)
	}
}

func TestCheckReport(t *testing.T) {
	t.Parallel()
	report := &checkReport{APIServer: "https://a", User: "admin"}
	report.add([]check.Result{
		{Check: "own-rights", Subject: "get x", Status: check.OK, Evidence: "allowed"},
		{Check: "ca-trusted", Subject: "the CA", Status: check.Failed, Evidence: "answers 401", NextStep: "append it"},
		{Check: "own-rights", Subject: "get y", Status: check.OK, Evidence: "allowed"},
	})
	for all, want := range map[bool]string{
		false: "Asked https://a as admin.\n\nca-trusted  failed   the CA: answers 401\n" +
			"                     -> append it\n\n2 checks passed; -v lists them.\n",
		true: "Asked https://a as admin.\n\nown-rights  ok       get x: allowed\n" +
			"ca-trusted  failed   the CA: answers 401\n                     -> append it\nown-rights  ok       get y: allowed\n\n2 checks passed.\n",
	} {
		var out bytes.Buffer
		if err := report.writeTable(&out, all, "-v"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("all %t (-want +got):\n%s", all, diff)
		}
	}
	if err := report.err(); err == nil || err.Error() != "check: 1 failed, 0 unknown" {
		t.Errorf("error %v", err)
	}
}
