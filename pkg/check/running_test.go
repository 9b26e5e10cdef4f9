package check

import (
	"context"
	"math"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// pausing runs meanwhile while somebody waits.
type pausing struct {
	clock.Clock
	meanwhile func()
}

func (p pausing) After(time.Duration) <-chan time.Time {
	p.meanwhile()
	done := make(chan time.Time, 1)
	done <- p.Now()
	return done
}

// TestRunningOutOfTime ends the wait for a renewal: whether a manager leads is unknown then.
func TestRunningOutOfTime(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "manager"},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("pod-a"), RenewTime: ptr.To(metav1.NewMicroTime(time.Unix(0, 0)))},
	}
	results := Running{
		Reader: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(lease).Build(), Pause: time.Second,
		Leases: []types.NamespacedName{client.ObjectKeyFromObject(lease)}, Clock: clocktesting.NewFakeClock(time.Now()),
	}.Check(ctx)
	if len(results) != 1 || results[0].Status != Unknown || !strings.Contains(results[0].Evidence, "context canceled") {
		t.Errorf("%+v", results)
	}
}

func TestRunning(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	meta := metav1.ObjectMeta{Namespace: "ns", Name: "manager"}
	lease := func(holder string, age time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: meta, Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(holder), LeaseDurationSeconds: ptr.To(int32(15)), RenewTime: ptr.To(metav1.NewMicroTime(now.Add(-age))),
		}}
	}
	endless := lease("intruder", time.Hour)
	endless.Spec.LeaseDurationSeconds = ptr.To[int32](math.MaxInt32)
	deployment := func(wanted, ready int32) *appsv1.Deployment {
		return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: ptr.To(wanted)}, Status: appsv1.DeploymentStatus{ReadyReplicas: ready}}
	}
	for name, test := range map[string]struct {
		objects []client.Object
		renewed bool // while it is watched
		want    []Status
		says    string
	}{
		"no Lease":                           {want: []Status{Failed}, says: "no manager has ever led"},
		"renewed just now":                   {objects: []client.Object{lease("pod-a", 3*time.Second)}, want: []Status{OK}, says: "held by pod-a, renewed 3s ago"},
		"released":                           {objects: []client.Object{lease("", 3*time.Second)}, want: []Status{Failed}, says: "it has no holder"},
		"old, and standing still":            {objects: []client.Object{lease("pod-a", time.Hour)}, want: []Status{Failed}, says: "last renewed 1h0m0s ago"},
		"old, though valid for years":        {objects: []client.Object{endless}, want: []Status{Failed}, says: "held by intruder, but last renewed 1h0m0s ago"},
		"old by our clock, but renewed":      {objects: []client.Object{lease("pod-a", time.Hour)}, renewed: true, want: []Status{OK}},
		"in our future, and standing still":  {objects: []client.Object{lease("pod-a", -time.Hour)}, want: []Status{Failed}},
		"with its Deployment":                {objects: []client.Object{lease("pod-a", 0), deployment(2, 2)}, want: []Status{OK, OK}},
		"one replica is not ready":           {objects: []client.Object{lease("pod-a", 0), deployment(2, 1)}, want: []Status{OK, Failed}},
		"scaled to none":                     {objects: []client.Object{lease("pod-a", time.Hour), deployment(0, 0)}, want: []Status{Failed, Failed}},
		"a Deployment that has never led":    {objects: []client.Object{deployment(2, 0)}, want: []Status{Failed, Failed}},
		"no answer about what was not there": {objects: []client.Object{deployment(1, 1)}, want: []Status{Failed, OK}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			reader := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(test.objects...).Build()
			watching := pausing{clocktesting.NewFakeClock(now), func() {
				if test.renewed {
					again := &coordinationv1.Lease{}
					if err := reader.Get(t.Context(), types.NamespacedName{Namespace: "ns", Name: "manager"}, again); err != nil {
						t.Error(err)
					}
					again.Spec.RenewTime = ptr.To(metav1.NewMicroTime(again.Spec.RenewTime.Add(2 * time.Second)))
					if err := reader.Update(t.Context(), again); err != nil {
						t.Error(err)
					}
				}
			}}
			results := Running{
				Reader: reader, Clock: watching, Pause: 5 * time.Second,
				Leases: []types.NamespacedName{{Namespace: "elsewhere", Name: "manager"}, {Namespace: "ns", Name: "manager"}},
			}.Check(t.Context())
			var got []Status
			for _, result := range results {
				got = append(got, result.Status)
				if (result.Status == OK) != (result.NextStep == "") || result.Subject == "" {
					t.Errorf("%+v", result)
				}
			}
			if len(got) != len(test.want) || got[0] != test.want[0] || got[len(got)-1] != test.want[len(got)-1] || !strings.Contains(results[0].Evidence, test.says) {
				t.Errorf("%+v, want %v with %q", results, test.want, test.says)
			}
		})
	}
}
