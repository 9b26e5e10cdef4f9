package manifests

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules/cel"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

var (
	threeControllers = []config.Controller{config.ApproverController, config.SignerController, config.CleanerController}
	controllers      = append(slices.Clone(threeControllers), config.RotationController)
)

// installs are the manifests that a user applies, with their Deployments and the controllers that each runs.
var installs = map[string]map[string][]config.Controller{
	"default":                {common: threeControllers},
	"overlays/control-plane": {common: threeControllers},
	"overlays/split":         {approver: controllers[:1], signer: controllers[1:2], cleaner: controllers[2:3]},
	approverOnly:             {approver: controllers[:1]},
	hostedHome:               {common: controllers},
	splitRotation:            {approver: controllers[:1], signer: controllers[1:2], cleaner: controllers[2:3], rotator: controllers[3:]},
}

const (
	// approverOnly is the install for clusters in which kube-controller-manager signs.
	approverOnly = "overlays/approver-only"
	// splitRotation is config/overlays/split with the rotation component.
	splitRotation = "../test/manifests/testdata/split-rotation"
	// hostedHome and hostedServed are the two installs of a hosted control plane.
	hostedHome, hostedServed = "overlays/hosted/home", "overlays/hosted/served"
)

// accepted holds the objects that the API server has accepted.
var accepted sync.Map

// accept checks with the API server that all objects could be created. It asks once about an object that several manifests contain.
func accept(t *testing.T, all objects) {
	t.Helper()
	for name, obj := range all {
		obj = obj.DeepCopy()
		if slices.Contains([]string{systemNamespace, trustFiles, authorizationFiles}, obj.GetNamespace()) {
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

// TestInstalls checks that an API server accepts each install and the managers of its Deployments load their flags and files, and looks for
// mistakes that an API server accepts and that would harm a user.
func TestInstalls(t *testing.T) {
	t.Parallel()
	for folder, want := range installs {
		t.Run(folder, func(t *testing.T) {
			t.Parallel()
			all := kustomize(t, folder)
			accept(t, all)
			loaded := load(t, all)
			for name, deployment := range typed[appsv1.Deployment](t, all, "Deployment") {
				kit.Require(t, want[name] != nil, "there is a Deployment %s", name)
				got := loaded[name]
				for _, each := range controllers {
					if want := slices.Contains(want[name], each); got.Enabled(each) != want {
						t.Errorf("%s runs the %s: %t, want %t", name, each, !want, want)
					}
				}
				secret := got.Signing.Secret == systemNamespace+"/csr-signer" || folder == approverOnly
				kit.Check(t, got.LeaderElection.ResourceName == name && got.MetricsSecure && secret, "%s: %+v", name, got)
				checkContainer(t, deployment.Spec.Template.Spec, got)
				checkSelectors(t, all, deployment)
				checkSpread(t, name, deployment)
			}
			kit.Check(t, len(loaded) == len(want), "%d Deployments, want %d", len(loaded), len(want))
		})
	}
	for _, folder := range []string{"overlays/dry-run", "overlays/static-pod", "overlays/static-pod/pod", "rotation", "rotation/admission"} {
		accept(t, kustomize(t, folder))
	}
}

// TestPodSecurity creates the pods of each install in a namespace with the labels of its own namespace.
func TestPodSecurity(t *testing.T) {
	t.Parallel()
	for folder := range installs {
		level := map[bool]string{false: "restricted", true: "privileged"}[folder == "overlays/control-plane"]
		all := kustomize(t, folder)
		space := typed[corev1.Namespace](t, all, "Namespace")[systemNamespace]
		space.Name, space.GenerateName = "", "pods-"
		if got := space.Labels["pod-security.kubernetes.io/enforce"]; got != level {
			t.Errorf("the namespace of %s enforces %q, want %q", folder, got, level)
		}
		kit.NoError(t, admin.Create(t.Context(), space))
		pod := func(labels map[string]string, spec corev1.PodSpec) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Namespace: space.Name, Labels: labels}, Spec: spec}
		}
		for name, deployment := range typed[appsv1.Deployment](t, all, "Deployment") {
			template := deployment.Spec.Template
			if err := admin.Create(t.Context(), pod(template.Labels, template.Spec), client.DryRunAll); err != nil {
				t.Errorf("%s of %s: %v", name, folder, err)
			}
		}
		// Show that the check above can fail: a pod that asks for more is refused, unless everything is allowed.
		greedy := pod(nil, corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}})
		if err := admin.Create(t.Context(), greedy, client.DryRunAll); (err == nil) != (level == "privileged") {
			t.Errorf("%s: a pod without a security context: %v", folder, err)
		}
	}
}

// TestStaticPodIsThatOfTheControlPlane compares the static Pod with the Pods of overlays/control-plane. What differs is what a
// static Pod cannot have, or gets from the host: its identity, its configuration, and where it runs.
func TestStaticPodIsThatOfTheControlPlane(t *testing.T) {
	t.Parallel()
	want := typed[appsv1.Deployment](t, kustomize(t, "overlays/control-plane"), "Deployment")[common].Spec.Template.Spec
	static := typed[corev1.Pod](t, kustomize(t, "overlays/static-pod/pod"), "Pod")[common]
	got := static.Spec
	loaded := kit.Must(config.Load(got.Containers[0].Args, cel.New))(t)
	kit.Check(t, loaded.LeaderElection.ResourceNamespace == static.Namespace && loaded.Kubeconfig != "" && loaded.Signing.KeyFile != "",
		"static pod: %+v", loaded)
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
	kit.Equal(t, "static Pod", got, want)
}

// checkSelectors checks which objects select the pods of a Deployment. The NetworkPolicy lets only named namespaces reach the metrics, since
// each token that a client presents there costs the API server a review.
func checkSelectors(t *testing.T, all objects, deployment *appsv1.Deployment) {
	t.Helper()
	pod, set := deployment.Spec.Template, labels.Set(deployment.Spec.Template.Labels)
	selects := func(selector *metav1.LabelSelector) bool {
		parsed, err := metav1.LabelSelectorAsSelector(selector)
		return err == nil && !parsed.Empty() && parsed.Matches(set)
	}
	kit.Check(t, *deployment.Spec.Replicas == 2 && selects(deployment.Spec.Selector),
		"%s: %d replicas, selector %v", deployment.Name, *deployment.Spec.Replicas, deployment.Spec.Selector)
	for name, budget := range typed[policyv1.PodDisruptionBudget](t, all, "PodDisruptionBudget") {
		kit.Check(t, selects(budget.Spec.Selector) == (name == deployment.Name) && budget.Spec.MaxUnavailable.IntValue() == 1,
			"%s: disruption budget %v", deployment.Name, budget)
	}
	kit.Check(t, all["PodDisruptionBudget "+systemNamespace+"/"+deployment.Name] != nil, "%s has no disruption budget", deployment.Name)
	service := typed[corev1.Service](t, all, "Service")["csr-controller-manager-metrics"]
	kit.Check(t, labels.SelectorFromSet(service.Spec.Selector).Matches(set) && service.Spec.Ports[0].TargetPort.String() == "metrics",
		"%s: the metrics Service selects %v", deployment.Name, service.Spec.Selector)
	policy := typed[networkingv1.NetworkPolicy](t, all, "NetworkPolicy")[common]
	kit.Require(t, pod.Spec.HostNetwork == (policy == nil), "%s: NetworkPolicy %v", deployment.Name, policy)
	if policy == nil {
		return
	}
	kit.Check(t, selects(&policy.Spec.PodSelector) && len(policy.Spec.Ingress) > 0, "%s: NetworkPolicy %v", deployment.Name, policy)
	for _, rule := range policy.Spec.Ingress {
		kit.Check(t, len(rule.From) == 1 && rule.From[0].NamespaceSelector != nil && len(rule.From[0].NamespaceSelector.MatchLabels) > 0,
			"%s lets in %+v", deployment.Name, rule.From)
	}
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
	kit.Check(t, loaded.MetricsBindAddress == ports["metrics"] && strings.HasSuffix(loaded.HealthProbeBindAddress, ports["probes"]),
		"ports %v, but it listens on %s and %s", ports, loaded.MetricsBindAddress, loaded.HealthProbeBindAddress)
	kit.Check(t, container.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError,
		"%q: why it ended can't be read when kubectl logs does not work", container.TerminationMessagePolicy)
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
	kit.Check(t, slices.Contains(pod.Tolerations, kubeadm),
		"tolerations %v: with kubeadm, no control plane's node would run it", pod.Tolerations)
	requests := container.Resources.Requests
	if *pod.EnableServiceLinks || !*container.SecurityContext.ReadOnlyRootFilesystem || requests.Memory().IsZero() || requests.Cpu().IsZero() {
		t.Errorf("service links, root file system, or requests: %+v", container)
	}
}

// checkSpread checks that the replicas of one Deployment are spread, and that pods of different Deployments do not affect each other. Pods
// whose ports are the node's must not share a node: a rollout then ends the old ones first.
func checkSpread(t *testing.T, name string, deployment *appsv1.Deployment) {
	t.Helper()
	pod := deployment.Spec.Template
	apart := pod.Spec.Affinity.PodAntiAffinity
	terms := slices.Clone(apart.RequiredDuringSchedulingIgnoredDuringExecution)
	for _, preferred := range apart.PreferredDuringSchedulingIgnoredDuringExecution {
		terms = append(terms, preferred.PodAffinityTerm)
	}
	kit.Require(t, len(terms) == 1 && terms[0].TopologyKey == corev1.LabelHostname, "%s: anti-affinity %v", name, terms)
	for _, selector := range []*metav1.LabelSelector{terms[0].LabelSelector, pod.Spec.TopologySpreadConstraints[0].LabelSelector} {
		kit.Equal(t, name+" is kept apart from others than its replicas: labels", selector.MatchLabels, pod.Labels)
	}
	if required := len(apart.RequiredDuringSchedulingIgnoredDuringExecution) == 1; required != pod.Spec.HostNetwork {
		t.Errorf("%s: two pods on one node: ports in the node's network %t, kept apart %t", name, pod.Spec.HostNetwork, required)
	}
	update := deployment.Spec.Strategy.RollingUpdate
	kit.Check(t, !pod.Spec.HostNetwork || update.MaxSurge.String() == "0" && update.MaxUnavailable.String() == "100%",
		"%s: on one node, a rollout waits for ever: %+v", name, update)
}
