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
	config := rest.CopyConfig(p.Config)
	config.WarningHandler = rest.NoWarnings{} // about deprecated kinds
	discover, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	kinds, err := discover.ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) { // the aggregated API server of a test has ended
		return nil, fmt.Errorf("list the kinds: %w", err)
	}
	lister, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	found := &state{objects: sets.New[object]()}
	for _, group := range kinds {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, kind := range group.APIResources {
			if !slices.Contains(kind.Verbs, "list") || !slices.Contains(kind.Verbs, "delete") || version.Group == "" && kind.Name == "events" {
				continue // events are listed as those of events.k8s.io
			}
			resource := version.WithResource(kind.Name)
			list, err := lister.Resource(resource).List(ctx, metav1.ListOptions{})
			if apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err) { // what serves it is being deleted
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", kind.Name, err)
			}
			for _, obj := range list.Items {
				if obj.Labels["kube-aggregator.kubernetes.io/automanaged"] != "" {
					continue
				}
				if each := (object{resource, obj.Namespace, obj.Name, obj.UID, len(obj.Finalizers) > 0}); !each.own() {
					found.objects.Insert(each)
				}
			}
		}
	}
	found.clientCAs, err = os.ReadFile(p.ClientCAFile())
	return found, err
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
	kept := sets.New[object]() // the places in which objects stay
	for obj := range p.clean.objects {
		kept.Insert(object{kind: obj.kind, namespace: obj.namespace})
	}
	emptied := sets.New[object]()
	onlyCRDs := !slices.ContainsFunc(left, func(obj object) bool { return obj.kind.Resource != "customresourcedefinitions" })
	for _, obj := range left {
		objects, place := deleter.Resource(obj.kind).Namespace(obj.namespace), object{kind: obj.kind, namespace: obj.namespace}
		var err error
		switch isCRD := obj.kind.Resource == "customresourcedefinitions"; {
		case isCRD && !onlyCRDs:
		case obj.kind.Resource == "namespaces":
			err = p.removeNamespace(ctx, obj.name)
		case obj.finalizers && !isCRD: // the finalizer of a CustomResourceDefinition is the API server's
			_, err = objects.Patch(ctx, obj.name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if err == nil {
				err = objects.Delete(ctx, obj.name, metav1.DeleteOptions{})
			}
		case kept.Has(place):
			err = objects.Delete(ctx, obj.name, metav1.DeleteOptions{})
		case !emptied.Has(place):
			emptied.Insert(place)
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
