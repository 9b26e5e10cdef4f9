package explain

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// reads answers each Get with the next of its functions, the last one again and again.
type reads []func(*request) error

func (r *reads) Get(_ context.Context, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
	read := (*r)[0]
	if len(*r) > 1 {
		*r = (*r)[1:]
	}
	return read(obj.(*request))
}

func (*reads) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("nothing is listed")
}

func TestWatchGoesOnWhenAReadFails(t *testing.T) {
	t.Parallel()
	pending, issued := explainRequest(t), explainRequest(t, autoApproved, withCertificate(t, explainNow.AddDate(10, 0, 0), explainNow.AddDate(1, 0, 0), explainKey(t, "node").Public()))
	another := explainRequest(t)
	another.UID = "uid-2"
	answer := func(obj *request) func(*request) error {
		return func(found *request) error { obj.DeepCopyInto(found); return nil }
	}
	fails := func(*request) error { return errors.New("connection\nrefused") }
	for name, test := range map[string]struct {
		reads       reads
		state, fail string
	}{
		"issued":   {reads{answer(pending), fails, fails, answer(issued)}, "Issued", ""},
		"replaced": {reads{answer(pending), fails, answer(another)}, "Pending", `request "csr-1" was deleted before it got a certificate`},
		"silent":   {reads{answer(pending), fails}, "Pending", "request csr-1 still waits for approval after 1m"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := Server{Client: scenario{obj: pending}.client(t)}
				e, err := New(t.Context(), commandConfiguration(t), server, clocktesting.NewFakePassiveClock(explainNow))
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				var progress bytes.Buffer
				report, err := e.Watch(t.Context(), &test.reads, "csr-1", time.Minute, &progress)
				if report == nil || string(report.State) != test.state {
					t.Errorf("report %+v", report)
				}
				if (err == nil) != (test.fail == "") || err != nil && !strings.HasPrefix(err.Error(), test.fail) {
					t.Errorf("error %v, want %q", err, test.fail)
				}
				if !strings.Contains(progress.String(), `Warning: the request could not be read: connection\nrefused`+"\n") {
					t.Errorf("progress %q", progress.String())
				}
			})
		})
	}
}
