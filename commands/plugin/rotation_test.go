package plugin

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	crfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

var updateRotation = flag.Bool("update-rotation", false, "rewrite testdata/rotation")

const day = 24 * time.Hour

func caStatus(keyID string, generation int64, mods ...func(*v1alpha1.CAStatus)) *v1alpha1.CAStatus {
	one := &v1alpha1.CAStatus{KeyID: keyID, Fingerprint: "f-" + keyID, Generation: generation, NotAfter: *at(3650 * day), SignsSince: at(-400 * day)}
	for _, mod := range mods {
		mod(one)
	}
	return one
}

func signing() *v1alpha1.CAStatus { return caStatus("1111111111111111", 1) }
func candidate() *v1alpha1.CAStatus {
	return caStatus("2222222222222222", 2, func(one *v1alpha1.CAStatus) { one.SignsSince = nil })
}

// authorityRenewing has a renewed certificate, which is published and does not sign yet.
func authorityRenewing() v1alpha1.SigningAuthority {
	one := signing()
	one.Earlier = []v1alpha1.EarlierCertificate{{NotAfter: *at(100 * day)}, {NotAfter: *at(day)}}
	return authority("cluster", v1alpha1.SigningAuthorityStatus{
		Phase: v1alpha1.Completed, Generation: 1, Signing: one,
		Renewed:    &v1alpha1.CAStatus{KeyID: one.KeyID, Fingerprint: "renewed", Generation: 1, NotAfter: *at(7300 * day)},
		WaitingFor: []string{"no API server publishes the renewed certificate in ConfigMap kube-system/extension-apiserver-authentication: check the client CA files"},
	})
}

func brought(one *v1alpha1.CAStatus) { one.AdoptedAt = at(-400 * day) }

func authority(name string, status v1alpha1.SigningAuthorityStatus) v1alpha1.SigningAuthority {
	return v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:  v1alpha1.SecretReference{Namespace: "ns", Name: name},
			Signers: []string{"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"},
		},
		Status: status,
	}
}

// These functions return an authority in each phase, with every field that the phase can have.
func authorityPreparing() v1alpha1.SigningAuthority {
	obj := authority("cluster", v1alpha1.SigningAuthorityStatus{
		Phase: v1alpha1.Preparing, Generation: 2, Signing: caStatus("1111111111111111", 1, brought), Candidate: candidate(),
		InitiatedAt: at(-2 * time.Minute), LastCompletedTime: at(-100 * day),
		WaitingFor: []string{"10.0.0.2:6443: it answers 401\x1b[31m", "check that the verifiers of kubernetes.io/kubelet-serving trust the candidate 2222222222222222, because they cannot be probed; then run \"rotation confirm cluster\""},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Signing", Message: "signing with 1111111111111111"},
			{Type: "Trusted", Status: metav1.ConditionFalse, Reason: "NotProven", Message: "10.0.0.2:6443 answers 401"},
		},
	})
	obj.Annotations = map[string]string{v1alpha1.OperationAnnotation: "confirm"}
	return obj
}

func authorityPrepared() v1alpha1.SigningAuthority {
	return authority("cluster", v1alpha1.SigningAuthorityStatus{
		Phase: v1alpha1.Prepared, Generation: 2, Retiring: caStatus("1111111111111111", 1, brought),
		Signing:    caStatus("2222222222222222", 2, func(one *v1alpha1.CAStatus) { one.SignsSince = at(-3 * time.Hour) }),
		WaitingFor: []string{"certificates of kubernetes.io/kube-apiserver-client-kubelet from the CA 1111111111111111 are valid until 2026-03-02T09:00:00Z"},
		Outstanding: []v1alpha1.Outstanding{
			{Signer: "kubernetes.io/kube-apiserver-client-kubelet", Until: *at(21 * time.Hour)},
			{Until: *at(200 * day)},
		},
		OutstandingUntil: at(200 * day),
		LastOperation: &v1alpha1.OperationStatus{
			Name: v1alpha1.OperationComplete, Time: metav1.NewMicroTime(fixedNow.Add(-time.Hour)), Result: v1alpha1.Refused,
			Message: "rotation complete is refused: certificates of kubernetes.io/kube-apiserver-client-kubelet from the CA 1111111111111111 are valid until 2026-03-02T09:00:00Z; allowed now: rotation complete, rotation rollback, rotation accept, rotation attest",
		},
	})
}

// movedNodes returns the ConfigMap in which the manager notes the nodes that have moved to the CA keyID, as its ledger writes it: one
// has both certificates, and one still serves with a certificate of the old CA.
func movedNodes(t *testing.T, keyID string) runtime.Object {
	t.Helper()
	name := types.NamespacedName{Namespace: "ns", Name: "cluster"}
	api := crfake.NewClientBuilder().Build()
	nodes := ledger.NewRecorder(api, api, name, clocktesting.NewFakePassiveClock(fixedNow))
	signers := authorityPrepared().Spec.Signers
	for _, one := range [][2]string{{"new", signers[0]}, {"new", signers[1]}, {"half", signers[0]}, {"gone", signers[0]}, {"back", signers[0]}, {"back", signers[1]}} {
		nodes.Note(ledger.Certificate{Node: one[0], Signer: one[1], KeyID: keyID, NotAfter: at(365 * day).Time})
	}
	kit.NoError(t, nodes.FlushMoved(t.Context(), keyID))
	obj := &corev1.ConfigMap{}
	name.Name = ledger.MovedName(name.Name)
	kit.NoError(t, api.Get(t.Context(), name, obj))
	return obj
}

func TestRotationStatus(t *testing.T) {
	completing, ended := authorityPrepared(), caStatus("1111111111111111", 1, func(one *v1alpha1.CAStatus) { one.NotAfter = *at(-time.Hour) })
	completing.Status.Phase, completing.Status.Intent, completing.Status.Outstanding = v1alpha1.Completing, "DestroyRetiring", nil
	serving := authorityPrepared()
	serving.Status.Outstanding = append(serving.Status.Outstanding, v1alpha1.Outstanding{Signer: "kubernetes.io/kubelet-serving", Until: *at(day)})
	for name, test := range map[string]struct {
		objs  []v1alpha1.SigningAuthority
		fails string // a resource
		moved string // to a key
		args  []string
	}{
		"json":       {objs: []v1alpha1.SigningAuthority{serving}, moved: candidate().KeyID, args: []string{"-o", "json"}},
		"preparing":  {objs: []v1alpha1.SigningAuthority{authorityPreparing()}},
		"prepared":   {objs: []v1alpha1.SigningAuthority{authorityPrepared()}, moved: candidate().KeyID},
		"earlier":    {objs: []v1alpha1.SigningAuthority{authorityPrepared()}, moved: signing().KeyID},
		"no-rights":  {objs: []v1alpha1.SigningAuthority{authorityPrepared()}, fails: "configmaps"},
		"no-nodes":   {objs: []v1alpha1.SigningAuthority{authorityPrepared()}, fails: "nodes", moved: candidate().KeyID},
		"renewing":   {objs: []v1alpha1.SigningAuthority{authorityRenewing()}},
		"completing": {objs: []v1alpha1.SigningAuthority{completing}, moved: candidate().KeyID},
		"two":        {objs: []v1alpha1.SigningAuthority{authority("a", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1, Signing: ended}), authority("b", v1alpha1.SigningAuthorityStatus{})}},
	} {
		t.Run(name, func(t *testing.T) {
			var objs []runtime.Object
			for node, keyID := range map[string]string{"new": signing().KeyID, "back": candidate().KeyID, "half": "", "old": ""} {
				annotations := map[string]string{movingAnnotation: keyID} // back has not moved, and new did not in an earlier rotation
				objs = append(objs, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Annotations: annotations}})
			}
			if test.moved != "" {
				objs = append(objs, movedNodes(t, test.moved))
			}
			c, api := clusterOf(t, objs, test.objs...)
			if test.fails != "" {
				forbid(api, "*", test.fails)
			}
			out, _, err := execute(t, c, "", append([]string{"rotation", "status"}, test.args...)...)
			kit.NoError(t, err)
			golden(t, filepath.Join("testdata", "rotation", name+".txt"), out)
		})
	}
}

func golden(t *testing.T, path, text string) {
	t.Helper()
	if *updateRotation {
		kit.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	}
	want, err := os.ReadFile(path)
	kit.NoError(t, err)
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestRotationDone checks, for each accepted operation, which status means done, and which that it was undone.
func TestRotationDone(t *testing.T) {
	type status = v1alpha1.SigningAuthorityStatus
	completed := &status{Phase: v1alpha1.Completed, Generation: 1, Signing: signing()}
	preparing := &status{Phase: v1alpha1.Preparing, Generation: 2, Signing: signing(), Candidate: candidate()}
	prepared := &status{Phase: v1alpha1.Prepared, Generation: 2, Signing: candidate(), Retiring: signing()}
	swapped := &status{Phase: v1alpha1.Prepared, Generation: 2, Signing: signing(), Retiring: candidate()}
	stopped := prepared.DeepCopy()
	stopped.LastOperation = &v1alpha1.OperationStatus{Name: v1alpha1.OperationComplete, Result: v1alpha1.Refused, Message: "it is stopped"}
	renewing, making, renewedCA := authorityRenewing().Status, completed.DeepCopy(), completed.DeepCopy()
	making.Intent, renewedCA.Signing.Fingerprint = "MakeRenewed", "renewed"
	inUse := &status{Phase: v1alpha1.Prepared, Retiring: signing(), Outstanding: []v1alpha1.Outstanding{{}}}
	accepted := inUse.DeepCopy()
	accepted.Retiring.OutstandingAcceptedAt = at(0)
	for name, test := range map[string]struct {
		before, now *status
		want        string // no, yes, or an error
	}{
		"start, prepared":              {completed, prepared, "yes"},
		"complete, under way":          {prepared, &status{Phase: v1alpha1.Completing, Signing: candidate(), Retiring: signing()}, "no"},
		"complete, done":               {prepared, &status{Phase: v1alpha1.Completed, Signing: candidate(), LastRetired: signing()}, "yes"},
		"complete, stopped":            {prepared, stopped, "it is stopped"},
		"rollback, preparing":          {preparing, preparing, "no"},
		"rollback, candidate gone":     {preparing, completed, "yes"},
		"rollback, switched and back":  {preparing, swapped, "yes"},
		"rollback, swapped":            {prepared, swapped, "yes"},
		"confirm, as soon as accepted": {preparing, preparing, "yes"},
		"renew-certificate, made":      {completed, making, "no"},
		"renew-certificate, published": {completed, &renewing, "no"},
		"renew-certificate, signs":     {completed, renewedCA, "yes"},
		"renew-certificate, dropped":   {&renewing, completed, "the renewed certificate was dropped, and does not sign"},
		"wait, in use":                 {inUse, inUse, "no"},
		"wait, accepted":               {inUse, accepted, "yes"},
	} {
		now := authority("cluster", *test.now)
		r := followerOf(t, v1alpha1.Operation(strings.Split(name, ",")[0]), authority("cluster", *test.before), now)
		r.answered = true
		done, err := r.poll(t.Context())
		got := map[bool]string{true: "yes", false: "no"}[done]
		if err != nil {
			got = err.Error()
		}
		if got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// followerOf returns what waits for an operation that was requested at before. The API server has now.
func followerOf(t *testing.T, operation v1alpha1.Operation, before v1alpha1.SigningAuthority, now ...v1alpha1.SigningAuthority) *rotation {
	t.Helper()
	c, _ := clusterOf(t, nil, now...)
	r := &rotation{cluster: c, out: io.Discard, aside: io.Discard, before: &before}
	for _, verb := range rotationVerbs {
		if verb.name == string(operation) {
			r.rotationVerb = verb
		}
	}
	return r
}

// TestRotationAnswer checks when an operation counts as answered: the annotation is gone, and the status has a result that
// it did not have before.
func TestRotationAnswer(t *testing.T) {
	result := func(result v1alpha1.OperationResult, after time.Duration) *v1alpha1.OperationStatus {
		return &v1alpha1.OperationStatus{Name: v1alpha1.OperationStart, Result: result, Time: metav1.NewMicroTime(fixedNow.Add(after))}
	}
	refused := result(v1alpha1.Refused, 0)
	for name, test := range map[string]struct {
		before, now *v1alpha1.OperationStatus
		annotation  v1alpha1.Operation
		answered    bool
	}{
		"not picked up":                 {nil, nil, v1alpha1.OperationStart, false},
		"the annotation is there":       {nil, refused, v1alpha1.OperationStart, false},
		"nothing but an earlier result": {refused, refused, "", false},
		"accepted":                      {refused, result(v1alpha1.Accepted, 1000), "", true},
	} {
		before := authority("cluster", v1alpha1.SigningAuthorityStatus{LastOperation: test.before})
		r, now := followerOf(t, v1alpha1.OperationStart, before), *before.DeepCopy()
		now.Status.LastOperation = test.now
		now.Annotations = map[string]string{v1alpha1.OperationAnnotation: string(test.annotation)}
		if answered, err := r.answer(&now); answered != test.answered || err != nil {
			t.Errorf("%s: answered %t, error %v", name, answered, err)
		}
	}
}

// TestRotationFindsTheAuthority checks the names on the command line, and that another object of the same name is not the one that
// was asked.
func TestRotationFindsTheAuthority(t *testing.T) {
	a, b := authority("a", v1alpha1.SigningAuthorityStatus{}), authority("b", v1alpha1.SigningAuthorityStatus{})
	for args, test := range map[string]struct {
		objs []v1alpha1.SigningAuthority
		want string
	}{
		"start":            {nil, "there is no SigningAuthority: create one"},
		"start ":           {[]v1alpha1.SigningAuthority{a, b}, "there are 2 SigningAuthorities: add the name of one: a, b"},
		"start c":          {[]v1alpha1.SigningAuthority{a, b}, `there is no SigningAuthority "c"`},
		"complete a --yes": {[]v1alpha1.SigningAuthority{a, b}, "rotation complete is refused: the phase is New; allowed now: "},
	} {
		c, _ := clusterOf(t, nil, test.objs...)
		_, _, err := execute(t, c, "", append([]string{"rotation"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want %q", args, err, test.want)
		}
	}
	again := a
	again.UID = "2"
	for _, objs := range [][]v1alpha1.SigningAuthority{{again}, nil} {
		if done, err := followerOf(t, v1alpha1.OperationStart, a, objs...).poll(t.Context()); done || !strings.Contains(fmt.Sprint(err), "was deleted") {
			t.Errorf("done %t, error %v", done, err)
		}
	}
}

// TestRotationWaitsForARenewal checks that rotation wait finds a renewal under way, whether requested or brought, and that it
// says the newest state that it read, also if the time ends during a read.
func TestRotationWaitsForARenewal(t *testing.T) {
	for name, ends := range map[string]bool{"between two reads": false, "during a read": true} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := clusterOf(t, nil, authorityRenewing())
			typed := c.authorities.(*rest.RESTClient)
			inner, start := typed.Client.Transport, time.Now()
			typed.Client.Transport = answerer(func(r *http.Request) (*http.Response, error) {
				if ends && time.Since(start) > time.Minute {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				return inner.RoundTrip(r)
			})
			_, aside, err := execute(t, c, "", "rotation", "wait", "cluster")
			if err == nil || !strings.Contains(aside, "until the renewed certificate signs") || !strings.Contains(err.Error(), "no API server publishes") {
				t.Errorf("%s: error %v:\n%s", name, err, aside)
			}
		})
	}
}

// TestRotationMeaning checks that an operation that cannot be undone is explained first, and not requested without
// --yes.
func TestRotationMeaning(t *testing.T) {
	text := ""
	for _, verb := range []string{"complete", "accept", "attest"} {
		c, _ := clusterOf(t, nil, authorityPrepared())
		_, aside, err := execute(t, c, "", "rotation", verb, "cluster")
		if err == nil || !strings.Contains(err.Error(), "not requested: to do it, run kubectl csr rotation "+verb+" cluster --yes") {
			t.Errorf("%s: error %v", verb, err)
		}
		text += aside + "\n"
	}
	golden(t, filepath.Join("testdata", "rotation", "meaning.txt"), text)
}
