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

	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

const (
	helmRelease = "csr"

	deployments        = "deployments.apps " + systemNamespace + "/"
	signingAuthorities = "customresourcedefinitions.apiextensions.k8s.io /signingauthorities.csr-controller-manager.io"
	rolesOfRotation    = "roles.rbac.authorization.k8s.io " + systemNamespace + "/csr-rotation"

	year = 365 * 24 * time.Hour
)

// testHelmRelease takes a release of the chart through its life: install, upgrade with other values, rollback, uninstall, and install
// again. Helm waits until the pods are ready. After each step there are the objects that the docs promise, and the manager signs.
func (u *upgrade) testHelmRelease(t *testing.T) {
	t.Helper()
	h := startHelm(t, u)
	before := h.objects(t)
	h.helm(t, "install", helmRelease, chart, "--set=split=true")
	h.want(t, "the install", year, map[string]bool{
		deployments + "csr-approver": true, deployments + "csr-signer": true, deployments + "csr-cleaner": true, deployments + "csr-rotation": false,
		"clusterrolebindings.rbac.authorization.k8s.io /csr-signer": true, "serviceaccounts. " + systemNamespace + "/csr-cleaner": true,
		rolesOfRotation: false, signingAuthorities: false,
	})
	h.helm(t, "upgrade", helmRelease, chart, "--set=split=true,config.signing.duration=2h,config.rotation.enabled=true")
	h.make(t, h.authority(t)) // with rotation, no CA signs that is not proven to be trusted
	h.want(t, "the upgrade", 2*time.Hour, map[string]bool{deployments + "csr-rotation": true, signingAuthorities: true, rolesOfRotation: true})

	h.helm(t, "rollback", helmRelease, "1")
	h.want(t, "the rollback", year, map[string]bool{deployments + "csr-rotation": false, signingAuthorities: true, rolesOfRotation: false})

	h.uninstall(t, before)
	h.helm(t, "install", helmRelease, chart, "--set=config.rotation.enabled=true") // takes over the API that was left
	h.want(t, "the second install", year, map[string]bool{deployments + "csr-controller-manager": true, deployments + "csr-signer": false})
	h.uninstall(t, before)
}

// helmed is a cluster whose pods are processes, and helm.
type helmed struct {
	*upgrade
	path string
	env  []string
}

func startHelm(t *testing.T, u *upgrade) *helmed {
	t.Helper()
	path, err := helmPath()
	kit.NoError(t, err)
	kubeconfig, err := u.WriteKubeconfig("helm", u.Config)
	kit.NoError(t, err)
	own := t.TempDir()
	env := append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+own, "HELM_CONFIG_HOME="+own, "HELM_DATA_HOME="+own)
	return &helmed{u, path, env}
}

// helm runs a command of helm, and the pods until it ends. It must succeed.
func (h *helmed) helm(t *testing.T, args ...string) {
	t.Helper()
	if slices.Contains([]string{"install", "upgrade"}, args[0]) { // the annotation stands for the image
		args = append(args, fmt.Sprintf("--set=replicas=%d,podAnnotations.binary=%s", h.replicas, h.current.binary))
	}
	command := exec.CommandContext(t.Context(), h.path, append(args, "--wait", "--timeout=60s", "--namespace="+systemNamespace)...)
	command.Dir, command.Env = root, h.env
	if output, err := h.during(t, command); err != nil {
		t.Fatalf("helm %s: %v\n%s\nnot ready: %v", args, err, output, h.notReady(t.Context()))
	}
}

// during runs a command, and the pods until it ends. It returns the output.
func (u *upgrade) during(t *testing.T, command *exec.Cmd) (string, error) {
	t.Helper()
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	kit.NoError(t, command.Start())
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	var err error
	u.within(t, 90*time.Second, command.String()+" ends", func(context.Context) error {
		select {
		case err = <-ended:
			return nil
		default:
			return errors.New("it runs")
		}
	})
	return output.String(), err
}

func (h *helmed) objects(t *testing.T) sets.Set[string] {
	t.Helper()
	found, err := cluster.Objects(t.Context(), h.Config)
	kit.NoError(t, err)
	return found
}

// want checks which of these objects there are, and that a new certificate is valid for that time.
func (h *helmed) want(t *testing.T, after string, validity time.Duration, wanted map[string]bool) {
	t.Helper()
	all := h.objects(t)
	for object, want := range wanted {
		if got := contains(all, object); got != want {
			t.Errorf("after %s: %s exists: %t, want %t", after, object, got, want)
		}
	}
	cert := h.signs(t, after)
	if got := cert.NotAfter.Sub(cert.NotBefore); got < validity || got > validity+10*time.Minute { // it begins a little earlier
		t.Errorf("after %s a certificate is valid for %s, want %s", after, got, validity)
	}
}

func contains(all sets.Set[string], object string) bool {
	return slices.ContainsFunc(all.UnsortedList(), func(one string) bool { return strings.HasPrefix(one, object+" ") })
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
	h.within(t, time.Minute, "nothing is left", func(ctx context.Context) error {
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
