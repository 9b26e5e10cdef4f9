// Package blocklist reads the blocked nodes, users and certificates from a ConfigMap. For these, nothing is approved and nothing
// is signed. It also finds out which API servers refuse them.
package blocklist

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/csr-controller-manager/csr-controller-manager/internal/informer"
	"github.com/csr-controller-manager/csr-controller-manager/internal/lastgood"
	"github.com/csr-controller-manager/csr-controller-manager/internal/metric"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/blocklist/entries"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/judge"
)

var (
	blockedNodes = metric.Gauge("csr_block_list_nodes", "Nodes in the block list in use.").WithLabelValues()

	blockedUsers = metric.Gauge("csr_block_list_users", "Users in the block list in use.").WithLabelValues()

	blockedCertificates = metric.Gauge("csr_block_list_certificates", "Certificates in the block list in use.").WithLabelValues()

	blockListProblems = metric.Gauge("csr_block_list_problems",
		"Ignored lines and keys of the block list; 1 when the list does not exist or can't be read.").WithLabelValues()
)

// List holds the entries that were read last. They stay in use until another version is read: deleting the ConfigMap
// unblocks nothing. Until the first version is read, all requests wait. A nil List blocks nothing.
type List struct {
	name     types.NamespacedName
	object   *corev1.ConfigMap // that Events are about
	log      logr.Logger
	recorder events.EventRecorder // nil before SetupWithManager

	value lastgood.Value[entries.Entries]

	// Enforcement, if set before SetupWithManager, finds out which API servers refuse what the list names.
	Enforcement *Enforcement
}

// New returns a List that has not been read yet. SetupWithManager keeps it up to date.
func New(name types.NamespacedName) *List {
	l := &List{name: name, log: logr.Discard()}
	l.object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	l.value.Same, l.value.Report = entries.Entries.Equal, l.report
	return l
}

// Entries returns the entries in use, or why there are none.
func (l *List) Entries() (entries.Entries, error) {
	state := l.value.State()
	if !state.Known {
		return entries.Entries{}, fmt.Errorf("block list ConfigMap %s: %w", l.name, cmp.Or(state.Problem, informer.ErrNotRead))
	}
	return state.Good, nil
}

// BlocksNode reports whether the list names a node. It is false while no list was read: Check returns a reason then.
func (l *List) BlocksNode(name string) bool {
	if l == nil {
		return false
	}
	blocked, _ := l.Entries()
	return blocked.Nodes.Has(strings.ToLower(name))
}

// Check decides that req waits because of the node that it is for or comes from, the user that made it, or the certificate with
// which it was made. The reason is NodeBlocked, UserBlocked, CertificateBlocked, or InventoryUnavailable while no list was read.
// Otherwise no Decision is made.
//
// Check blocks no certificate that was renewed from one on the list. Only stored requests connect the two, and the
// cleaner deletes requests: the block would end with them. So the administrator lists each certificate, or the node.
func (l *List) Check(req *csr.Request) judge.Decision {
	if l == nil {
		return judge.Decision{}
	}
	blocked, err := l.Entries()
	if err != nil {
		return judge.Wait.Because("InventoryUnavailable", "the request waits because it is unknown whether it is blocked: %v", err)
	}
	return blocked.Check(req, l.name.String())
}

// fault is what is wrong with the newest version of the ConfigMap.
type fault struct {
	reason string // of the Event
	count  int    // how many lines and keys are ignored; 1 if the whole version is
	error
}

// Offer applies a version of the ConfigMap. A nil obj means that the ConfigMap does not exist.
func (l *List) Offer(obj *corev1.ConfigMap) {
	if obj == nil {
		l.refuse("BlockListMissing", errors.New("it does not exist: create it with the names of the blocked nodes under the key "+
			"nodes, or with an empty value"))
		return
	}
	l.object = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: obj.Namespace, Name: obj.Name, UID: obj.UID}}
	read, problems, err := entries.ParseConfigMap(obj)
	if err != nil {
		l.refuse("BlockListInvalid", err)
		return
	}
	if len(problems) == 0 {
		l.value.Use(read, nil)
		return
	}
	l.value.Use(read, fault{"BlockListInvalid", len(problems), fmt.Errorf(
		"what is invalid is ignored, and the rest applies: %s", strings.Join(csr.ShortenAll(problems), "; "))})
}

// refuse records why the newest version can't be used. The last one stays in use.
func (l *List) refuse(reason string, why error) {
	consequence := "nothing is approved or signed, and API servers refuse what they refused before"
	if last := l.value.State(); last.Known {
		consequence = "the last version stays in use: " + last.Good.String()
	}
	l.value.Refuse(fault{reason, 1, fmt.Errorf("%w; %s", why, consequence)})
}

// report reports a new version, and a new problem with the newest version.
func (l *List) report(before, after lastgood.State[entries.Entries]) {
	blockedNodes.Set(float64(len(after.Good.Nodes)))
	blockedUsers.Set(float64(len(after.Good.Users)))
	blockedCertificates.Set(float64(len(after.Good.Certificates)))
	problem, faulty := errors.AsType[fault](after.Problem)
	blockListProblems.Set(float64(problem.count))
	if faulty && (before.Problem == nil || before.Problem.Error() != problem.Error()) {
		l.log.Error(nil, "Bad block list", "reason", problem.reason, "message", problem.Error())
		report.Event(l.recorder, l.object, corev1.EventTypeWarning, "Load", problem.reason, problem.Error())
	}
	if after.Known && (!faulty || !before.Known || !after.Good.Equal(before.Good)) {
		l.log.Info("Read block list", "nodes", sets.List(after.Good.Nodes), "users", len(after.Good.Users),
			"certificates", sets.List(after.Good.Certificates))
		report.Event(l.recorder, l.object, corev1.EventTypeNormal, "Load", "BlockListRead", after.Good.String())
	}
}

// Watch returns what keeps l up to date while it runs, and logs to log. The watch is by name, so that a role for that name is
// enough.
func (l *List) Watch(config *rest.Config, log logr.Logger) (manager.Runnable, error) {
	l.log = log
	configMaps, err := informer.ConfigMaps(config, l.name.Namespace)
	if err != nil {
		return nil, err
	}
	return informer.One(configMaps, l.name, log.WithValues("configMap", l.name.String()), l.Offer, l.unreadable), nil
}

// SetupWithManager adds a watch of the ConfigMap to mgr. Standbys watch too. The manager is not ready before a list was read.
func (l *List) SetupWithManager(mgr manager.Manager) error {
	watch, err := l.Watch(mgr.GetConfig(), mgr.GetLogger().WithName("block-list"))
	if err != nil {
		return err
	}
	l.recorder = mgr.GetEventRecorder("csr-block-list")
	if err := mgr.AddReadyzCheck("block-list", l.ready); err != nil {
		return fmt.Errorf("add readiness check: %w", err)
	}
	if e := l.Enforcement; e != nil {
		e.list, e.live, e.client, e.config = l, mgr.GetAPIReader(), mgr.GetClient(), mgr.GetConfig()
		if err := mgr.Add(e); err != nil {
			return err
		}
	}
	return mgr.Add(watch)
}

// ready returns an error until a list was read.
func (l *List) ready(*http.Request) error {
	_, err := l.Entries()
	return err
}

func (l *List) unreadable(err error) {
	l.refuse("BlockListMissing", fmt.Errorf("it can't be read: %w", err))
}

// Subscribe returns a channel that receives a value after the list has changed, or can be read again.
func (l *List) Subscribe() <-chan struct{} { return l.value.Subscribe() }

// firstTimeout bounds how long WaitForFirst waits. After that, the message of waiting requests says that no list was
// read yet.
const firstTimeout = 10 * time.Second

// WaitForFirst waits until the list was read, or could not be read. A controller that starts after it says of no
// request that the list was not read yet, unless the API server is slow. It returns nil after a while, because an
// error would end the manager.
func (l *List) WaitForFirst(ctx context.Context) error {
	const poll = 10 * time.Millisecond
	_ = wait.PollUntilContextTimeout(ctx, poll, firstTimeout, true, func(context.Context) (bool, error) {
		state := l.value.State()
		return state.Known || state.Problem != nil, nil
	})
	return nil
}
