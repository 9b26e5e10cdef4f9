package manifests

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// installs are the manifests that a user applies, with their Deployments and the controllers that each runs.
var installs = map[string]map[string][]config.Controller{
	"default":                {"csr-controller-manager": {config.ApproverController, config.SignerController, config.CleanerController}},
	"overlays/control-plane": {"csr-controller-manager": {config.ApproverController, config.SignerController, config.CleanerController}},
	"overlays/split": {
		"csr-approver": {config.ApproverController}, "csr-signer": {config.SignerController}, "csr-cleaner": {config.CleanerController},
	},
	approverOnly: {"csr-approver": {config.ApproverController}},
	splitRotation: {
		"csr-approver": {config.ApproverController}, "csr-signer": {config.SignerController}, "csr-cleaner": {config.CleanerController},
		"csr-rotation": {config.RotationController},
	},
}

// approverOnly is the install for clusters in which kube-controller-manager signs.
const approverOnly = "overlays/approver-only"

// accepted holds the objects that the API server has accepted.
var accepted sync.Map

// accept checks with the API server that all objects could be created. It asks once about an object that several manifests contain.
func accept(t *testing.T, all objects) {
	t.Helper()
	for name, obj := range all {
		obj = obj.DeepCopy()
		if obj.GetNamespace() == systemNamespace || obj.GetNamespace() == trustFiles {
			obj.SetNamespace("default") // a dry run creates no namespace for other objects
		}
		if obj.GetName() == systemNamespace {
			obj.SetName("another") // the object may exist already
		}
		text := fmt.Sprint(obj.Object)
		if _, known := accepted.Load(text); known {
			continue
		}
		err := admin.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(obj), client.DryRunAll, client.FieldOwner("test"), client.ForceOwnership)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		accepted.Store(text, true)
	}
}

func TestAccepted(t *testing.T) {
	t.Parallel()
	for _, folder := range []string{"default", "overlays/control-plane", "overlays/split", approverOnly, "overlays/dry-run", "overlays/static-pod", "overlays/static-pod/pod", splitRotation, "rotation", "rotation/admission"} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			accept(t, kustomize(t, folder))
		})
	}
}

// TestPodSecurity creates the pods of each install in a namespace with the labels of its own namespace.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	for folder, level := range map[string]string{"default": "restricted", "overlays/split": "restricted", approverOnly: "restricted", splitRotation: "restricted", "overlays/control-plane": "privileged"} {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			all := kustomize(t, folder)
			space := typed[corev1.Namespace](t, all, "Namespace")[systemNamespace]
			space.Name, space.GenerateName = "", "pods-"
			if got := space.Labels["pod-security.kubernetes.io/enforce"]; got != level {
				t.Errorf("the namespace enforces %q, want %q", got, level)
			}
			kit.NoError(t, admin.Create(t.Context(), space))
			for name, deployment := range typed[appsv1.Deployment](t, all, "Deployment") {
				if err := admin.Create(t.Context(), podOf(deployment, space.Name), client.DryRunAll); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			// Show that the check above can fail: a pod that asks for more is refused, unless everything is allowed.
			greedy := podOf(&appsv1.Deployment{}, space.Name)
			greedy.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
			if err := admin.Create(t.Context(), greedy, client.DryRunAll); (err == nil) != (level == "privileged") {
				t.Errorf("a pod without a security context: %v", err)
			}
		})
	}
}

func podOf(deployment *appsv1.Deployment, namespace string) *corev1.Pod {
	template := deployment.Spec.Template
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Namespace: namespace, Labels: template.Labels},
		Spec:       template.Spec,
	}
}

// TestConfigurationIsTaken loads each container's flags and file as the manager does.
func TestConfigurationIsTaken(t *testing.T) {
	t.Parallel()
	for folder, deployments := range installs {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			loaded := load(t, kustomize(t, folder))
			if len(loaded) != len(deployments) {
				t.Errorf("%d Deployments, want %d", len(loaded), len(deployments))
			}
			for name, controllers := range deployments {
				got := loaded[name]
				if got == nil {
					t.Fatalf("no Deployment %s", name)
				}
				for _, each := range []config.Controller{config.ApproverController, config.SignerController, config.CleanerController, config.RotationController} {
					if want := slices.Contains(controllers, each); got.Enabled(each) != want {
						t.Errorf("%s runs the %s: %t, want %t", name, each, !want, want)
					}
				}
				secret := got.Signing.Secret == systemNamespace+"/csr-signer" || folder == approverOnly
				if got.LeaderElection.ResourceName != name || !got.MetricsSecure || !secret {
					t.Errorf("%s: %+v", name, got)
				}
			}
		})
	}
	var pod *corev1.Pod
	for _, pod = range typed[corev1.Pod](t, kustomize(t, "overlays/static-pod/pod"), "Pod") {
		got, err := config.Load(pod.Spec.Containers[0].Args)
		kit.NoError(t, err)
		if got.LeaderElection.ResourceNamespace != pod.Namespace || got.Kubeconfig == "" || got.Signing.KeyFile == "" {
			t.Errorf("static pod: %+v", got)
		}
	}
	if pod == nil {
		t.Error("no static pod")
	}
}

// TestStaticPodIsThatOfTheControlPlane compares the static Pod with the Pods of overlays/control-plane. What differs is what a
// static Pod cannot have, or gets from the host: its identity, its configuration, and where it runs.
func TestStaticPodIsThatOfTheControlPlane(t *testing.T) {
	t.Parallel()
	deployment := typed[appsv1.Deployment](t, kustomize(t, "overlays/control-plane"), "Deployment")["csr-controller-manager"]
	want := deployment.Spec.Template.Spec
	got := typed[corev1.Pod](t, kustomize(t, "overlays/static-pod/pod"), "Pod")["csr-controller-manager"].Spec
	for _, pod := range []*corev1.PodSpec{&want, &got} {
		container := &pod.Containers[0]
		container.Env = slices.DeleteFunc(container.Env, func(env corev1.EnvVar) bool { return env.Name != "GOMEMLIMIT" })
		for i := range container.Ports {
			container.Ports[i].HostPort = 0 // equal to the port of the container in the host network
		}
		container.Args, container.VolumeMounts, container.StartupProbe = nil, nil, nil
		pod.Volumes, pod.PriorityClassName, pod.SecurityContext.FSGroup = nil, "", nil
		pod.ServiceAccountName, pod.EnableServiceLinks, pod.DNSPolicy = "", nil, ""
		pod.NodeSelector, pod.Tolerations, pod.Affinity, pod.TopologySpreadConstraints = nil, nil, nil, nil
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-control-plane +static Pod):\n%s", diff)
	}
}

// TestPods checks mistakes that an API server accepts and that would harm a user.
func TestPods(t *testing.T) {
	t.Parallel()
	for folder := range installs {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			all := kustomize(t, folder)
			loaded := load(t, all)
			budgets := typed[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget")
			service := typed[corev1.Service](t, all, "Service")["csr-controller-manager-metrics"]
			policies := typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")
			for name, deployment := range typed[appsv1.Deployment](t, all, "Deployment") {
				pod := deployment.Spec.Template
				checkContainer(t, pod.Spec, loaded[name])
				set := labels.Set(pod.Labels)
				if *deployment.Spec.Replicas != 2 || !selects(t, deployment.Spec.Selector, set) {
					t.Errorf("%s: %d replicas, selector %v", name, *deployment.Spec.Replicas, deployment.Spec.Selector)
				}
				if budget := budgets[name]; budget == nil || !selects(t, budget.Spec.Selector, set) || budget.Spec.MaxUnavailable.IntValue() != 1 {
					t.Errorf("%s: disruption budget %v", name, budget)
				}
				for other, budget := range budgets {
					if other != name && selects(t, budget.Spec.Selector, set) {
						t.Errorf("%s is in the disruption budget %s", name, other)
					}
				}
				if !labels.SelectorFromSet(service.Spec.Selector).Matches(set) || service.Spec.Ports[0].TargetPort.String() != "metrics" {
					t.Errorf("%s: the metrics Service selects %v", name, service.Spec.Selector)
				}
				policy := policies["csr-controller-manager"]
				if pod.Spec.HostNetwork != (policy == nil) || policy != nil && !selects(t, &policy.Spec.PodSelector, set) {
					t.Errorf("%s: NetworkPolicy %v", name, policy)
				}
				checkSpread(t, name, pod.Spec, set)
			}
		})
	}
}

func selects(t *testing.T, selector *metav1.LabelSelector, set labels.Set) bool {
	t.Helper()
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	kit.NoError(t, err)
	return !parsed.Empty() && parsed.Matches(set)
}

// checkContainer compares ports and probes with the manager's addresses, and the grace period with the manager's stop
// time.
func checkContainer(t *testing.T, pod corev1.PodSpec, loaded *config.Configuration) {
	t.Helper()
	container := pod.Containers[0]
	ports := map[string]string{}
	for _, port := range container.Ports {
		ports[port.Name] = ":" + strconv.Itoa(int(port.ContainerPort))
	}
	if loaded.MetricsBindAddress != ports["metrics"] || !strings.HasSuffix(loaded.HealthProbeBindAddress, ports["probes"]) {
		t.Errorf("ports %v, but it listens on %s and %s", ports, loaded.MetricsBindAddress, loaded.HealthProbeBindAddress)
	}
	if container.TerminationMessagePolicy != corev1.TerminationMessageFallbackToLogsOnError {
		t.Errorf("%q: why it ended can't be read when kubectl logs does not work", container.TerminationMessagePolicy)
	}
	host := strings.TrimSuffix(loaded.HealthProbeBindAddress, ports["probes"])
	for path, probe := range map[string]*corev1.Probe{"/healthz": container.LivenessProbe, "/readyz": container.ReadinessProbe} {
		if get := probe.HTTPGet; get.Path != path || get.Port.String() != "probes" || get.Host != host {
			t.Errorf("probe %+v, want %s on %q", get, path, host)
		}
	}
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace <= 100*time.Second {
		t.Errorf("%s to stop: the manager waits up to 100 s for its last calls", grace)
	}
	kubeadm := corev1.Toleration{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule}
	if !slices.Contains(pod.Tolerations, kubeadm) {
		t.Errorf("tolerations %v: with kubeadm, no control plane's node would run it", pod.Tolerations)
	}
	if *pod.EnableServiceLinks || !*container.SecurityContext.ReadOnlyRootFilesystem || container.Resources.Requests.Memory().IsZero() || container.Resources.Requests.Cpu().IsZero() {
		t.Errorf("service links, root file system, or requests: %+v", container)
	}
}

// checkSpread checks that the replicas of one Deployment are spread, and that pods of different Deployments do not
// affect each other.
func checkSpread(t *testing.T, name string, pod corev1.PodSpec, set labels.Set) {
	t.Helper()
	terms := pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	for _, preferred := range pod.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution {
		terms = append(terms, preferred.PodAffinityTerm)
	}
	if len(terms) != 1 || terms[0].TopologyKey != corev1.LabelHostname {
		t.Fatalf("%s: anti-affinity %v", name, terms)
	}
	for _, selector := range []*metav1.LabelSelector{terms[0].LabelSelector, pod.TopologySpreadConstraints[0].LabelSelector} {
		if diff := cmp.Diff(map[string]string(set), selector.MatchLabels); diff != "" {
			t.Errorf("%s is kept apart from others than its replicas (-labels +selector):\n%s", name, diff)
		}
	}
	required := len(pod.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) == 1
	if required != pod.HostNetwork {
		t.Errorf("%s: two pods on one node: ports in the node's network %t, kept apart %t", name, pod.HostNetwork, required)
	}
}
