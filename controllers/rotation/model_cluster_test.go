package rotation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	testingclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/go-logr/logr"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/probe"
	"github.com/csr-controller-manager/csr-controller-manager/internal/trust"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/report"
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
	clock  *testingclock.FakePassiveClock
	api    *apiServer
	// owner is the client of all users except the manager.
	owner *process
	// manager is the process of reconciler. dies reports whether the manager dies before a write.
	manager     *process
	reconciler  *Reconciler
	dies        func() bool
	authorities []*authority

	// cas holds every CA that has existed, by certificate. The owner has a backup of each.
	cas   map[string]*modelCA
	names []string // their certificates in the order of creation
	// servers holds the CAs that each API server trusts, and verifiers those that each verifier of serving certificates
	// trusts. also holds the CAs that the owner gave to the verifiers by hand.
	servers, verifiers [][]string
	also               []string
	// proven holds, by CA, the signers whose verifiers trusted the CA when it began to sign. destroyed holds the CAs
	// whose last key is destroyed.
	proven    map[string][]string
	destroyed map[string]bool

	// quiet means that faults and random actions have ended. Owners do only what the manager asks them to do.
	quiet bool
	// seen counts the events by kind. told holds the last events, for the message of a failure.
	seen map[string]int
	told []string
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
func (c *cluster) create(obj client.Object) {
	utilruntime.Must(c.api.put(obj, true))
}

func (c *cluster) update(obj client.Object) {
	utilruntime.Must(c.api.put(obj, false))
}

// startManager starts a manager without any state in memory. Its watch delivers each request again.
func (c *cluster) startManager() {
	c.manager = &process{apiServer: c.api, dies: func(client.Object) bool { return c.dies() }, wrote: c.wrote}
	c.reconciler = &Reconciler{
		OldLifetimeCap: oldCap, Client: c.manager, Live: c.manager, Clock: c.clock, cluster: &rest.Config{},
		Reporter:  report.New(recorder{c}, c.clock),
		publisher: &trust.Publisher{Client: c.manager, Live: c.manager, Discovery: noClusterTrustBundles{}},
		prober:    modelProber{c}, loadPair: c.load,
	}
	for _, a := range c.authorities {
		a.recordAll()
	}
}

var quietly = log.IntoContext(context.Background(), logr.Discard())

// reconcile reconciles a once, and reports whether the next reconcile is due at once. If all authorities take turns,
// two reconciles of one authority are at most three seconds apart, so that two answers are a proof.
func (c *cluster) reconcile(a *authority) (busy bool) {
	c.clock.SetTime(c.now().Add(c.span(time.Second/2, 3*time.Second/time.Duration(len(c.authorities)))))
	a.refusedBefore = len(a.refused)
	result, err := c.reconciler.Reconcile(quietly, reconcile.Request{NamespacedName: types.NamespacedName{Name: a.name}})
	if c.startsAgain() {
		return true
	}
	if err != nil {
		c.tell("%s: %v", a.name, err)
	}
	return err == nil && result.RequeueAfter <= time.Millisecond
}

// startsAgain starts another manager if the current one has died.
func (c *cluster) startsAgain() bool {
	died := c.manager.died
	if died {
		c.tell("the manager dies")
		c.startManager()
	}
	return died
}

type recorder struct{ *cluster }

func (r recorder) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	if reason != "RotationRefused" {
		return
	}
	why, name := fmt.Sprintf(note, args...), regarding.(*v1alpha1.SigningAuthority).Name
	if strings.Contains(why, "it is a CA of SigningAuthority") {
		r.seen["a CA of another authority is refused"]++
	}
	at := slices.IndexFunc(r.authorities, func(a *authority) bool { return a.name == name })
	r.authorities[at].refused = append(r.authorities[at].refused, why)
	r.tell("%s refuses: %s", name, why)
}

type modelProber struct{ *cluster }

func (m modelProber) Ask(_ context.Context, authority, control *ca.Authority, targets []probe.Target) probe.Round {
	round := probe.Round{At: m.now(), Answers: map[string]probe.Answer{}}
	for _, target := range targets {
		var i int
		if _, err := fmt.Sscanf(target.Name, "10.0.0.%d:6443", &i); err != nil {
			panic(err)
		}
		answer := probe.Answer{}
		switch trusted := m.servers[i]; {
		case m.accepts(trusted, string(authority.CertificatePEM())):
			answer.Trust = probe.Recognised
		case control == nil || m.accepts(trusted, string(control.CertificatePEM())):
			answer.Trust = probe.Refused
		}
		answer.Evidence = answer.Trust.String()
		round.Answers[target.Name] = answer
	}
	return round
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
	c.tell("%s", event)
}

// tell records an event, and keeps only the last ones.
func (c *cluster) tell(format string, args ...any) {
	if len(c.told) > 300 {
		c.told = slices.Clone(c.told[200:])
	}
	c.told = append(c.told, c.now().Format("060102 15:04:05.0 ")+fmt.Sprintf(format, args...))
}

// short replaces certificates and key IDs in text by the names of their CAs.
func (c *cluster) short(text string) string {
	for _, cert := range c.names {
		text = strings.ReplaceAll(text, cert, c.cas[cert].name)
		text = strings.ReplaceAll(text, c.cas[cert].authority.KeyID(), c.cas[cert].name)
	}
	return text
}

func (c *cluster) newCA(lifetime time.Duration) string {
	made, key, err := ca.New(ca.NewOptions{CommonName: "ca", Lifetime: lifetime}, c.now())
	utilruntime.Must(err)
	return c.know(keypair.Pair{Cert: made.CertificatePEM(), Key: key})
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
	return known != nil && known.authority.NotAfter().After(c.now())
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

// configMap returns the stored ConfigMap, or an empty one. The caller must not change it.
func (c *cluster) configMap(namespace, name string) *corev1.ConfigMap {
	obj := &corev1.ConfigMap{}
	if stored := c.api.objects[keyOf(obj, client.ObjectKey{Namespace: namespace, Name: name})]; stored != nil {
		return stored.(*corev1.ConfigMap)
	}
	return obj
}

// certificatesIn returns the certificates of a bundle without text between them.
func certificatesIn(bundle string) []string {
	certs := strings.SplitAfter(bundle, "-----END CERTIFICATE-----\n")
	return slices.DeleteFunc(certs, func(cert string) bool { return cert == "" })
}

// verifier makes one verifier of serving certificates read its bundle.
func (c *cluster) verifier(i int) { c.verifiers[i] = slices.Concat(c.bundles(forServers), c.also) }

// accepts reports whether a verifier that trusts trusted accepts a certificate of the CA.
func (c *cluster) accepts(trusted []string, cert string) bool {
	return slices.Contains(trusted, cert) && c.alive(cert)
}

// accepted returns how many of verifiers accept a certificate of the CA.
func (c *cluster) accepted(verifiers [][]string, cert string) (n int) {
	for _, trusted := range verifiers {
		if c.accepts(trusted, cert) {
			n++
		}
	}
	return n
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
	switch c.random.IntN(21) {
	case 0:
		if len(c.servers) < 4 {
			c.servers = append(c.servers, nil)
			slice := endpointSlice(len(c.servers))
			slice.ResourceVersion = c.api.objects[keyOf(slice, client.ObjectKeyFromObject(slice))].GetResourceVersion()
			c.update(slice)
		}
	case 1, 2, 3, 4, 5, 6, 7:
		c.allFollow()
	case 8, 9, 10, 11, 12:
		c.follow(c.random.IntN(len(c.servers)))
	case 13, 14, 15:
		c.feed(c.random.IntN(len(c.servers)))
	default:
		c.verifier(c.random.IntN(len(c.verifiers)))
	}
}

// pass advances the clock by span. Before that, the ledger records all issued certificates.
func (c *cluster) pass(span time.Duration) {
	for _, a := range c.authorities {
		a.recordRest()
		_ = c.reconciler.recorder(a.object()).Flush(quietly)
		c.startsAgain()
	}
	c.clock.SetTime(c.now().Add(span.Truncate(time.Second)))
	for _, a := range c.authorities {
		a.forgetEnded()
	}
}
