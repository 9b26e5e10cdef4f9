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

	"github.com/csr-controller-manager/csr-controller-manager/test/kit/cluster"
)

// state is what a control plane holds, and may not change between two tests.
type state struct {
	objects map[types.UID]cluster.Object
	// clientCAs is the content of the API server's client CA file.
	clientCAs []byte
}

// place is a kind in a namespace.
type place struct {
	kind      schema.GroupVersionResource
	namespace string
}

// many are the kinds of which a test may leave many, and a clean control plane has none.
var many = sets.New("certificatesigningrequests", "events", "leases", "nodes")

// isCRD reports whether o defines a kind.
func isCRD(o cluster.Object) bool { return o.Kind.Resource == "customresourcedefinitions" }

// ofTheAPIServer reports whether the API server may write o at any time, on its own, or shows it only. Events are those of
// events.k8s.io.
func ofTheAPIServer(o cluster.Object) bool {
	switch o.Kind.Resource {
	case "namespaces":
		return strings.HasPrefix(o.Name, "kube-")
	case "leases":
		return o.Namespace == metav1.NamespaceSystem
	case "services", "endpoints", "endpointslices":
		return o.Name == "kubernetes"
	case "configmaps":
		return o.Name == "kube-root-ca.crt" || o.Name == "extension-apiserver-authentication"
	case "apiservices":
		return o.Labels["kube-aggregator.kubernetes.io/automanaged"] != ""
	case "events":
		return o.Kind.Group == ""
	case "servicecidrs", "ipaddresses", "flowschemas", "prioritylevelconfigurations", "componentstatuses":
		return true
	}
	return false
}

// objects returns all objects, except those of the API server.
func (p *Plane) objects(ctx context.Context) (map[types.UID]cluster.Object, error) {
	all, err := cluster.List(ctx, p.Config, func(err error) bool { // what serves the kind has ended, or is being deleted
		return discovery.IsGroupDiscoveryFailedError(err) || apierrors.IsNotFound(err) || apierrors.IsServiceUnavailable(err)
	})
	found := map[types.UID]cluster.Object{}
	for _, obj := range all {
		if !ofTheAPIServer(obj) {
			found[obj.UID] = obj
		}
	}
	return found, err
}

// remember makes what the control plane holds now its clean state.
func (p *Plane) remember(ctx context.Context) (err error) {
	p.clean = &state{}
	if p.clean.objects, err = p.objects(ctx); err != nil {
		return err
	}
	p.clean.clientCAs, err = os.ReadFile(p.ClientCAFile())
	return err
}

// left returns what the control plane holds and does not hold when it is clean. It returns an error if something is missing.
func (p *Plane) left(ctx context.Context) (left []cluster.Object, err error) {
	now, err := p.objects(ctx)
	if err != nil {
		return nil, err
	}
	for uid, obj := range p.clean.objects {
		if _, there := now[uid]; !there {
			return nil, fmt.Errorf("%s is missing", obj)
		}
	}
	for uid, obj := range now {
		if _, stays := p.clean.objects[uid]; !stays {
			left = append(left, obj)
		}
	}
	return left, nil
}

// reset deletes what a test has left, and takes back what it has changed in the API server's client CA file.
func (p *Plane) reset(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
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
	var left []cluster.Object
	err = wait.PollUntilContextCancel(ctx, 300*time.Millisecond, true, func(ctx context.Context) (bool, error) {
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
func (p *Plane) remove(ctx context.Context, deleter metadata.Interface, left []cluster.Object) error {
	if others := slices.DeleteFunc(slices.Clone(left), isCRD); len(others) > 0 {
		left = others
	}
	emptied := sets.New[place]()
	for _, obj := range left {
		objects, at := deleter.Resource(obj.Kind).Namespace(obj.Namespace), place{obj.Kind, obj.Namespace}
		var err error
		switch {
		case obj.Kind.Resource == "namespaces":
			err = p.removeNamespace(ctx, obj.Name)
		case len(obj.Finalizers) > 0 && !isCRD(obj): // the finalizer of a CustomResourceDefinition is the API server's
			_, err = objects.Patch(ctx, obj.Name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
		case !many.Has(obj.Kind.Resource):
			err = objects.Delete(ctx, obj.Name, metav1.DeleteOptions{})
		case !emptied.Has(at):
			emptied.Insert(at)
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
