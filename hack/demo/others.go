package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/kubelet"
)

const intruder = "system:serviceaccount:default:intruder"

// intrude requests the node's certificate as a user with no right but to create requests.
func (d *demo) intrude(ctx context.Context) error {
	cfg, err := d.serviceAccount(ctx, "intruder")
	if err != nil {
		return err
	}
	dir, err := d.dir("intruder")
	if err != nil {
		return err
	}
	pending, err := (&kubelet.Node{Name: nodeName, Dir: dir, Bootstrap: cfg, Lifetime: time.Hour}).Request(ctx)
	if err != nil {
		return err
	}
	d.requests = append(d.requests, expected{pending.Name, "Pending"})
	d.say("%s asked for %s's client certificate: %s", intruder, nodeName, pending.Name)
	var event *eventsv1.Event
	err = until(ctx, "an Event tells why it is not approved", func(ctx context.Context) (bool, error) {
		obj, err := d.request(ctx, pending.Name)
		if err != nil {
			return false, err
		}
		if err := checkPending(obj); err != nil {
			return false, err
		}
		event, err = d.eventAbout(ctx, obj)
		return event != nil, err
	})
	if err != nil {
		return err
	}
	d.say("not approved: %s: %s", event.Reason, event.Note)
	for _, part := range []string{intruder, "CN=" + d.node.User(), "certificatesigningrequests/nodeclient"} {
		if event.Reason != "NotAuthorized" || !strings.Contains(event.Note, part) {
			return fmt.Errorf("want an Event with reason NotAuthorized that names %q", part)
		}
	}
	return nil
}

// serviceAccount creates a ServiceAccount that may create requests, and returns its client configuration.
func (d *demo) serviceAccount(ctx context.Context, name string) (*rest.Config, error) {
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name}}
	if err := d.admin.Create(ctx, account); err != nil {
		return nil, fmt.Errorf("create ServiceAccount: %w", err)
	}
	token := &authenticationv1.TokenRequest{}
	if err := d.admin.SubResource("token").Create(ctx, account, token); err != nil {
		return nil, fmt.Errorf("request a ServiceAccount's token: %w", err)
	}
	subject := rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: name}
	if err := d.bind(ctx, name+"-may-ask", mayRequest, subject); err != nil {
		return nil, err
	}
	cfg := rest.AnonymousClientConfig(d.cluster.Config)
	cfg.BearerToken = token.Status.Token
	return cfg, d.waitForRight(ctx, cfg, intruder)
}

// eventAbout returns an Event about obj, or nil. Events about objects without a namespace are in namespace default.
func (d *demo) eventAbout(ctx context.Context, obj client.Object) (*eventsv1.Event, error) {
	list := &eventsv1.EventList{}
	if err := d.admin.List(ctx, list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return nil, err
	}
	for i := range list.Items {
		if list.Items[i].Regarding.UID == obj.GetUID() {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// fail approves a user's request by hand that asks for a server's usage.
func (d *demo) fail(ctx context.Context) error {
	day := int32((24 * time.Hour).Seconds())
	obj, err := userRequest("alice", certificatesv1.KubeAPIServerClientSignerName, certificatesv1.UsageServerAuth)
	if err != nil {
		return err
	}
	obj.Spec.ExpirationSeconds = &day
	if err := d.admin.Create(ctx, obj); err != nil {
		return err
	}
	d.requests = append(d.requests, expected{obj.Name, "Approved,Failed"})
	d.say("%s asks signer %s for usages %q", obj.Name, obj.Spec.SignerName, obj.Spec.Usages)
	if _, err := d.kubectl(ctx, "certificate", "approve", obj.Name); err != nil {
		return err
	}
	d.say("approved by hand")
	err = until(ctx, "it has failed", func(ctx context.Context) (bool, error) {
		obj, err = d.request(ctx, obj.Name)
		return err == nil && csr.StateOf(obj) != csr.Approved && csr.StateOf(obj) != csr.Pending, err
	})
	if err != nil {
		return err
	}
	if len(obj.Status.Certificate) > 0 {
		return errors.New("it was signed")
	}
	if err := checkOutcomes(obj, byHand, badUsage); err != nil {
		return err
	}
	d.say("failed: %s: %s", badUsage.reason, badUsage.message)
	return nil
}

// userRequest returns a request for the client certificate of user.
func userRequest(user, signer string, usage certificatesv1.KeyUsage) (*request, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	payload, err := certutil.MakeCSR(key, &pkix.Name{CommonName: user}, nil, nil)
	if err != nil {
		return nil, err
	}
	return &request{
		TypeMeta: metav1.TypeMeta{
			APIVersion: certificatesv1.SchemeGroupVersion.String(), Kind: "CertificateSigningRequest",
		},
		ObjectMeta: metav1.ObjectMeta{Name: user},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Request: payload, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage},
		},
	}, nil
}

// clean stores two undecided requests in etcd, one on either side of the 24 hours for which they are kept.
func (d *demo) clean(ctx context.Context) error {
	const young, old = "asked-23-hours-ago", "asked-25-hours-ago"
	for name, age := range map[string]time.Duration{young: 23 * time.Hour, old: 25 * time.Hour} {
		obj, err := userRequest(name, "example.com/nobody-serves-it", certificatesv1.UsageClientAuth)
		if err != nil {
			return err
		}
		obj.UID, obj.CreationTimestamp, obj.Spec.Username = uuid.NewUUID(), metav1.NewTime(time.Now().Add(-age)), "bob"
		if err := d.cluster.Store(ctx, "certificatesigningrequests/"+name, obj); err != nil {
			return err
		}
	}
	d.requests = append(d.requests, expected{young, "Pending"})
	d.say("two undecided requests are in etcd, made 23 and 25 hours ago")
	err := until(ctx, "the older one is deleted", func(ctx context.Context) (bool, error) {
		_, err := d.request(ctx, old)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		return err
	}
	d.say("deleted: %s", old)
	if _, err := d.request(ctx, young); err != nil {
		return fmt.Errorf("the younger one must stay: %w", err)
	}
	d.say("still there: %s", young)
	return nil
}

// table prints the remaining requests, and checks that they are the requests of the steps in the expected state.
func (d *demo) table(ctx context.Context) error {
	out, err := d.kubectl(ctx, "get", "csr", "--sort-by=.metadata.creationTimestamp")
	if err != nil {
		return err
	}
	fmt.Println(out)
	var got []expected
	for _, line := range strings.Split(out, "\n")[1:] {
		fields := strings.Fields(line)
		got = append(got, expected{fields[0], fields[len(fields)-1]})
	}
	byName := func(a, b expected) int { return strings.Compare(a.name, b.name) }
	slices.SortFunc(got, byName)
	slices.SortFunc(d.requests, byName)
	if !slices.Equal(got, d.requests) {
		return fmt.Errorf("the requests are %v, want %v", got, d.requests)
	}
	return nil
}
