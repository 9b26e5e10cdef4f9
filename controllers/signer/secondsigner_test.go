package signer

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
)

// storedBy returns a change that records an update of status by manager, with the certificate.
func storedBy(manager string, fields string) func(*request) {
	return func(obj *request) {
		obj.Status.Certificate = []byte("certificate of " + manager)
		obj.ManagedFields = append(obj.ManagedFields,
			metav1.ManagedFieldsEntry{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:certificate":{}}}}`)},
			metav1.ManagedFieldsEntry{Manager: manager, Subresource: "status", FieldsV1: metav1.NewFieldsV1(fields)})
	}
}

func TestSecondSignerIsNoticed(t *testing.T) {
	t.Parallel()
	const certificate = `{"f:status":{"f:certificate":{}}}`
	const advice = "but this manager signs for example.com/second too: disable that signer in one of the two, and check the issuer of this certificate"
	for name, test := range map[string]struct {
		after  func(*request)
		led    time.Duration // time since the election; zero means an hour
		before func(*request)
		signer string
		dryRun bool
		others bool   // other replicas may sign
		want   string // prefix of the Event, or empty
	}{
		"kube-controller-manager":                              {after: storedBy("kube-controller-manager", certificate), want: `field manager "kube-controller-manager" has`},
		"kube-controller-manager, just after":                  {after: storedBy("kube-controller-manager", certificate), led: time.Second, want: `field manager "kube-controller-manager" has`},
		"a person":                                             {after: storedBy("kubectl-edit", certificate), want: `field manager "kubectl-edit" has`},
		"a name with control characters":                       {after: storedBy("a\u202eb", certificate), want: `field manager "a\u202eb" has`},
		"another csr-controller-manager":                       {after: storedBy(FieldManager, certificate), want: "another csr-controller-manager has"},
		"perhaps the former leader":                            {after: storedBy(FieldManager, certificate), led: 59 * time.Second},
		"perhaps a standby":                                    {after: storedBy(FieldManager, certificate), others: true},
		"kube-controller-manager beside a standby":             {after: storedBy("kube-controller-manager", certificate), others: true, want: `field manager "kube-controller-manager" has`},
		"no field manager recorded":                            {after: storedBy("someone", `{"f:status":{"f:conditions":{}}}`), want: "an unknown field manager has"},
		"no field manager recorded, perhaps the former leader": {after: storedBy("someone", "broken"), led: 59 * time.Second},
		"a certificate from before":                            {before: storedBy("kube-controller-manager", certificate), after: storedBy("kube-controller-manager", certificate)},
		"an unconfigured signer":                               {after: storedBy("kube-controller-manager", certificate), signer: "example.com/theirs"},
		"in a dry run":                                         {after: storedBy("kube-controller-manager", certificate), dryRun: true},
		"an update without a certificate":                      {after: func(obj *request) { obj.Labels = map[string]string{"a": "b"} }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := object(t, signerName("example.com/second"))
			if test.signer != "" {
				before.Spec.SignerName = test.signer
			}
			after := before.DeepCopy()
			if test.before != nil {
				test.before(before)
			}
			test.after(after)
			p := newParts(t, after)
			r := p.reconciler
			r.Signers["example.com/second"] = r.Signers["example.com/custom"]
			r.DryRun = test.dryRun
			r.OthersActive = func() bool { return test.others }
			if test.led == 0 {
				test.led = time.Hour
			}
			r.certificates.elected = now.Add(-test.led)
			r.queueEvents().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
			for range 2 {
				if _, err := p.reconcile(t); err != nil {
					t.Fatal(err)
				}
			}
			got := slices.DeleteFunc(taken(p.recorder), func(event string) bool { return !strings.Contains(event, "SecondSigner") })
			switch {
			case test.want == "" && len(got) == 0:
			case len(got) != 1 || test.want == "" || !strings.HasPrefix(got[0], "Warning SecondSigner "+test.want) || !strings.HasSuffix(got[0], advice):
				t.Errorf("Events %q, want %q", got, test.want)
			}
		})
	}
}

// TestSecondSignerIsNotOurselves checks that this process's certificates are never foreign, however their write ended.
// A certificate that replaced one of them is.
func TestSecondSignerIsNotOurselves(t *testing.T) {
	t.Parallel()
	for text, test := range map[string]struct {
		fault error
		other bool
		want  float64
	}{
		"stored":                   {},
		"stored without an answer": {fault: errors.New("connection reset")},
		"another was faster":       {fault: errors.New("connection reset"), other: true, want: 1},
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			p, name := partsOf(t)
			root := newRoot(t, 365*24*time.Hour)
			p.pair.Load(root.cert, root.key)
			r := p.reconciler
			r.certificates.elected = now.Add(-time.Hour)
			p.writeFault = test.fault
			_, _ = p.reconcile(t)
			before, after := p.served, p.served.DeepCopy()
			after.ResourceVersion = "8"
			after.Status.Certificate = p.written[0].Status.Certificate
			if test.other {
				storedBy("kube-controller-manager", `{"f:status":{"f:certificate":{}}}`)(after)
			}
			p.served = after
			r.queueEvents().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
			if _, err := p.reconcile(t); err != nil {
				t.Fatal(err)
			}
			if got := countOf(t, foreignTotal.WithLabelValues(name)); got != test.want {
				t.Errorf("%v noticed, want %v", got, test.want)
			}
			if len(r.certificates.own)+len(r.certificates.foreign) != 0 {
				t.Errorf("remembered: %v, %v", r.certificates.own, r.certificates.foreign)
			}
		})
	}
}

func TestSecondSignerIsReadAgainAfterAFault(t *testing.T) {
	t.Parallel()
	before := object(t)
	after := before.DeepCopy()
	storedBy("kube-controller-manager", `{"f:status":{"f:certificate":{}}}`)(after)
	p := newParts(t, after)
	live := p.reconciler.Live
	p.reconciler.Live = fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return errors.New("down")
		},
	}).Build()
	p.reconciler.queueEvents().Update(event.UpdateEvent{ObjectOld: before, ObjectNew: after})
	if _, err := p.reconcile(t); err == nil || err.Error() != "read field manager of the certificate: down" {
		t.Errorf("error %v", err)
	}
	p.reconciler.Live = live
	if _, err := p.reconcile(t); err != nil || len(taken(p.recorder)) != 1 {
		t.Errorf("error %v, or no Event", err)
	}
}

// TestWritesNameTheFieldManager checks that each write names the field manager. The client's user agent could be
// anything.
func TestWritesNameTheFieldManager(t *testing.T) {
	t.Parallel()
	root := newRoot(t, 365*24*time.Hour)
	for name, obj := range map[string]*request{"a certificate": object(t), "a Failed condition": object(t, usages("fly"))} {
		p := newParts(t, obj)
		p.pair.Load(root.cert, root.key)
		var options client.SubResourceUpdateOptions
		p.reconciler.Client = interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, got client.Object, _ ...client.GetOption) error {
				*got.(*request) = *obj
				return nil
			},
			SubResourceUpdate: func(_ context.Context, _ client.Client, _ string, _ client.Object, given ...client.SubResourceUpdateOption) error {
				options.ApplyOptions(given)
				return nil
			},
		})
		if _, err := p.reconcile(t); err != nil || options.FieldManager != "csr-controller-manager" {
			t.Errorf("%s: field manager %q, error %v", name, options.FieldManager, err)
		}
	}
}
