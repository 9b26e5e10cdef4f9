package rotation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/discovery"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

var modelScheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	return scheme
}()

// apiServer stores objects in memory. A write of an object that is not the stored version is a conflict. The fake
// client of controller-runtime does the same, a hundred times slower.
type apiServer struct {
	now     func() time.Time
	objects map[objectKey]client.Object
	version int
}

type objectKey struct {
	kind string
	client.ObjectKey
}

func keyOf(obj runtime.Object, key client.ObjectKey) objectKey {
	gvk, err := apiutil.GVKForObject(obj, modelScheme)
	utilruntime.Must(err)
	return objectKey{gvk.Kind, key}
}

func (s *apiServer) get(key client.ObjectKey, into client.Object) error {
	stored := s.objects[keyOf(into, key)]
	if stored == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: keyOf(into, key).kind}, key.Name)
	}
	if into, ok := into.(*unstructured.Unstructured); ok {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(stored)
		kind := into.GroupVersionKind()
		into.Object = content
		into.SetGroupVersionKind(kind)
		return err
	}
	reflect.ValueOf(into).Elem().Set(reflect.ValueOf(stored.DeepCopyObject()).Elem())
	return nil
}

func (s *apiServer) list(list client.ObjectList, opts ...client.ListOption) error {
	options := (&client.ListOptions{}).ApplyOptions(opts)
	gvk, err := apiutil.GVKForObject(list, modelScheme)
	if err != nil {
		return err
	}
	var found []runtime.Object
	for _, key := range slices.SortedFunc(maps.Keys(s.objects), func(a, b objectKey) int { return cmp.Compare(a.Name, b.Name) }) {
		obj := s.objects[key]
		wanted := options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(obj.GetLabels()))
		if wanted && key.kind+"List" == gvk.Kind && (options.Namespace == "" || options.Namespace == key.Namespace) {
			found = append(found, obj.DeepCopyObject())
		}
	}
	return meta.SetList(list, found)
}

// put stores obj. It returns a conflict if the stored version is not the version that obj was read from.
func (s *apiServer) put(obj client.Object, creates bool) error {
	key := keyOf(obj, client.ObjectKeyFromObject(obj))
	stored, resource := s.objects[key], schema.GroupResource{Resource: key.kind}
	switch {
	case creates && stored != nil:
		return apierrors.NewAlreadyExists(resource, obj.GetName())
	case !creates && stored == nil:
		return apierrors.NewNotFound(resource, obj.GetName())
	case !creates && obj.GetResourceVersion() != stored.GetResourceVersion():
		return apierrors.NewConflict(resource, obj.GetName(), errors.New("it has changed"))
	}
	s.version++
	obj.SetResourceVersion(strconv.Itoa(s.version))
	if creates {
		obj.SetUID(types.UID(obj.GetResourceVersion()))
		obj.SetCreationTimestamp(metav1.NewTime(s.now()))
	}
	s.objects[key] = obj.DeepCopyObject().(client.Object)
	return nil
}

var errDied = errors.New("the process has died")

// process is a client of the API server that dies before one of its writes.
type process struct {
	client.Client // for the methods that nothing calls
	*apiServer
	died bool
	// dies, if not nil, reports whether the process dies before it writes obj. wrote is called after a write.
	dies  func(obj client.Object) bool
	wrote func(before, after client.Object)
}

func (p *process) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if p.died {
		return errDied
	}
	return p.get(key, into)
}

func (p *process) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if p.died {
		return errDied
	}
	return p.list(list, opts...)
}

func (p *process) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	return p.write(obj, true)
}

func (p *process) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	return p.write(obj, false)
}

func (p *process) write(obj client.Object, creates bool) error {
	if p.died = p.died || p.dies != nil && p.dies(obj); p.died {
		return errDied
	}
	before := p.objects[keyOf(obj, client.ObjectKeyFromObject(obj))]
	err := p.put(obj, creates)
	if err == nil && p.wrote != nil {
		p.wrote(before, obj)
	}
	return err
}

// Patch stores obj, from which an annotation was removed.
func (p *process) Patch(_ context.Context, obj client.Object, _ client.Patch, _ ...client.PatchOption) error {
	return p.write(obj, false)
}

func (p *process) Status() client.SubResourceWriter { return statusWriter{process: p} }

// statusWriter stores statuses. Specs and annotations stay as they are stored.
type statusWriter struct {
	client.SubResourceWriter // for the methods that nothing calls
	process                  *process
}

func (w statusWriter) Update(_ context.Context, obj client.Object, _ ...client.SubResourceUpdateOption) error {
	authority, stored := obj.(*v1alpha1.SigningAuthority), &v1alpha1.SigningAuthority{}
	if err := w.process.get(client.ObjectKeyFromObject(obj), stored); err != nil {
		return err
	}
	stored.ResourceVersion = obj.GetResourceVersion()
	stored.Status = *authority.Status.DeepCopy()
	err := w.process.write(stored, false)
	authority.ResourceVersion = stored.ResourceVersion
	return err
}

// Apply merges the data of a ConfigMap into the stored one, or creates it.
func (p *process) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	applied, stored := &corev1.ConfigMap{}, &corev1.ConfigMap{}
	data, err := json.Marshal(obj)
	if err := errors.Join(err, json.Unmarshal(data, applied)); err != nil {
		return err
	}
	if options := (&client.ApplyOptions{}).ApplyOptions(opts); len(options.DryRun) > 0 {
		return nil
	}
	if err := p.get(client.ObjectKeyFromObject(applied), stored); apierrors.IsNotFound(err) {
		return p.Create(ctx, applied)
	}
	stored.ResourceVersion = cmp.Or(applied.ResourceVersion, stored.ResourceVersion)
	maps.Copy(stored.Data, applied.Data)
	return p.Update(ctx, stored)
}

// noClusterTrustBundles is the discovery of an API server that does not serve them.
type noClusterTrustBundles struct {
	discovery.ServerResourcesInterface
}

func (noClusterTrustBundles) ServerResourcesForGroupVersion(version string) (*metav1.APIResourceList, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: strings.ToLower(version)}, "")
}
