package rotation

import (
	"context"
	"errors"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// secrets wake the authorities whose Secrets change. Each is watched by its name, which is all that the role has, and without
// its data. Where it can't be watched, it is looked at every half minute all the same.
type secrets struct {
	metadata metadata.Interface
	group    *group
	changed  chan event.GenericEvent

	mu      sync.Mutex
	watched map[string]watched // by authority
}

// wakeAfter bounds how often somebody who changes a Secret again and again has it looked at.
const wakeAfter = 5 * time.Second

// wakes has an authority looked at whose Secret has changed.
var wakes = handler.Funcs{GenericFunc: func(_ context.Context, e event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	queue.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}, wakeAfter)
}}

type watched struct {
	secret types.NamespacedName
	stop   context.CancelFunc
}

// watch has obj woken when its Secret changes.
func (s *secrets) watch(ctx context.Context, obj *v1alpha1.SigningAuthority) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := secretName(obj)
	if one, found := s.watched[obj.Name]; found && one.secret == name {
		return
	} else if found {
		one.stop()
	}
	if s.watched == nil {
		s.watched = map[string]watched{}
	}
	stopped, stop := context.WithCancel(context.WithoutCancel(ctx)) // it goes on when this look has ended
	s.watched[obj.Name] = watched{name, stop}
	authority := obj.Name
	s.group.Go(func(ctx context.Context) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(stopped, cancel)()
		s.run(ctx, authority, name)
	})
}

// forget stops watching for authority.
func (s *secrets) forget(authority string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if one, found := s.watched[authority]; found {
		one.stop()
		delete(s.watched, authority)
	}
}

// run wakes authority whenever its Secret changes, until ctx ends.
func (s *secrets) run(ctx context.Context, authority string, secret types.NamespacedName) {
	informer := metadatainformer.NewFilteredMetadataInformer(s.metadata, corev1.SchemeGroupVersion.WithResource("secrets"), secret.Namespace,
		0, toolscache.Indexers{}, func(options *metav1.ListOptions) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, secret.Name).String()
		}).Informer()
	wake := func(any) {
		obj := &v1alpha1.SigningAuthority{ObjectMeta: metav1.ObjectMeta{Name: authority}}
		select {
		case s.changed <- event.GenericEvent{Object: obj}:
		case <-ctx.Done():
		}
	}
	told := false
	err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *toolscache.Reflector, err error) {
		if !apierrors.IsForbidden(err) {
			toolscache.DefaultWatchErrorHandler(ctx, reflector, err)
		} else if !told {
			told = true
			log.FromContext(ctx).Info("A Secret can't be watched: what changes in it is seen within half a minute", "secret", secret, "why", err.Error())
		}
	})
	_, handlerErr := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc: wake, UpdateFunc: func(_, changed any) { wake(changed) }, DeleteFunc: wake,
	})
	if err := errors.Join(err, handlerErr); err != nil { // only once it has been started
		log.FromContext(ctx).Error(err, "Watch a Secret", "secret", secret)
		return
	}
	informer.RunWithContext(ctx)
}
