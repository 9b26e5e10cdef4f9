package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// TestHelmRelease takes a release of the chart through its life with helm, on a real API server: install, upgrade with
// other values, an upgrade that the API server refuses, rollback, uninstall, and install again. Helm waits until the
// pods are ready. After each step there are exactly the objects that the docs promise, and the manager signs.
func TestHelmRelease(t *testing.T) {
	t.Parallel()
	h := startHelm(t)
	before := h.objects(t)

	h.helm(t, "install", helmRelease, chart, "--set=split=true")
	h.deployed(t, "1")
	h.want(t, "the install", map[string]bool{
		deployments + "csr-approver": true, deployments + "csr-signer": true, deployments + "csr-cleaner": true, deployments + "csr-rotation": false,
		"clusterroles.rbac.authorization.k8s.io /csr-approver":                             true,
		"clusterrolebindings.rbac.authorization.k8s.io /csr-signer":                        true,
		"roles.rbac.authorization.k8s.io " + systemNamespace + "/csr-signing-secret":       true,
		"serviceaccounts. " + systemNamespace + "/csr-cleaner":                             true,
		"networkpolicies.networking.k8s.io " + systemNamespace + "/csr-controller-manager": true,
		"roles.rbac.authorization.k8s.io " + systemNamespace + "/csr-rotation":             false,
		signingAuthorities: false,
	})
	h.signsFor(t, "the install", year)

	h.refused(t)

	h.helm(t, "upgrade", helmRelease, chart, "--set=split=true,config.signing.duration=2h,config.rotation.enabled=true")
	h.want(t, "the upgrade", map[string]bool{
		deployments + "csr-signer": true, deployments + "csr-rotation": true, signingAuthorities: true,
		"roles.rbac.authorization.k8s.io " + systemNamespace + "/csr-rotation": true,
	})
	h.make(t, h.authority(t)) // with rotation, no CA signs that is not proven to be trusted
	h.signsFor(t, "the upgrade", 2*time.Hour)

	h.helm(t, "rollback", helmRelease, "1")
	h.want(t, "the rollback", map[string]bool{
		deployments + "csr-signer": true, deployments + "csr-rotation": false, signingAuthorities: true, // the chart keeps the API
		"roles.rbac.authorization.k8s.io " + systemNamespace + "/csr-rotation": false,
	})
	h.signsFor(t, "the rollback", year)

	h.uninstall(t, before)
	h.helm(t, "install", helmRelease, chart, "--set=config.rotation.enabled=true") // takes over the API that was left
	h.deployed(t, "1")
	h.want(t, "the second install", map[string]bool{deployments + "csr-controller-manager": true, deployments + "csr-signer": false, signingAuthorities: true})
	h.signsFor(t, "the second install", year)
	h.uninstall(t, before)
}

const (
	helmRelease = "csr"

	deployments        = "deployments.apps " + systemNamespace + "/"
	signingAuthorities = "customresourcedefinitions.apiextensions.k8s.io /signingauthorities.csr-controller-manager.io"

	year = 365 * 24 * time.Hour
)

// helmed is a cluster whose pods are processes, and helm.
type helmed struct {
	*upgrade
	path string
	env  []string
}

func startHelm(t *testing.T) *helmed {
	t.Helper()
	path, err := helmPath()
	kit.NoError(t, err)
	h := &helmed{upgrade: startUpgrade(t, 1, "garbage-collector-controller"), path: path}
	kubeconfig, err := h.WriteKubeconfig("helm", h.Config)
	kit.NoError(t, err)
	own := t.TempDir()
	h.env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+own, "HELM_CONFIG_HOME="+own, "HELM_DATA_HOME="+own)
	return h
}

// helm runs a command of helm, which must succeed.
func (h *helmed) helm(t *testing.T, args ...string) string {
	t.Helper()
	if slices.Contains([]string{"install", "upgrade"}, args[0]) {
		args = append(args, "--set=replicas=1", "--set=podAnnotations.binary="+h.current.binary)
	}
	begin := time.Now()
	output, err := h.tryHelm(t, append(args, "--wait", "--timeout=60s")...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s\nnot ready: %v", args, err, output, h.notReady(t.Context()))
	}
	t.Logf("helm %s: %s", args[0], time.Since(begin).Round(time.Second))
	return output
}

// tryHelm runs a command of helm, and the pods until it ends. It returns the output.
func (h *helmed) tryHelm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	command := exec.Command(h.path, append(args, "--namespace="+systemNamespace)...)
	command.Dir, command.Env = root, h.env
	return h.during(t, command)
}

// during runs a command, and the pods until it ends. It returns the output.
func (u *upgrade) during(t *testing.T, command *exec.Cmd) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	stop := context.AfterFunc(ctx, func() { _ = command.Process.Kill() })
	defer stop()
	pods := time.NewTicker(50 * time.Millisecond)
	defer pods.Stop()
	for {
		select {
		case err := <-ended:
			return output.String(), err
		case <-pods.C:
			if err := u.work(ctx); err != nil {
				cancel()
				return output.String(), errors.Join(err, <-ended)
			}
		}
	}
}

// deployed checks the status of the release.
func (h *helmed) deployed(t *testing.T, revision string) {
	t.Helper()
	output, err := h.tryHelm(t, "status", helmRelease)
	if err != nil || !strings.Contains(output, "STATUS: deployed") || !strings.Contains(output, "REVISION: "+revision+"\n") {
		t.Errorf("want revision %s, deployed: %v\n%s", revision, err, output)
	}
}

// refused upgrades to manifests that the schema of the values accepts and the API server does not. The Deployments stay
// as they are.
func (h *helmed) refused(t *testing.T) {
	t.Helper()
	before := h.generations(t)
	for value, want := range map[string]string{
		"tolerations[0].operator=Sometimes":                             "tolerations[1].operator",
		"extraVolumes[0].name=x,extraVolumes[0].emptyDirectory.medium=": "emptyDirectory",
		"nodeSelector.a=b c":                                            "nodeSelector",
	} {
		output, err := h.tryHelm(t, "upgrade", helmRelease, chart, "--set=split=true,replicas=1,podAnnotations.binary="+h.current.binary, "--set="+value)
		if err == nil || !strings.Contains(output, want) {
			t.Errorf("%s: error %v, want one about %s in:\n%s", value, err, want, output)
		}
	}
	if after := h.generations(t); after != before {
		t.Errorf("the Deployments have changed from %s to %s", before, after)
	}
	h.signsFor(t, "refused upgrades", year)
}

// generations returns the Deployments and how often their specs have changed.
func (h *helmed) generations(t *testing.T) string {
	t.Helper()
	list := &appsv1.DeploymentList{}
	kit.NoError(t, h.admin.List(t.Context(), list, client.InNamespace(systemNamespace)))
	var all []string
	for _, obj := range list.Items {
		all = append(all, fmt.Sprintf("%s: %d", obj.Name, obj.Generation))
	}
	return strings.Join(all, ", ")
}

func (h *helmed) objects(t *testing.T) sets.Set[string] {
	t.Helper()
	found, err := cluster.Objects(t.Context(), h.Config)
	kit.NoError(t, err)
	return found
}

// want checks which of these objects there are.
func (h *helmed) want(t *testing.T, after string, wanted map[string]bool) {
	t.Helper()
	all := h.objects(t)
	for object, want := range wanted {
		if got := contains(all, object); got != want {
			t.Errorf("after %s: %s exists: %t, want %t", after, object, got, want)
		}
	}
}

func contains(all sets.Set[string], object string) bool {
	return slices.ContainsFunc(all.UnsortedList(), func(one string) bool { return strings.HasPrefix(one, object+" ") })
}

// signsFor checks that a new certificate is valid for that time.
func (h *helmed) signsFor(t *testing.T, after string, want time.Duration) {
	t.Helper()
	cert := h.signs(t, after)
	if got := cert.NotAfter.Sub(cert.NotBefore); got < want || got > want+10*time.Minute { // it begins a little earlier
		t.Errorf("after %s a certificate is valid for %s, want %s", after, got, want)
	}
}

// remain are the objects that an uninstall leaves, beside those from before the install: the API of rotation, which the
// chart keeps, and objects that the manager or an administrator made.
var remain = []string{
	signingAuthorities, "apiservices.apiregistration.k8s.io /v1alpha1.csr-controller-manager.io", "signingauthorities.csr-controller-manager.io /cluster",
	"configmaps. " + systemNamespace + "/csr-trust", "configmaps. " + systemNamespace + "/csr-signer-ledger",
	"clustertrustbundles.certificates.k8s.io /kubernetes.io:kube-apiserver-client",
	"certificatesigningrequests.", "events.", "leases.coordination.k8s.io " + systemNamespace + "/csr-",
}

// uninstall removes the release. What is left is what there was before, and what remains.
func (h *helmed) uninstall(t *testing.T, before sets.Set[string]) {
	t.Helper()
	h.helm(t, "uninstall", helmRelease)
	h.within(t, "nothing is left", func(ctx context.Context) error {
		now, err := cluster.Objects(ctx, h.Config)
		if err != nil {
			return err
		}
		for object := range before {
			if !now.Has(object) && !strings.HasPrefix(object, "events.") {
				return fmt.Errorf("missing: %s", object)
			}
		}
		var left []string
		for object := range now.Difference(before) {
			if !slices.ContainsFunc(remain, func(start string) bool { return strings.HasPrefix(object, start) }) {
				left = append(left, object)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %q", left)
		}
		if !contains(now, signingAuthorities) {
			return errors.New("the API of rotation is gone")
		}
		return nil
	})
}
