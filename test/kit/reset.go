package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
)

// state is what a control plane holds.
type state struct {
	objects sets.Set[object]
	// clientCAs is the content of the API server's client CA file.
	clientCAs []byte
}

// object is an object of the API server.
type object struct {
	kind            schema.GroupVersionResource
	namespace, name string
	uid             types.UID
	finalizers      bool
}

func (o object) String() string { return fmt.Sprintf("%s %s/%s", o.kind.Resource, o.namespace, o.name) }

// isCRD reports whether o defines a kind.
func (o object) isCRD() bool { return o.kind.Resource == "customresourcedefinitions" }

// place returns the kind and the namespace of o.
func (o object) place() object { return object{kind: o.kind, namespace: o.namespace} }

// shares reports whether an object that stays has the kind and the namespace of obj.
func (p *Plane) shares(obj object) bool {
	for stays := range p.clean.objects {
		if stays.place() == obj.place() {
			return true
		}
	}
	return false
}

// own reports whether the API server may write o at any time, on its own.
func (o object) own() bool {
	switch o.kind.Resource {
	case "namespaces":
		return strings.HasPrefix(o.name, "kube-")
	case "leases":
		return o.namespace == metav1.NamespaceSystem
	case "services", "endpoints", "endpointslices":
		return o.name == "kubernetes"
	case "configmaps":
		return o.name == "kube-root-ca.crt" || o.name == "extension-apiserver-authentication"
	case "servicecidrs", "ipaddresses", "flowschemas", "prioritylevelconfigurations":
		return true
	}
	return false
}

// state lists all objects of all kinds.
func (p *Plane) state(ctx context.Context) (*state, error) {
	kinds, err := p.kinds()
	if err != nil {
		return nil, err
	}
	lister, err := metadata.NewForConfig(p.Config)
	if err != nil {
		return nil, err
	}
	found := &state{objects: sets.New[object]()}
	for _, kind := range kinds {
		list, err := lister.Resource(kind).List(ctx, metav1.ListOptions{})
		if apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err) { // what serves it is being deleted
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", kind.Resource, err)
		}
		for _, obj := range list.Items {
			each := object{kind, obj.Namespace, obj.Name, obj.UID, len(obj.Finalizers) > 0}
			if obj.Labels["kube-aggregator.kubernetes.io/automanaged"] == "" && !each.own() {
				found.objects.Insert(each)
			}
		}
	}
	found.clientCAs, err = os.ReadFile(p.ClientCAFile())
	return found, err
}

// kinds returns the kinds that can be listed and deleted. Events are those of events.k8s.io.
func (p *Plane) kinds() (kinds []schema.GroupVersionResource, err error) {
	config := rest.CopyConfig(p.Config)
	config.WarningHandler = rest.NoWarnings{} // about deprecated kinds
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	groups, err := discover.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // the aggregated API server of a test has ended
		return nil, fmt.Errorf("list the kinds: %w", err)
	}
	for _, group := range groups {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range group.APIResources {
			resource := version.WithResource(kind.Name)
			if slices.Contains(kind.Verbs, "list") && slices.Contains(kind.Verbs, "delete") && resource != corev1.SchemeGroupVersion.WithResource("events") {
				kinds = append(kinds, resource)
			}
		}
	}
	return kinds, nil
}

// left returns what the control plane holds and did not hold before its first test, and what it misses.
func (p *Plane) left(ctx context.Context) ([]object, error) {
	now, err := p.state(ctx)
	if err != nil {
		return nil, err
	}
	missing := p.clean.objects.Difference(now.objects)
	if len(missing) > 0 {
		return nil, fmt.Errorf("%v are missing", missing.UnsortedList())
	}
	return now.objects.Difference(p.clean.objects).UnsortedList(), nil
}

// reset deletes what a test has left, and takes back what it has changed in the API server's client CA file.
func (p *Plane) reset(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	p.seen.stop()
	deleter, err := metadata.NewForConfig(p.Config)
	if err != nil {
		return err
	}
	now, err := os.ReadFile(p.ClientCAFile())
	if err != nil {
		return err
	}
	if !bytes.Equal(now, p.clean.clientCAs) {
		if err := p.TrustClients(p.clean.clientCAs); err != nil {
			return err
		}
	}
	var left []object
	err = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		left, err = p.left(ctx)
		return len(left) == 0, errors.Join(err, p.remove(ctx, deleter, left))
	})
	if err != nil {
		return fmt.Errorf("%w; left: %v", err, left)
	}
	return nil
}

// remove deletes objects, and takes away their finalizers, which no controller here serves. It deletes a
// CustomResourceDefinition only if nothing else is left: the API server may keep an object of a kind that goes, and show
// it when the kind comes back.
func (p *Plane) remove(ctx context.Context, deleter metadata.Interface, left []object) error {
	if others := slices.DeleteFunc(slices.Clone(left), object.isCRD); len(others) > 0 {
		left = others
	}
	emptied := sets.New[object]()
	for _, obj := range left {
		objects := deleter.Resource(obj.kind).Namespace(obj.namespace)
		var err error
		switch {
		case obj.kind.Resource == "namespaces":
			err = p.removeNamespace(ctx, obj.name)
		case obj.finalizers && !obj.isCRD(): // the finalizer of a CustomResourceDefinition is the API server's
			_, err = objects.Patch(ctx, obj.name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		case p.shares(obj):
			err = objects.Delete(ctx, obj.name, metav1.DeleteOptions{})
		case !emptied.Has(obj.place()):
			emptied.Insert(obj.place())
			err = objects.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s: %w", obj, err)
		}
	}
	return nil
}

// removeNamespace does what the namespace controller does once a namespace is empty.
func (p *Plane) removeNamespace(ctx context.Context, name string) error {
	namespaces := kubernetes.NewForConfigOrDie(p.Config).CoreV1().Namespaces()
	err := namespaces.Delete(ctx, name, metav1.DeleteOptions{})
	if err == nil {
		_, err = namespaces.Finalize(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.UpdateOptions{})
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // on a conflict the next round tries again
		return nil
	}
	return err
}
