package rotation

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

var operations = []v1alpha1.Operation{
	v1alpha1.RotateStart, v1alpha1.RotateComplete, v1alpha1.RotateRollback, v1alpha1.TrustConfirmed,
	v1alpha1.AdoptionAttested, "nonsense",
}

// TestRandomWorlds: whatever comes in whatever order, and wherever the process dies, no certificate is issued or left that
// is not trusted, no key is lost, nothing outstanding is left behind; and once it is quiet, it comes to rest and can be
// rotated.
func TestRandomWorlds(t *testing.T) {
	phases := map[v1alpha1.Phase]int{}
	actions := map[Action]int{}
	for seed := range uint64(1500) {
		random := rand.New(rand.NewPCG(seed, 5))
		w := newWorld()
		w.crash = func() bool { return random.IntN(10) == 0 }
		w.spec.Signers = append(w.spec.Signers, certificatesv1.KubeAPIServerClientSignerName)
		if random.IntN(2) == 0 {
			w.ring.TLS = w.pair()
		}
		for range 400 {
			switch random.IntN(14) {
			case 0:
				w.operation = operations[random.IntN(len(operations))]
				if w.status.Phase == v1alpha1.Prepared && random.IntN(2) == 0 {
					w.operation = v1alpha1.RotateComplete
				}
			case 1:
				w.now = w.now.Add(time.Duration(random.Int64N(int64(60 * 24 * time.Hour))))
			case 2:
				w.servers[random.IntN(len(w.servers))] = slices.Clone(w.published)
			case 3:
				w.view = w.ring
			case 4:
				w.sign(time.Duration(1+random.IntN(40*24)) * time.Hour)
			case 5:
				switch random.IntN(20) {
				case 0:
					w.ring.TLS = w.pair()
				case 1:
					if len(w.servers) < 5 {
						w.servers = append(w.servers, nil)
					}
				case 2:
					w.spec.Signers = w.spec.Signers[:1]
				}
			default:
				w.reconcile()
			}
			phases[w.status.Phase]++
			if broken := w.broken(); broken != "" {
				t.Fatalf("seed %d: %s", seed, broken)
			}
		}
		for _, action := range w.taken {
			actions[action]++
		}
		rotateQuietly(t, seed, w)
	}
	for _, phase := range []v1alpha1.Phase{v1alpha1.Preparing, v1alpha1.Prepared, v1alpha1.Completing, v1alpha1.Completed} {
		if phases[phase] < 1000 {
			t.Errorf("phase %q was seen %d times only", phase, phases[phase])
		}
	}
	for _, action := range []Action{MakeCandidate, TakeCandidate, DropCandidate, RestoreTLS, Publish, Switch, SwapBack, Permit, Seal, DestroyRetiring} {
		if actions[action] < 20 {
			t.Errorf("%s was taken %d times only", action, actions[action])
		}
	}
	t.Log(phases, actions)
}

// rotateQuietly brings w, where nothing fails any more, through what is under way and one rotation more.
func rotateQuietly(t *testing.T, seed uint64, w *world) {
	t.Helper()
	w.crash = func() bool { return false }
	w.operation = ""
	settle := func() {
		t.Helper()
		if err := w.settle(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if broken := w.broken(); broken != "" {
			t.Fatalf("seed %d: %s", seed, broken)
		}
	}
	settle()
	if w.status.Phase == v1alpha1.Completed {
		w.operation = v1alpha1.RotateStart
		settle()
	}
	if w.status.Phase != v1alpha1.Prepared {
		t.Fatalf("seed %d: want Prepared: %s", seed, w)
	}
	w.now = w.now.Add(400 * 24 * time.Hour)
	w.operation = v1alpha1.RotateComplete
	settle()
	if w.status.Phase != v1alpha1.Completed || !w.ring.Retiring.Empty() {
		t.Fatalf("seed %d: want Completed: %s", seed, w)
	}
}

// TestDeathAtEveryWrite: a rotation, forth, back and forth again, ends the same wherever the process dies once.
func TestDeathAtEveryWrite(t *testing.T) {
	writes := 0
	for dies := 0; dies <= writes; dies++ {
		w := newWorld()
		w.ring.TLS = w.pair()
		n := 0
		w.crash = func() bool { n++; return n == dies }
		settle := func() {
			t.Helper()
			if err := w.settle(); err != nil {
				t.Fatalf("death at write %d: %v", dies, err)
			}
		}
		ask := func(operation v1alpha1.Operation, want v1alpha1.Phase) {
			t.Helper()
			settle()
			w.operation = operation
			settle()
			if broken := w.broken(); broken != "" || w.status.Phase != want || w.operation != "" {
				t.Fatalf("death at write %d: after %s: %s %s", dies, operation, broken, w)
			}
		}
		ask(v1alpha1.AdoptionAttested, v1alpha1.Completed)
		ask(v1alpha1.RotateStart, v1alpha1.Prepared)
		w.sign(24 * time.Hour)
		ask(v1alpha1.RotateRollback, v1alpha1.Prepared)
		w.now = w.now.Add(48 * time.Hour)
		ask(v1alpha1.RotateComplete, v1alpha1.Completed)
		ask(v1alpha1.RotateStart, v1alpha1.Prepared)
		ask(v1alpha1.RotateComplete, v1alpha1.Completed)
		if w.status.Generation != 3 || len(w.refused) != 0 || len(w.published) != 1 || !w.ring.TLS.Equal(w.ring.Signing) {
			t.Errorf("death at write %d: %s", dies, w)
		}
		if dies == 0 {
			writes = n
		}
	}
	if writes < 60 {
		t.Errorf("there were %d writes only", writes)
	}
}
