//go:build bench

package bench

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// creators is the number of clients that create requests at a time.
const creators = 32

// asked is a request, and the client that creates it.
type asked struct {
	obj *kit.Request
	by  client.Client
}

// made counts requests, so that each has a name of its own.
var made atomic.Int64

func named(obj *kit.Request) { obj.Name = fmt.Sprintf("bench-%d", made.Add(1)) }

// prepare gives the test a control plane on which kubelets may join and renew.
func prepare(t *testing.T) {
	t.Helper()
	kit.Alone(t)
	kit.GrantJoining(t, kit.Bootstrapper)
	kit.GrantGroup(t, csr.NodeGroup, kit.MayRenewOwn)
}

// joins returns requests of new nodes with one bootstrap token.
func joins(t *testing.T, count int) (all []asked) {
	t.Helper()
	by := kit.ClientOf(t, kit.WithToken(t, kit.BootstrapperToken))
	for i := range count {
		all = append(all, asked{kit.NodeRequest(t, fmt.Sprint("node-", i), named), by})
	}
	return all
}

func renewals(t *testing.T, count int) (all []asked) {
	t.Helper()
	for i := range count {
		node := fmt.Sprint("node-", i)
		all = append(all, asked{kit.NodeRequest(t, node, named), kit.KubeletOf(t, node)})
	}
	return all
}

const (
	ruleSigner  = "example.com/bench"
	ruleName    = "bench"
	ruleAccount = "bench-rules" // a ServiceAccount in the namespace default
)

// Conditions of approval rules. The second one makes the manager read the ServiceAccount of each requester.
const (
	byUser    = "request.names.all(n, n.endsWith('.svc')) && requester.username.startsWith('system:serviceaccount:default:')"
	byAccount = "request.names.all(n, n == 'api.' + requester.serviceAccount.namespace + '.svc')"
)

// ruled returns the configuration of a manager with an approval rule that has one condition. It signs with the CA of the control plane.
func ruled(t *testing.T, condition string) string {
	t.Helper()
	cert, key := signingFiles(t)
	return fmt.Sprintf(`signing:
  signers:
  - {name: %s, certFile: %s, keyFile: %s, usages: [digital signature, server auth], allowedNames: ["*.default.svc"], duration: 24h}
approval:
  rules:
  - {name: %s, signerName: %[1]s, usages: [digital signature, server auth], maxDuration: 24h, allow: [names], conditions: [{expression: %[5]q}]}
`, ruleSigner, cert, key, ruleName, condition)
}

func signingFiles(t *testing.T) (cert, key string) {
	t.Helper()
	plane := kit.ControlPlane(t)
	cert, key = filepath.Join(plane.Dir, "ca.crt"), filepath.Join(plane.Dir, "ca.key")
	kit.Write(t, cert, plane.CA.CertPEM)
	kit.Write(t, key, plane.CA.KeyPEM)
	return cert, key
}

func mayUseRule(t *testing.T) {
	t.Helper()
	kit.Create(t, kit.Admin(t), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: ruleAccount}})
	kit.Create(t, kit.Admin(t), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: ruleAccount},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"csr-controller-manager.io"}, Resources: []string{"approvalrules"}, ResourceNames: []string{ruleName}, Verbs: []string{"use"}},
			{APIGroups: []string{certificatesv1.GroupName}, Resources: []string{"certificatesigningrequests"}, Verbs: []string{"create"}},
		},
	})
	kit.Grant(t, "system:serviceaccount:default:"+ruleAccount, ruleAccount)
}

// ofAccount returns requests of the ServiceAccount for a server certificate, which the rule approves.
func ofAccount(t *testing.T, count int) (all []asked) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: ruleAccount}}
	by := kit.ClientOf(t, kit.TokenOf(t, account))
	for range count {
		all = append(all, asked{kit.NodeRequest(t, "", named, func(obj *kit.Request) {
			obj.Spec.SignerName = ruleSigner
			obj.Spec.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageServerAuth}
			obj.Spec.Request = kit.Payload(t, x509.CertificateRequest{DNSNames: []string{"api.default.svc"}})
		}), by})
	}
	return all
}

func inParallel(t *testing.T, count int, do func(context.Context, int) error) {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(creators)
	for i := range count {
		group.Go(func() error { return do(ctx, i) })
	}
	kit.NoError(t, group.Wait())
}

func create(t *testing.T, requests []asked) {
	t.Helper()
	inParallel(t, len(requests), func(ctx context.Context, i int) error { return requests[i].by.Create(ctx, requests[i].obj) })
}

// createSlowly creates requests at a constant rate, and returns the time just before each creation, by the name of the request.
func createSlowly(t *testing.T, requests []asked, perSecond int) map[string]time.Time {
	t.Helper()
	begun := map[string]time.Time{}
	group, ctx := errgroup.WithContext(t.Context())
	ticker := time.NewTicker(time.Second / time.Duration(perSecond))
	defer ticker.Stop()
	for _, one := range requests {
		<-ticker.C
		begun[one.obj.Name] = time.Now()
		group.Go(func() error { return one.by.Create(ctx, one.obj) })
	}
	kit.NoError(t, group.Wait())
	return begun
}

func issueOne(t *testing.T) {
	t.Helper()
	w, one := watchIssued(t), joins(t, 1)
	create(t, one)
	w.wait(t, 1)
}

// store writes requests directly to etcd, as it is filled in an old cluster.
func store(t *testing.T, count int, obj func(i int) *kit.Request) {
	t.Helper()
	inParallel(t, count, func(ctx context.Context, i int) error {
		one := obj(i)
		one.APIVersion, one.Kind = certificatesv1.SchemeGroupVersion.String(), "CertificateSigningRequest"
		one.UID, one.CreationTimestamp = uuid.NewUUID(), metav1.Now()
		one.Spec.Username, one.Spec.Groups = kit.Bootstrapper, []string{kit.BootstrapperTeam, "system:authenticated"}
		return kit.ControlPlane(t).Store(ctx, requestsKey+one.Name, one)
	})
}

// requestsKey is the prefix of requests in etcd, below /registry.
const requestsKey = "certificatesigningrequests/"

// seedOld stores requests as in an old cluster: half of them are issued, a quarter are pending for a signer that nobody serves, and the
// rest are denied or failed. Their retention begins now.
func seedOld(t *testing.T, count int) {
	t.Helper()
	ca := kit.IssueCA(t, "old", kit.NewKey(t), nil, 365*24*time.Hour)
	template := kit.NodeRequest(t, "old")
	condition := certificatesv1.CertificateSigningRequestCondition{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "AutoApproved", Message: kit.NodeMessage,
		LastUpdateTime: metav1.Now(), LastTransitionTime: metav1.Now(),
	}
	t.Cleanup(func() { deleteAll(t) }) // more than the kit would delete in time
	store(t, count, func(i int) *kit.Request {
		obj := template.DeepCopy()
		obj.Name, obj.GenerateName = fmt.Sprintf("old-%d", i), ""
		obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{condition}
		switch i % 8 {
		case 0, 1, 2, 3:
			obj.Status.Certificate = ca.PEM()
		case 4, 5:
			obj.Spec.SignerName, obj.Status.Conditions = "example.com/foreign", nil
		case 6:
			obj.Status.Conditions[0].Type = certificatesv1.CertificateDenied
		default:
			failed := condition
			failed.Type = certificatesv1.CertificateFailed
			obj.Status.Conditions = append(obj.Status.Conditions, failed)
		}
		return obj
	})
}

// deleteAll deletes all requests, and returns once the API server shows that.
func deleteAll(t *testing.T) {
	t.Helper()
	kit.NoError(t, kit.ControlPlane(t).Erase(context.Background(), requestsKey))
	kit.Eventually(t, "no request is left", func(ctx context.Context) error {
		list := &certificatesv1.CertificateSigningRequestList{}
		err := kit.Admin(t).List(ctx, list, client.Limit(1))
		return kit.OrError(err == nil && len(list.Items) == 0, "%d of them: %w", len(list.Items), err)
	})
}

// issuing records when requests get their certificates, as a watch shows it.
type issuing struct {
	mu          sync.Mutex
	at          map[string]time.Time
	begin, last time.Time
}

// watchIssued begins a watch. It shows only what happens from now on.
func watchIssued(t *testing.T) *issuing {
	t.Helper()
	list := &certificatesv1.CertificateSigningRequestList{}
	kit.NoError(t, kit.Admin(t).List(t.Context(), list, client.Limit(1)))
	// The API server ends the watch of a client that is too slow for a burst, so the watch must continue where it ended.
	events, err := watchtools.NewRetryWatcherWithContext(t.Context(), list.ResourceVersion, cache.ToWatcherWithContext(&cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return kit.Admin(t).Watch(ctx, &certificatesv1.CertificateSigningRequestList{}, &client.ListOptions{Raw: &options})
		},
	}))
	kit.NoError(t, err)
	w := &issuing{at: map[string]time.Time{}}
	go func() {
		for event := range events.ResultChan() {
			if obj, ok := event.Object.(*kit.Request); ok && len(obj.Status.Certificate) > 0 {
				w.saw(obj.Name)
			}
		}
	}()
	t.Cleanup(events.Stop)
	return w
}

func (w *issuing) saw(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.at[name].IsZero() {
		w.last = time.Now()
		w.at[name], w.begin = w.last, cmp.Or(w.begin, w.last)
	}
}

// wait waits until count requests have a certificate, and returns when the first and the last one got it.
func (w *issuing) wait(t *testing.T, count int) (begin, last time.Time) {
	t.Helper()
	kit.Within(t, 10*time.Minute, "certificates", func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		begin, last = w.begin, w.last
		return kit.OrError(len(w.at) >= count, "%d of %d are issued", len(w.at), count)
	})
	return begin, last
}
