package rotation

import (
	"cmp"
	"context"
	"crypto/fips140"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/publish"
	"github.com/csr-controller-manager/csr-controller-manager/internal/report"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/servertime"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/slow"
)

const (
	day            = 24 * time.Hour
	modelNamespace = "ns"
	trustNamespace = "trust"
	// settleFor makes two answers within three seconds a proof, see probe.Tracker.
	settleFor = time.Second
	oldCap    = 24 * time.Hour

	clientSigner  = certificatesv1.KubeAPIServerClientSignerName
	kubeletSigner = certificatesv1.KubeAPIServerClientKubeletSignerName
	servingSigner = certificatesv1.KubeletServingSignerName
)

// cluster is a cluster in memory: an API server, the manager with the real Reconciler, and the verifiers of
// certificates. Each verifier reads the published bundles at its own time.
type cluster struct {
	random *rand.Rand
	// clock is the API servers' clock. The manager's machine is ahead of it, or behind. timeless means that the manager does
	// not know the API servers' time. paused means that the present reconcile began so, or with clocks that disagree.
	clock            *testingclock.FakePassiveClock
	ahead            time.Duration
	timeless, paused bool
	api              *apiServer
	// owner is the client of all users except the manager.
	owner *process
	// manager is the process of reconciler. dies reports whether the manager dies before a write.
	manager     *process
	reconciler  *Reconciler
	dies        func() bool
	slow        bool // each answer to the manager takes 25 seconds
	authorities []*authority

	// cas holds every CA that has existed, by certificate. The owner has a backup of each.
	cas   map[string]*modelCA
	names []string // their certificates in the order of creation
	// servers holds the CAs that each API server trusts, and verifiers those that each verifier of serving certificates
	// trusts. also holds the CAs that the owner gave to the verifiers by hand.
	servers, verifiers [][]string
	also               []string
	// proven holds, by key ID, the signers whose verifiers trusted the CA when it began to sign. destroyed holds the CAs
	// whose last key is destroyed.
	proven    map[string][]string
	destroyed map[string]bool

	quiet  bool           // faults and random actions have ended, owners do only what the manager asks them to do
	seen   map[string]int // the number of events by kind
	events []string       // the events, for the message of a failure
}

type modelCA struct {
	name      string
	pair      keypair.Pair
	authority *ca.Authority
}

func newCluster(random *rand.Rand) *cluster {
	c := &cluster{
		random: random, clock: testingclock.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)),
		servers: make([][]string, 2), verifiers: make([][]string, 2),
		cas: map[string]*modelCA{}, proven: map[string][]string{}, destroyed: map[string]bool{}, seen: map[string]int{},
		dies: func() bool { return false },
	}
	c.api = &apiServer{now: c.clock.Now, objects: map[objectKey]client.Object{}}
	c.owner = &process{apiServer: c.api}
	c.create(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: trust.ExtensionNamespace, Name: trust.ExtensionName},
		Data:       map[string]string{trust.ExtensionKey: frontCA},
	})
	c.create(endpointSlice(len(c.servers)))
	c.startManager()
	return c
}

// frontCA is a CA of the API servers that does not belong to the model.
var frontCA = func() string {
	made, _, err := ca.New(ca.NewOptions{CommonName: "kubernetes", Lifetime: 200 * 365 * day}, noon)
	utilruntime.Must(err)
	return string(made.CertificatePEM())
}()

// endpointSlice has the endpoints of API servers. The last byte of an address is the server's index.
func endpointSlice(servers int) *discoveryv1.EndpointSlice {
	https, port := "https", int32(6443)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
	}}
	slice.Ports = []discoveryv1.EndpointPort{{Name: &https, Port: &port}}
	for i := range servers {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.0.0." + strconv.Itoa(i)}})
	}
	return slice
}

// create and update write as a client whose writes do not fail.
func (c *cluster) create(obj client.Object) { utilruntime.Must(c.owner.write(obj, true)) }
func (c *cluster) update(obj client.Object) { utilruntime.Must(c.owner.write(obj, false)) }

// startManager starts a manager without any state in memory. Its watch delivers each request again.
func (c *cluster) startManager() {
	c.manager = &process{apiServer: c.api, dies: func(client.Object) bool { return c.dies() }, wrote: c.wrote}
	cached, live := client.Client(c.manager), client.Client(c.manager)
	if c.slow {
		wait := func() {
			time.Sleep(slow.Answer)
			c.clock.SetTime(c.now().Add(slow.Answer))
		}
		cached, live = slow.Client{Client: cached, Wait: wait, Cached: true}, slow.Client{Client: live, Wait: wait}
	}
	c.reconciler = &Reconciler{
		OldLifetimeCap: oldCap, Client: cached, Live: live, Clock: machine{c}, config: &rest.Config{},
		reporter:  report.New(recorder{c}, machine{c}),
		publisher: &publish.Publisher{Client: cached, Live: live, Discovery: unserved},
		prober:    modelProber{c}, loadPair: c.load,
	}
	c.reconciler.served = c.reconciler.publisher
	c.setMachine(c.ahead, c.timeless)
	for _, a := range c.authorities {
		a.showAll(true)
	}
}

// machine is the clock of the manager's machine.
type machine struct{ *cluster }

func (m machine) Now() time.Time                   { return m.now().Add(m.ahead) }
func (m machine) Since(at time.Time) time.Duration { return m.Now().Sub(at) }

// setMachine sets the clock of the manager's machine, and whether the manager knows the API servers' time.
func (c *cluster) setMachine(ahead time.Duration, timeless bool) {
	c.ahead, c.timeless = ahead, timeless
	c.reconciler.ServerTime = servertime.Apart(machine{c}, c.clock)
	if timeless {
		c.reconciler.ServerTime = &servertime.Clock{}
	}
}

// setsMachine sets the clock of the manager's machine at random. It is right most of the time.
func (c *cluster) setsMachine() {
	ahead, timeless := time.Duration(0), false
	switch c.random.IntN(8) {
	case 0:
		ahead = c.span(-40*day, 40*day)
	case 1:
		ahead = c.span(-servertime.MaxSkew, servertime.MaxSkew)
	case 2:
		timeless = true
	}
	c.setMachine(ahead, timeless)
	c.saw(fmt.Sprintf("clocks disagree %t, time unknown %t", c.disagree(), timeless))
}

// disagree reports whether no step may be taken, because either clock may be wrong.
func (c *cluster) disagree() bool { return c.timeless || c.ahead.Abs() > servertime.MaxSkew }

// unserved is the discovery of an API server that does not serve ClusterTrustBundles.
var unserved = fake.NewClientset().Discovery()

var quietly = log.IntoContext(context.Background(), logr.Discard())

// reconcile reconciles a once, and reports whether the next reconcile is due at once. If all authorities take turns,
// two reconciles of one authority are at most three seconds apart, so that two answers are a proof.
func (c *cluster) reconcile(a *authority) (busy bool) {
	c.clock.SetTime(c.now().Add(c.span(time.Second/2, 3*time.Second/time.Duration(len(c.authorities)))))
	a.refusedBefore, c.paused = len(a.refused), c.disagree()
	result, err := c.reconciler.Reconcile(quietly, reconcile.Request{NamespacedName: types.NamespacedName{Name: a.name}})
	if c.paused {
		c.seen["a reconcile without an agreed time"]++
		c.paused = false
	}
	if c.startsAgain() {
		return true
	}
	if err != nil {
		c.log("%s: %v", a.name, err)
	}
	return err == nil && result.RequeueAfter <= time.Millisecond
}

// startsAgain starts another manager if the current one has died.
func (c *cluster) startsAgain() bool {
	if !c.manager.died {
		return false
	}
	c.log("the manager dies")
	c.startManager()
	return true
}

type recorder struct{ *cluster }

func (r recorder) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	why, name := fmt.Sprintf(note, args...), regarding.(*v1alpha1.SigningAuthority).Name
	if strings.Contains(why, "it is a CA of SigningAuthority") {
		r.seen["a CA of another authority is refused"]++
	}
	at := slices.IndexFunc(r.authorities, func(a *authority) bool { return a.name == name })
	a := r.authorities[at]
	switch {
	case reason == "RotationRefused":
		a.refused = append(a.refused, why)
	case strings.HasPrefix(why, notAsLeft):
		a.stops = append(a.stops, why)
		r.seen["stopped"]++
	}
	r.log("%s: %s: %s", name, reason, why)
}

type modelProber struct{ *cluster }

func (m modelProber) Ask(_ context.Context, authority, control *ca.Authority, targets []probe.Target) map[string]probe.Answer {
	answers := map[string]probe.Answer{}
	for _, target := range targets {
		var i int
		_, err := fmt.Sscanf(target.Name, "10.0.0.%d:6443", &i)
		utilruntime.Must(err)
		answer, accepts := probe.Answer{}, func(ca *ca.Authority) bool { return m.accepted(string(ca.CertificatePEM()), m.servers[i]) == 1 }
		switch {
		case accepts(authority):
			answer.Trust = probe.Recognised
		case control == nil || accepts(control):
			answer.Trust = probe.Refused
		}
		answer.Evidence = answer.Trust.String()
		answers[target.Name] = answer
	}
	return answers
}

func (c *cluster) now() time.Time { return c.clock.Now() }

func (c *cluster) chance(of int) bool { return c.random.IntN(of) == 0 }

// span returns a random duration between least and most. Without a source of randomness, it returns most.
func (c *cluster) span(least, most time.Duration) time.Duration {
	if c.random == nil {
		return most
	}
	return least + time.Duration(c.random.Int64N(int64(most-least)))
}

func (c *cluster) saw(event string) {
	c.seen[event]++
	c.log("%s", event)
}

// log records an event for the message of a failure.
func (c *cluster) log(format string, args ...any) {
	c.events = append(c.events, c.now().Format("060102 15:04:05.0 ")+fmt.Sprintf(format, args...))
}

// failure returns err with the state of the authorities and the last events. It names CAs instead of certificates and key IDs.
func (c *cluster) failure(err error) string {
	text := fmt.Sprintf("%v: %v\n%s", err, c.authorities, strings.Join(c.events[max(0, len(c.events)-300):], "\n"))
	for _, cert := range c.names {
		text = strings.ReplaceAll(text, cert, c.cas[cert].name)
		text = strings.ReplaceAll(text, c.cas[cert].authority.KeyID(), c.cas[cert].name)
	}
	return text
}

func (c *cluster) newCA(lifetime time.Duration) string { return c.newCAFrom(c.now(), lifetime) }

// newCAFrom makes a CA as an issuer does whose clock shows at, or that stages a renewal for that time.
func (c *cluster) newCAFrom(at time.Time, lifetime time.Duration) string {
	made, key, err := ca.New(ca.NewOptions{CommonName: "ca", Lifetime: lifetime, Algorithm: c.algorithm()}, at)
	utilruntime.Must(err)
	return c.know(keypair.Pair{Cert: made.CertificatePEM(), Key: key})
}

// algorithm returns the algorithm of the next CA. Those of ECDSA and of ML-DSA take turns, if the cryptographic module has ML-DSA.
func (c *cluster) algorithm() ca.Algorithm {
	if len(c.names)%2 == 0 || fips140.Version() == "v1.0.0" {
		return ca.ECDSAP256
	}
	return ca.MLDSA44
}

// know records the CA of pair, and returns its certificate.
func (c *cluster) know(pair keypair.Pair) string {
	cert := string(pair.Cert)
	if c.cas[cert] == nil {
		authority, err := pair.Load()
		utilruntime.Must(err)
		c.names = append(c.names, cert)
		c.cas[cert] = &modelCA{"ca" + strconv.Itoa(len(c.names)), pair, authority}
	}
	return cert
}

var garbage = keypair.Pair{Cert: []byte("garbage"), Key: []byte("garbage")}

// load implements keypair.Pair.Load. It parses each pair once, because parsing takes most of the time of a reconcile.
func (c *cluster) load(pair keypair.Pair) (*ca.Authority, error) {
	if pair.Equal(garbage) {
		return nil, errors.New("garbage")
	}
	known := c.cas[c.know(pair)]
	if !known.pair.Equal(pair) {
		return nil, errors.New("another key")
	}
	return known.authority, nil
}

func (c *cluster) alive(cert string) bool {
	known := c.cas[cert]
	return known != nil && known.authority.Certificate().NotAfter.After(c.now())
}

// bundles returns the certificates that all authorities publish for signers of one kind.
func (c *cluster) bundles(kind func(signer string) bool) []string {
	var all []string
	for _, a := range c.authorities {
		if slices.ContainsFunc(a.began, kind) {
			all = append(all, a.published()...)
		}
	}
	return all
}

func forServers(signer string) bool { return signer == servingSigner }
func forClients(signer string) bool { return signer != servingSigner }

// follow makes one API server read its file of client CAs, which has no bundle that is only for serving certificates.
func (c *cluster) follow(server int) { c.servers[server] = c.bundles(forClients) }

// feed makes one API server add its trusted CAs to extension-apiserver-authentication. It removes none.
func (c *cluster) feed(server int) {
	obj, kept := c.configMap(trust.ExtensionNamespace, trust.ExtensionName).DeepCopy(), c.kept()
	for _, cert := range c.servers[server] {
		if !slices.Contains(kept, cert) {
			obj.Data[trust.ExtensionKey] += cert
		}
	}
	c.update(obj)
}

func (c *cluster) kept() []string {
	return certificatesIn(c.configMap(trust.ExtensionNamespace, trust.ExtensionName).Data[trust.ExtensionKey])
}

func (c *cluster) configMap(namespace, name string) *corev1.ConfigMap {
	return storedAs[corev1.ConfigMap](c.api, namespace, name)
}

// certificatesIn returns the certificates of a bundle without text between them.
func certificatesIn(bundle string) []string {
	certs := strings.SplitAfter(bundle, "-----END CERTIFICATE-----\n")
	return slices.DeleteFunc(certs, func(cert string) bool { return cert == "" })
}

// verifier makes one verifier of serving certificates read its bundle.
func (c *cluster) verifier(i int) { c.verifiers[i] = slices.Concat(c.bundles(forServers), c.also) }

// accepted returns how many of verifiers accept a certificate of the CA: those with a certificate of its key.
func (c *cluster) accepted(cert string, verifiers ...[]string) (n int) {
	usable := func(cert string) bool { return c.cas[cert] != nil && c.cas[cert].authority.Usable(c.now()) == nil }
	for _, trusted := range verifiers {
		if usable(cert) && slices.ContainsFunc(trusted, func(one string) bool { return usable(one) && c.key(one) == c.key(cert) }) {
			n++
		}
	}
	return n
}

// key returns the key ID of the CA of cert, or "" if it is unknown.
func (c *cluster) key(cert string) string {
	if known := c.cas[cert]; known != nil {
		return known.authority.KeyID()
	}
	return ""
}

func (c *cluster) allFollow() {
	for i := range c.servers {
		c.follow(i)
		c.feed(i)
	}
	for i := range c.verifiers {
		c.verifier(i)
	}
}

// someoneFollows makes a random verifier read its bundle, or lets another API server join.
func (c *cluster) someoneFollows() {
	switch n := c.random.IntN(21); {
	case n == 0:
		if len(c.servers) < 4 {
			c.servers = append(c.servers, nil)
			slice := endpointSlice(len(c.servers))
			slice.ResourceVersion = storedAs[discoveryv1.EndpointSlice](c.api, slice.Namespace, slice.Name).ResourceVersion
			c.update(slice)
		}
	case n < 8:
		c.allFollow()
	case n < 13:
		c.follow(c.random.IntN(len(c.servers)))
	case n < 16:
		c.feed(c.random.IntN(len(c.servers)))
	default:
		c.verifier(c.random.IntN(len(c.verifiers)))
	}
}

// pass advances the clock by span. Before that, the ledger records all issued certificates.
func (c *cluster) pass(span time.Duration) {
	for _, a := range c.authorities {
		a.showAll(false)
		_ = c.reconciler.recorder(a.object()).Flush(quietly)
		c.startsAgain()
	}
	c.clock.SetTime(c.now().Add(span.Truncate(time.Second)))
	for _, a := range c.authorities {
		a.forgetEnded()
	}
}

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

// storedAs returns the stored object of the kind of P, or an empty one. The caller must not change it.
func storedAs[T any, P interface {
	*T
	client.Object
}](s *apiServer, namespace, name string) P {
	obj := P(new(T))
	if found := s.objects[keyOf(obj, client.ObjectKey{Namespace: namespace, Name: name})]; found != nil {
		return found.(P)
	}
	return obj
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
	stored := p.objects[keyOf(into, key)]
	switch {
	case p.died:
		return errDied
	case stored == nil:
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

func (p *process) List(_ context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if p.died {
		return errDied
	}
	options := (&client.ListOptions{}).ApplyOptions(opts)
	gvk, err := apiutil.GVKForObject(list, modelScheme)
	if err != nil {
		return err
	}
	var found []runtime.Object
	for _, key := range slices.SortedFunc(maps.Keys(p.objects), func(a, b objectKey) int { return cmp.Compare(a.Name, b.Name) }) {
		obj := p.objects[key]
		wanted := options.LabelSelector == nil || options.LabelSelector.Matches(labels.Set(obj.GetLabels()))
		if wanted && key.kind+"List" == gvk.Kind && (options.Namespace == "" || options.Namespace == key.Namespace) {
			found = append(found, obj.DeepCopyObject())
		}
	}
	return meta.SetList(list, found)
}

func (p *process) Create(_ context.Context, obj client.Object, _ ...client.CreateOption) error {
	return p.write(obj, true)
}

func (p *process) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	return p.write(obj, false)
}

// write stores obj. It returns a conflict if the stored version is not the version that obj was read from.
func (p *process) write(obj client.Object, creates bool) error {
	key := keyOf(obj, client.ObjectKeyFromObject(obj))
	before, resource := p.objects[key], schema.GroupResource{Resource: key.kind}
	p.died = p.died || p.dies != nil && p.dies(obj)
	switch {
	case p.died:
		return errDied
	case creates && before != nil:
		return apierrors.NewAlreadyExists(resource, obj.GetName())
	case !creates && before == nil:
		return apierrors.NewNotFound(resource, obj.GetName())
	case !creates && obj.GetResourceVersion() != before.GetResourceVersion():
		return apierrors.NewConflict(resource, obj.GetName(), errors.New("it has changed"))
	}
	p.version++
	obj.SetResourceVersion(strconv.Itoa(p.version))
	if creates {
		obj.SetUID(types.UID(obj.GetResourceVersion()))
		obj.SetCreationTimestamp(metav1.NewTime(p.now()))
	}
	p.objects[key] = obj.DeepCopyObject().(client.Object)
	if p.wrote != nil {
		p.wrote(before, obj)
	}
	return nil
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
	authority := obj.(*v1alpha1.SigningAuthority)
	stored := storedAs[v1alpha1.SigningAuthority](w.process.apiServer, "", obj.GetName()).DeepCopy()
	stored.ResourceVersion = obj.GetResourceVersion()
	stored.Status = *authority.Status.DeepCopy()
	err := w.process.write(stored, false)
	authority.ResourceVersion = stored.ResourceVersion
	return err
}

// Apply merges the data of a ConfigMap into the stored one, or creates it.
func (p *process) Apply(ctx context.Context, obj runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
	applied := &corev1.ConfigMap{}
	data, err := json.Marshal(obj)
	if err := errors.Join(err, json.Unmarshal(data, applied)); err != nil {
		return err
	}
	if options := (&client.ApplyOptions{}).ApplyOptions(opts); len(options.DryRun) > 0 {
		return nil
	}
	stored := storedAs[corev1.ConfigMap](p.apiServer, applied.Namespace, applied.Name).DeepCopy()
	if stored.UID == "" {
		return p.Create(ctx, applied)
	}
	stored.ResourceVersion = cmp.Or(applied.ResourceVersion, stored.ResourceVersion)
	maps.Copy(stored.Data, applied.Data)
	return p.Update(ctx, stored)
}
