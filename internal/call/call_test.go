package call_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/csr-controller-manager/csr-controller-manager/internal/call"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/audit"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

type request = certificatesv1.CertificateSigningRequest

var (
	errDown   = errors.New("down")
	forbidden = apierrors.NewForbidden(schema.GroupResource{}, "a", errDown)
)

// approved returns a request with a condition, and a certificate if it is not empty.
func approved(certificate string) *request {
	obj := &request{}
	obj.Name, obj.UID, obj.ResourceVersion = "a", "uid", "7"
	csr.AddCondition(obj, certificatesv1.CertificateApproved, "AutoApproved", "by a test", time.Time{})
	obj.Status.Certificate = []byte(certificate)
	return obj
}

// answer returns err after a time, or ctx's error if ctx ends before.
func answer(ctx context.Context, after time.Duration, err error) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(after):
		return err
	}
}

// TestStore checks the outcome of a write by its answer, and by what the read after it shows.
func TestStore(t *testing.T) {
	edit := func(obj *request, change func(*request)) *request {
		change(obj)
		return obj
	}
	later := func(obj *request) { obj.ResourceVersion = "8" }
	bare := func(obj *request) { obj.Status = certificatesv1.CertificateSigningRequestStatus{} }
	gone := apierrors.NewNotFound(schema.GroupResource{}, "a")
	for name, test := range map[string]struct {
		certificate  string
		write, read  error
		writes, lies time.Duration // how long the calls take
		live         *request      // nil: as it was before the write
		want         audit.Event
		changed      bool
	}{
		"an answer after 25 seconds":               {writes: 25 * time.Second, want: audit.Stored},
		"no answer, but stored":                    {writes: time.Hour, lies: 25 * time.Second, live: edit(approved(""), later), want: audit.Stored},
		"no answer, and not stored":                {writes: time.Hour, lies: 25 * time.Second, want: audit.Uncertain},
		"neither has an answer":                    {writes: time.Hour, lies: time.Hour, want: audit.Uncertain},
		"an error, and the read fails":             {write: errDown, read: errDown, want: audit.Uncertain},
		"an error, and it is deleted":              {write: errDown, read: gone, want: audit.Uncertain, changed: true},
		"an error, and another of the name":        {write: errDown, live: edit(approved(""), func(obj *request) { obj.UID = "new" }), want: audit.Uncertain, changed: true},
		"an error, and another version without it": {write: errDown, live: edit(edit(approved(""), bare), later), want: audit.Discarded, changed: true},
		"refused, and unchanged":                   {write: forbidden, want: audit.Discarded},
		"refused, but stored before":               {write: forbidden, live: edit(approved(""), later), want: audit.Stored},
		"refused, and the read fails":              {write: forbidden, read: errDown, want: audit.Uncertain},
		"approved, and signed since":               {write: errDown, live: edit(approved("c"), later), want: audit.Stored},
		"signed":                                   {certificate: "c", write: errDown, live: edit(approved("c"), later), want: audit.Stored},
		"signed by another signer":                 {certificate: "c", write: errDown, live: edit(approved("d"), later), want: audit.Discarded, changed: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			server := interceptor.NewClient(nil, interceptor.Funcs{
				Get: func(ctx context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
					if test.live == nil {
						test.live = edit(approved(""), bare)
					}
					*obj.(*request) = *test.live
					return answer(ctx, test.lies, test.read)
				},
				SubResourceUpdate: func(ctx context.Context, _ client.Client, _ string, _ client.Object, _ ...client.SubResourceUpdateOption) error {
					return answer(ctx, test.writes, test.write)
				},
			})
			ctx, stop := context.WithCancel(t.Context())
			stop() // the manager stops
			got := call.Store(ctx, server, server.Status(), edit(approved(""), bare), func(written *request) {
				written.Status = approved(test.certificate).Status
			})
			expect.True(t, got.Outcome == test.want && got.Changed == test.changed && (got.Live != nil) == (test.want == audit.Discarded),
				"%s: %+v", name, got)
			took := time.Since(began)
			expect.True(t, took <= call.Grace && took == min(test.writes, 45*time.Second)+min(test.lies, 45*time.Second), "%s: took %s", name, took)
		})
	}
}

// TestStoreWritesTheWhole checks that a write about a request without its content starts from the whole of the version that was judged.
func TestStoreWritesTheWhole(t *testing.T) {
	version := func(uid, version string) *request {
		obj := &request{Spec: certificatesv1.CertificateSigningRequestSpec{Request: []byte("whole")}}
		obj.Name, obj.UID, obj.ResourceVersion = "a", types.UID(uid), version
		obj.Annotations = map[string]string{"a": strings.Repeat("x", 70_000)}
		return obj
	}
	small := version("uid", "7")
	_, err := csr.Trim{}.Transform(small)
	expect.True(t, err == nil && csr.Oversized(small) && len(small.Annotations) == 0, "the cache holds %v, %v", small, err)
	for name, test := range map[string]struct {
		obj, live *request
		read      error
		want      string
	}{
		"whole in the cache":    {version("uid", "7"), version("uid", "8"), nil, "Stored <nil>, false; 1 annotations of version 7"},
		"small in the cache":    {small, version("uid", "7"), nil, "Stored <nil>, false; 1 annotations of version 7"},
		"another version":       {small, version("uid", "8"), nil, "Discarded the request has changed since it was judged, true; nothing"},
		"another of that name":  {small, version("new", "7"), nil, "Discarded the request has changed since it was judged, true; nothing"},
		"deleted":               {small, version("uid", "7"), apierrors.NewNotFound(schema.GroupResource{}, "a"), "Discarded the request has changed since it was judged, true; nothing"},
		"the read is forbidden": {small, version("uid", "7"), errDown, "Discarded " + errDown.Error() + ", false; nothing"},
	} {
		wrote := "nothing"
		server := interceptor.NewClient(nil, interceptor.Funcs{
			Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
				test.live.DeepCopyInto(obj.(*request))
				return test.read
			},
			SubResourceUpdate: func(_ context.Context, _ client.Client, _ string, obj client.Object, _ ...client.SubResourceUpdateOption) error {
				expect.Equal(t, name+": conditions", len(obj.(*request).Status.Conditions), 1)
				wrote = fmt.Sprintf("%d annotations of version %s", len(obj.GetAnnotations()), obj.GetResourceVersion())
				return nil
			},
		})
		got := call.Store(t.Context(), server, server.Status(), test.obj, func(written *request) { written.Status = approved("").Status })
		expect.Equal(t, name, fmt.Sprintf("%s %v, %t; %s", got.Outcome, got.Err, got.Changed, wrote), test.want)
	}
}

// api is a client.Reader.
type api func(context.Context) error

func (a api) Get(ctx context.Context, _ client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	return a(ctx)
}
func (a api) List(ctx context.Context, _ client.ObjectList, _ ...client.ListOption) error {
	return a(ctx)
}

// TestBounds checks which calls wait 25 seconds for their answer, that a call that hangs ends, and what the end of the
// manager does to calls.
func TestBounds(t *testing.T) {
	for name, test := range map[string]struct {
		takes time.Duration
		stops time.Duration // when the manager stops
		write bool
		list  bool
		want  error
		after time.Duration
	}{
		"a read":                                {takes: 25 * time.Second, stops: time.Hour, after: 25 * time.Second},
		"a read that hangs":                     {takes: time.Hour, stops: time.Hour, want: context.DeadlineExceeded, after: 45 * time.Second},
		"a read when the manager stops":         {takes: time.Hour, stops: time.Second, want: context.Canceled, after: time.Second},
		"a list":                                {list: true, takes: 50 * time.Second, stops: time.Hour, after: 50 * time.Second},
		"a list that hangs":                     {list: true, takes: time.Hour, stops: time.Hour, want: context.DeadlineExceeded, after: time.Minute},
		"a write":                               {write: true, takes: 25 * time.Second, stops: time.Hour, after: 25 * time.Second},
		"a write that hangs":                    {write: true, takes: time.Hour, stops: time.Second, want: context.DeadlineExceeded, after: 45 * time.Second},
		"a write when the manager stops":        {write: true, takes: 25 * time.Second, stops: time.Second, after: 25 * time.Second},
		"a write after the manager has stopped": {write: true, takes: 25 * time.Second, want: context.Canceled},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer time.AfterFunc(test.stops, stop).Stop()
			if test.stops == 0 {
				stop()
			}
			began := time.Now()
			api := api(func(ctx context.Context) error { return answer(ctx, test.takes, nil) })
			var err error
			switch obj := (&corev1.Secret{}); {
			case test.write:
				err = call.Write(ctx, func(ctx context.Context, _ client.Object, _ ...any) error { return api(ctx) }, obj)
			case test.list:
				err = call.List(ctx, api, &corev1.SecretList{})
			default:
				err = call.Get(ctx, api, client.ObjectKeyFromObject(obj), obj)
			}
			expect.Equal(t, name+": time", time.Since(began), test.after)
			expect.True(t, errors.Is(err, test.want) && (test.want != nil || err == nil), "%s: %v, want %v", name, err, test.want)
		})
	}
}
