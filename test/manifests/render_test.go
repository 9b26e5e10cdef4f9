// Package manifests tests the shipped manifests: kustomize and Helm give the same objects, a real API server accepts
// them, and no identity gets more rights than it needs.
package manifests

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// root is the module's root. Tests run in the folder of their package.
const root = "../.."

const systemNamespace = "csr-controller-manager-system"

// shared is a real API server for all tests, with the shipped audit policy. admin is its administrator, whose client refuses unknown fields.
var (
	shared   *cluster.Cluster
	auditLog string
	admin    client.Client
)

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runTests(m *testing.M) (code int, err error) {
	log.SetLogger(logr.Discard())
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		return 1, errors.New("KUBEBUILDER_ASSETS is not set: run the tests with make test")
	}
	policy, err := filepath.Abs(filepath.Join(root, "config/audit-policy/policy.yaml"))
	if err != nil {
		return 1, err
	}
	shared, err = cluster.StartConfigured(func(dir string, args *envtest.Arguments) {
		auditLog = filepath.Join(dir, "audit.log")
		args.Set("audit-policy-file", policy).Set("audit-log-path", auditLog)
	}, auditTokens()...)
	if err != nil {
		return 1, err
	}
	lenient, err := client.New(shared.Config, client.Options{Scheme: clientgoscheme.Scheme})
	if err == nil {
		admin = client.WithFieldValidation(lenient, "Strict")
		code = m.Run()
	}
	return code, errors.Join(err, shared.Stop())
}

// applyAll applies objects on the shared API server.
func applyAll(t *testing.T, all objects) {
	t.Helper()
	for name, obj := range all {
		if err := admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), client.FieldOwner("test"), client.ForceOwnership); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	return kit.Must(os.ReadFile(path))(t)
}

// objectsOf returns the objects of one kind.
func objectsOf(all objects, kind string) objects {
	some := objects{}
	for name, obj := range all {
		if obj.GetKind() == kind {
			some[name] = obj
		}
	}
	return some
}

const chart = "charts/csr-controller-manager"

// objects are rendered manifests, by kind, namespace and name.
type objects map[string]*unstructured.Unstructured

func key(obj *unstructured.Unstructured) string {
	return fmt.Sprintf("%s %s/%s", obj.GetKind(), obj.GetNamespace(), obj.GetName())
}

// kustomize renders a folder below config.
func kustomize(t *testing.T, folder string) objects {
	t.Helper()
	return byKey(t, kit.Rendered(t, folder))
}

// helm renders the chart.
func helm(t *testing.T, args ...string) objects {
	t.Helper()
	return rendered(t, "helm "+strings.Join(args, " "), func() ([]byte, error) { return output(helmCommand(t, args...)...) })
}

// renders holds what each command has rendered.
var renders sync.Map

// rendered returns the objects that render prints. It calls render once for each name.
func rendered(t *testing.T, name string, render func() ([]byte, error)) objects {
	t.Helper()
	once, _ := renders.LoadOrStore(name, sync.OnceValues(render))
	return byKey(t, kit.Parse(t, kit.Must(once.(func() ([]byte, error))())(t)))
}

// helmPath returns the path where the go command keeps the Helm that hack/helm.mod pins. It builds Helm first: "go tool -n" alone does not.
var helmPath = sync.OnceValues(func() (string, error) {
	if _, err := output("go", "tool", "-modfile=hack/helm.mod", "helm", "version"); err != nil {
		return "", err
	}
	path, err := output("go", "tool", "-modfile=hack/helm.mod", "-n", "helm")
	return strings.TrimSpace(string(path)), err
})

// helmCommand returns the command that renders the chart with the values of the command line.
func helmCommand(t *testing.T, args ...string) []string {
	t.Helper()
	path := kit.Must(helmPath())(t)
	return append([]string{path, "template", "csr-controller-manager", chart, "--namespace", systemNamespace}, args...)
}

func output(args ...string) ([]byte, error) {
	command := exec.Command(args[0], args[1:]...)
	command.Dir = root
	var complaints bytes.Buffer
	command.Stderr = &complaints
	data, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", args, err, complaints.String())
	}
	return data, nil
}

// byKey returns objects of which each must be there once.
func byKey(t *testing.T, all []*unstructured.Unstructured) objects {
	t.Helper()
	found := objects{}
	for _, obj := range all {
		kit.Check(t, found[key(obj)] == nil, "%s is there twice", key(obj))
		found[key(obj)] = obj
	}
	return found
}

// inFolder renders files in a folder of their own that stands for config/my-cluster of the source tree at root: "- ../NAME" there is
// config/NAME.
func inFolder(t *testing.T, root string, files map[string]string) objects {
	t.Helper()
	return rendered(t, fmt.Sprint(root, files), func() ([]byte, error) {
		dir := t.TempDir()
		config, err := filepath.Abs(filepath.Join(root, "config"))
		if err != nil {
			return nil, err
		}
		above, err := filepath.Rel(dir, config) // kustomize takes no absolute path
		if err != nil {
			return nil, err
		}
		for name, text := range files {
			kit.Write(t, filepath.Join(dir, name), []byte(strings.ReplaceAll(text, "- ../", "- "+above+"/")))
		}
		return output(filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl"), "kustomize", dir)
	})
}

// shippedConfig returns the configuration that config/default ships in the source tree at root.
func shippedConfig(t *testing.T, root string) string {
	t.Helper()
	return string(read(t, filepath.Join(root, "config/manager/config/config.yaml")))
}

// typed returns the objects of one kind as their Go type.
func typed[T any](t *testing.T, all objects, kind string) map[string]*T {
	t.Helper()
	found := map[string]*T{}
	for _, obj := range all {
		if obj.GetKind() == kind {
			found[obj.GetName()] = as[T](t, obj)
		}
	}
	return found
}

func as[T any](t *testing.T, obj *unstructured.Unstructured) *T {
	t.Helper()
	into := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj.Object, into, true); err != nil {
		t.Fatalf("%s: %v", key(obj), err)
	}
	return into
}

// load returns the configuration of each Deployment.
func load(t *testing.T, all objects) map[string]*config.Configuration {
	t.Helper()
	configs := typed[corev1.ConfigMap](t, all, "ConfigMap")
	found := map[string]*config.Configuration{}
	for name, deployment := range typed[appsv1.Deployment](t, all, "Deployment") {
		pod := deployment.Spec.Template.Spec
		container := pod.Containers[0]
		source := configs[pod.Volumes[0].ConfigMap.Name]
		kit.Require(t, source != nil && container.VolumeMounts[0].Name == pod.Volumes[0].Name,
			"%s mounts %q, and there is %v", name, pod.Volumes[0].ConfigMap.Name, configs)
		dir := t.TempDir()
		kit.Write(t, filepath.Join(dir, "config.yaml"), []byte(source.Data["config.yaml"]))
		var args []string
		for _, arg := range container.Args {
			args = append(args, strings.Replace(arg, container.VolumeMounts[0].MountPath, dir, 1))
		}
		loaded, err := config.Load(args, cel.New)
		kit.Require(t, err == nil, "%s: %v", name, err)
		found[name] = loaded
	}
	return found
}
