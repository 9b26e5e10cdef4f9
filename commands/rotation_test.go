package commands

import (
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
	"github.com/csr-controller-manager/csr-controller-manager/internal/ledger"
)

// fixedNow is when commands run in tests.
var fixedNow = time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC)

var updateRotation = flag.Bool("update-rotation", false, "rewrite testdata/rotation and testdata/check")

// at is an instant so long after fixedNow.
func at(after time.Duration) *metav1.Time {
	instant := metav1.NewTime(fixedNow.Add(after))
	return &instant
}

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

func brought(one *v1alpha1.CAStatus) { one.AdoptedAt = at(-400 * day) }

// authority is a SigningAuthority at that status.
func authority(name string, status v1alpha1.SigningAuthorityStatus) *v1alpha1.SigningAuthority {
	return &v1alpha1.SigningAuthority{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.SigningAuthoritySpec{
			Secret:  v1alpha1.SecretReference{Namespace: "ns", Name: name},
			Signers: []string{"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"},
		},
		Status: status,
	}
}

// These functions return an authority in each phase, with every field that the phase can have.
func authorityPreparing() *v1alpha1.SigningAuthority {
	obj := authority("cluster", v1alpha1.SigningAuthorityStatus{
		Phase: v1alpha1.Preparing, Generation: 2, Signing: caStatus("1111111111111111", 1, brought), Candidate: candidate(),
		InitiatedAt: at(-2 * time.Minute), LastCompletedAt: at(-100 * day),
		WaitingFor: []string{"10.0.0.2:6443: it answers 401\x1b[31m", "check that the verifiers of kubernetes.io/kubelet-serving trust the candidate 2222222222222222, because they cannot be probed; then run \"rotation confirm cluster\""},
		APIServers: []v1alpha1.APIServerStatus{
			{Address: "10.0.0.1:6443", Trust: "Recognised", Since: at(-90 * time.Second)},
			{Address: "10.0.0.2:6443", Trust: "Refused", Evidence: "it answers 401"},
		},
		Conditions: []metav1.Condition{
			{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Signing", Message: "signing with 1111111111111111"},
			{Type: "Trusted", Status: metav1.ConditionFalse, Reason: "NotProven", Message: "10.0.0.2:6443 answers 401"},
		},
	})
	obj.Annotations = map[string]string{v1alpha1.OperationAnnotation: "trust-confirmed"}
	return obj
}

func authorityPrepared() *v1alpha1.SigningAuthority {
	return authority("cluster", v1alpha1.SigningAuthorityStatus{
		Phase: v1alpha1.Prepared, Generation: 2, Retiring: caStatus("1111111111111111", 1, brought),
		Signing:    caStatus("2222222222222222", 2, func(one *v1alpha1.CAStatus) { one.SignsSince = at(-3 * time.Hour) }),
		WaitingFor: []string{"up to 12 certificates of kubernetes.io/kube-apiserver-client-kubelet from the CA 1111111111111111 are valid until 2026-03-02T09:00:00Z"},
		Outstanding: []v1alpha1.Outstanding{
			{Signer: "kubernetes.io/kube-apiserver-client-kubelet", Count: 12, Until: *at(21 * time.Hour)},
			{Until: *at(200 * day)},
		},
		OutstandingOnRetiring: 12,
	})
}

// statusClient returns a client of an API server with objs and three Nodes.
func statusClient(t *testing.T, fails interceptor.Funcs, objs ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"new", "old", "silent"} {
		objs = append(objs, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).WithInterceptorFuncs(fails).Build()
}

// moved records certificates of nodes in the ledger. One node has moved. Two have not, and the Node of one of these is
// deleted.
func moved(t *testing.T, api client.Client) {
	t.Helper()
	nodes := ledger.NewNodes(api, api, types.NamespacedName{Namespace: "ns", Name: "cluster"}, clocktesting.NewFakePassiveClock(fixedNow))
	note := func(node, signer, keyID string, ends time.Duration) {
		nodes.Note(ledger.Certificate{Node: node, Signer: "kubernetes.io/" + signer, KeyID: keyID, NotBefore: fixedNow.Add(ends - 365*day), NotAfter: fixedNow.Add(ends)})
	}
	note("new", "kube-apiserver-client-kubelet", "2222222222222222", 365*day)
	note("new", "kubelet-serving", "1111111111111111", 30*day)
	note("old", "kube-apiserver-client-kubelet", "1111111111111111", 20*day)
	note("gone", "kube-apiserver-client-kubelet", "1111111111111111", 10*day)
	note("ended", "kube-apiserver-client-kubelet", "1111111111111111", -day)
	if err := nodes.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestRotationStatus(t *testing.T) {
	t.Parallel()
	forbidden := func(resource string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "", errors.New("no"))
	}
	noMaps := interceptor.Funcs{Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
		if _, is := obj.(*corev1.ConfigMap); is {
			return forbidden("configmaps")
		}
		return api.Get(ctx, key, obj, opts...)
	}}
	noNodes := interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, is := list.(*metav1.PartialObjectMetadataList); is {
			return forbidden("nodes")
		}
		return api.List(ctx, list, opts...)
	}}
	completing := authorityPrepared()
	completing.Status.Phase, completing.Status.Intent, completing.Status.Outstanding = v1alpha1.Completing, "DestroyRetiring", nil
	for name, test := range map[string]struct {
		objs    []client.Object
		fails   interceptor.Funcs
		unmoved bool
		output  string
	}{
		"json":       {objs: []client.Object{authorityPrepared()}, unmoved: true, output: "json"},
		"yaml":       {objs: []client.Object{authorityPreparing()}, output: "yaml"},
		"preparing":  {objs: []client.Object{authorityPreparing()}},
		"prepared":   {objs: []client.Object{authorityPrepared()}, unmoved: true},
		"no-rights":  {objs: []client.Object{authorityPrepared()}, fails: noMaps},
		"no-nodes":   {objs: []client.Object{authorityPrepared()}, fails: noNodes, unmoved: true},
		"completing": {objs: []client.Object{completing}, unmoved: true},
		"two":        {objs: []client.Object{authority("b", v1alpha1.SigningAuthorityStatus{}), authority("a", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1, Signing: caStatus("1111111111111111", 1, func(one *v1alpha1.CAStatus) { one.NotAfter = *at(-time.Hour) })})}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := statusClient(t, test.fails, test.objs...)
			if test.unmoved {
				moved(t, api)
			}
			var out bytes.Buffer
			r := rotationOf(rotationOptions{verb: "status", output: test.output}, api, &out)
			if err := r.run(t.Context()); err != nil {
				t.Fatal(err)
			}
			golden(t, filepath.Join("testdata", "rotation", name+".txt"), out.String())
		})
	}
}

// rotationOf returns a rotation command that runs at fixedNow.
func rotationOf(options rotationOptions, api client.Client, out io.Writer) *rotation {
	options.program = "csr-controller-manager rotation"
	options.timeout = cmp.Or(options.timeout, time.Minute)
	return &rotation{
		rotationOptions: options, api: api, clock: clocktesting.NewFakePassiveClock(fixedNow), out: out, aside: out,
		interval: time.Millisecond, eventTimeout: time.Second,
	}
}

// golden compares text with a file.
func golden(t *testing.T, path, text string) {
	t.Helper()
	if *updateRotation {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// TestRotationOutcome checks, for each operation, which status means accepted and which means done.
func TestRotationOutcome(t *testing.T) {
	t.Parallel()
	type status = v1alpha1.SigningAuthorityStatus
	now := func(mod func(*v1alpha1.CAStatus), one *v1alpha1.CAStatus) *v1alpha1.CAStatus { mod(one); return one }
	completed := &status{Phase: v1alpha1.Completed, Generation: 1, Signing: signing()}
	preparing := &status{Phase: v1alpha1.Preparing, Generation: 2, Signing: signing(), Candidate: candidate()}
	prepared := &status{Phase: v1alpha1.Prepared, Generation: 2, Signing: candidate(), Retiring: signing()}
	swapped := &status{Phase: v1alpha1.Prepared, Generation: 2, Signing: signing(), Retiring: candidate()}
	for name, test := range map[string]struct {
		operation      v1alpha1.Operation
		before, now    *status
		followed, done bool
	}{
		"start, not taken":            {v1alpha1.RotateStart, completed, completed, false, false},
		"start, preparing":            {v1alpha1.RotateStart, completed, preparing, true, false},
		"start, prepared":             {v1alpha1.RotateStart, completed, prepared, true, true},
		"start, rolled back since":    {v1alpha1.RotateStart, completed, &status{Phase: v1alpha1.Completed, Generation: 2, Signing: signing()}, true, true},
		"complete, not taken":         {v1alpha1.RotateComplete, prepared, prepared, false, false},
		"complete, under way":         {v1alpha1.RotateComplete, prepared, &status{Phase: v1alpha1.Completing, Signing: candidate(), Retiring: signing()}, true, false},
		"complete, done":              {v1alpha1.RotateComplete, prepared, &status{Phase: v1alpha1.Completed, Signing: candidate()}, true, true},
		"rollback, preparing":         {v1alpha1.RotateRollback, preparing, preparing, false, false},
		"rollback, candidate gone":    {v1alpha1.RotateRollback, preparing, &status{Phase: v1alpha1.Completed, Signing: signing()}, true, true},
		"rollback, switched first":    {v1alpha1.RotateRollback, preparing, prepared, false, false},
		"rollback, switched and back": {v1alpha1.RotateRollback, preparing, swapped, true, true},
		"rollback, prepared":          {v1alpha1.RotateRollback, prepared, prepared, false, false},
		"rollback, under way":         {v1alpha1.RotateRollback, prepared, &status{Phase: v1alpha1.Prepared, Intent: "SwapBack", Signing: candidate(), Retiring: signing()}, true, false},
		"rollback, swapped":           {v1alpha1.RotateRollback, prepared, swapped, true, true},
		"confirm, not yet":            {v1alpha1.TrustConfirmed, preparing, preparing, false, false},
		"confirm":                     {v1alpha1.TrustConfirmed, preparing, &status{Phase: v1alpha1.Preparing, Candidate: now(func(c *v1alpha1.CAStatus) { c.TrustConfirmedAt = at(0) }, candidate())}, true, true},
		"confirm, and switched":       {v1alpha1.TrustConfirmed, preparing, &status{Phase: v1alpha1.Prepared, Signing: now(func(c *v1alpha1.CAStatus) { c.TrustConfirmedAt = at(0) }, candidate())}, true, true},
		"accept, not yet":             {v1alpha1.OutstandingAccepted, prepared, prepared, false, false},
		"accept":                      {v1alpha1.OutstandingAccepted, prepared, &status{Retiring: now(func(c *v1alpha1.CAStatus) { c.OutstandingAcceptedAt = at(0) }, signing())}, true, true},
		"attest, not yet":             {v1alpha1.AdoptionAttested, prepared, prepared, false, false},
		"attest":                      {v1alpha1.AdoptionAttested, prepared, &status{Retiring: now(func(c *v1alpha1.CAStatus) { c.AttestedAt = at(0) }, signing())}, true, true},
		"attest, long ago":            {v1alpha1.AdoptionAttested, &status{Signing: now(func(c *v1alpha1.CAStatus) { c.AttestedAt = at(0) }, signing())}, &status{Signing: now(func(c *v1alpha1.CAStatus) { c.AttestedAt = at(0) }, signing())}, false, false},
	} {
		if followed, done := outcome(test.operation, test.before, test.now); followed != test.followed || done != test.done {
			t.Errorf("%s: followed %t, done %t", name, followed, done)
		}
	}
}

// TestRotationMeaning checks that an operation that cannot be undone is explained first, and not requested without
// --yes.
func TestRotationMeaning(t *testing.T) {
	t.Parallel()
	text := ""
	for _, operation := range []v1alpha1.Operation{v1alpha1.RotateComplete, v1alpha1.OutstandingAccepted, v1alpha1.AdoptionAttested} {
		api := statusClient(t, interceptor.Funcs{}, authorityPrepared())
		var out bytes.Buffer
		r := rotationOf(rotationOptions{verb: strings.TrimPrefix(operation.Command(), "rotation "), operation: operation, name: "cluster"}, api, &out)
		err := r.run(t.Context())
		text += fmt.Sprintf("%serror: %v\n\n", out.String(), err)
		obj := &v1alpha1.SigningAuthority{}
		if err := api.Get(t.Context(), client.ObjectKey{Name: "cluster"}, obj); err != nil || len(obj.Annotations) > 0 {
			t.Errorf("%s: annotations %v, error %v", operation, obj.Annotations, err)
		}
	}
	golden(t, filepath.Join("testdata", "rotation", "meaning.txt"), text)
}

func TestRotationMistakes(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"":                     "rotation (--help lists the flags): a command is missing: use one of status, wait, start",
		"begin":                `unknown subcommand "begin": use one of status, wait, start`,
		"status -o wide":       `use table, json or yaml`,
		"start a b":            `unexpected argument "b"`,
		"start --timeout 0":    "--timeout: 0s is not a time to wait",
		"status --split":       "rotation status (--help lists the flags): unknown flag: --split",
		"start a --wait=maybe": `invalid argument "maybe" for "--wait" flag`,
	} {
		if err := Execute(t.Context(), append([]string{"rotation"}, strings.Fields(args)...), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want %q", args, err, want)
		}
	}
	var out bytes.Buffer
	if err := Execute(t.Context(), []string{"rotation", "status", "-h"}, &out); err != nil ||
		!strings.Contains(out.String(), "rotation status [NAME] [flags]") || !strings.Contains(out.String(), "--timeout time") {
		t.Errorf("error %v: %s", err, out.String())
	}
}

// TestRotationFindsOne checks that the name may be left out only if there is one authority.
func TestRotationFindsOne(t *testing.T) {
	t.Parallel()
	for want, objs := range map[string][]client.Object{
		"there is no SigningAuthority":                                                            nil,
		"there are 2 SigningAuthorities: add the name of one: a, b":                               {authority("b", v1alpha1.SigningAuthorityStatus{}), authority("a", v1alpha1.SigningAuthorityStatus{})},
		"rotation start is refused: the phase is New; allowed now: none, wait for the next phase": {authority("a", v1alpha1.SigningAuthorityStatus{})},
	} {
		r := rotationOf(rotationOptions{verb: "start", operation: v1alpha1.RotateStart, wait: true}, statusClient(t, interceptor.Funcs{}, objs...), io.Discard)
		if err := r.run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestRotationRefusesWithoutYes checks that an operation that the phase does not allow is refused, and not explained.
func TestRotationRefusesWithoutYes(t *testing.T) {
	t.Parallel()
	for _, operation := range []v1alpha1.Operation{v1alpha1.RotateComplete, v1alpha1.OutstandingAccepted} {
		obj := authority("a", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Preparing, Generation: 2, Signing: signing(), Candidate: candidate()})
		var out bytes.Buffer
		r := rotationOf(rotationOptions{operation: operation}, statusClient(t, interceptor.Funcs{}, obj), &out)
		want := operation.Command() + " is refused: the phase is Preparing; allowed now: "
		if err := r.run(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) || out.Len() > 0 {
			t.Errorf("error %v, want %q; printed %q", err, want, out.String())
		}
	}
}

// TestRotationWait checks that wait follows the operation under way in each phase, and ends with it.
func TestRotationWait(t *testing.T) {
	t.Parallel()
	pending := authority("a", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1, Signing: signing()})
	pending.Annotations = map[string]string{v1alpha1.OperationAnnotation: "rotate-start"}
	outstanding := v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Prepared, Generation: 2, Signing: candidate(), Retiring: signing(),
		Outstanding: []v1alpha1.Outstanding{{Signer: "s", Count: 1, Until: *at(time.Hour)}}}
	movedOn := *outstanding.DeepCopy()
	movedOn.Outstanding = nil
	completing := *movedOn.DeepCopy()
	completing.Phase = v1alpha1.Completing
	rollingBack := *movedOn.DeepCopy()
	rollingBack.Intent = swapBack
	for name, test := range map[string]struct {
		obj       *v1alpha1.SigningAuthority
		out, fail string
	}{
		"nothing is under way": {authority("a", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1}),
			"a: nothing is under way: Completed, generation 1", ""},
		"a requested start":    {pending, "until the new CA is trusted and signs", "the manager has not picked up rotation start yet"},
		"the first CA":         {authority("a", v1alpha1.SigningAuthorityStatus{}), "until the new CA is trusted and signs", "not done within 20ms: New"},
		"a confirmation":       {authorityPreparing(), "until the manager has recorded rotation confirm", "the manager has not picked up rotation confirm yet"},
		"valid certificates":   {authority("a", outstanding), "the last certificate expires at 2026-03-01T13:00:00Z", "not done within 20ms: Prepared"},
		"no valid certificate": {authority("a", movedOn), "a: done: Prepared, generation 2", ""},
		"a completion": {authority("a", completing), "waiting at most 20ms (--timeout) until every API server refuses the old CA and its key is destroyed",
			"rotation wait a waits again"},
		"a rollback": {authority("a", rollingBack), "until the old CA signs again", "step SwapBack"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			r := rotationOf(rotationOptions{verb: "wait", timeout: 20 * time.Millisecond}, statusClient(t, interceptor.Funcs{}, test.obj), &out)
			err := r.run(t.Context())
			if !strings.Contains(out.String(), test.out) {
				t.Errorf("got %q, want %q", out.String(), test.out)
			}
			if (err == nil) != (test.fail == "") || err != nil && !strings.Contains(err.Error(), test.fail) {
				t.Errorf("error %v, want %q", err, test.fail)
			}
		})
	}
}

// Standard output gets the outcome alone, so that a script can keep it.
func TestRotationWaitWritesProgressAside(t *testing.T) {
	t.Parallel()
	obj := authority("a", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Prepared, Generation: 2, Signing: candidate(), Retiring: signing()})
	var out, aside bytes.Buffer
	r := rotationOf(rotationOptions{verb: "wait"}, statusClient(t, interceptor.Funcs{}, obj), &out)
	r.aside = &aside
	if err := r.run(t.Context()); err != nil || out.String() != "a: done: Prepared, generation 2\n" || !strings.HasPrefix(aside.String(), "a: waiting at most 1m0s") {
		t.Errorf("error %v, standard output %q, standard error %q", err, out.String(), aside.String())
	}
}

// TestRotationStatusWatch prints again only after a change.
func TestRotationStatusWatch(t *testing.T) {
	t.Parallel()
	obj := authority("a", v1alpha1.SigningAuthorityStatus{Phase: v1alpha1.Completed, Generation: 1})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	reads := 0
	changes := interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		err := api.List(ctx, list, opts...)
		if all, is := list.(*v1alpha1.SigningAuthorityList); is && err == nil {
			if reads++; reads > 3 {
				all.Items[0].Status.Phase = v1alpha1.Preparing
			}
			if reads > 6 {
				cancel()
			}
		}
		return err
	}}
	var out bytes.Buffer
	r := rotationOf(rotationOptions{verb: "status", watch: true}, statusClient(t, changes, obj), &out)
	if err := r.run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(out.String(), "SigningAuthority a: "); got != 2 || !strings.Contains(out.String(), "Preparing") {
		t.Errorf("printed %d times in %d reads, want 2:\n%s", got, reads, out.String())
	}
}

// TestRotationPage checks that docs/reference/rotation.md has the output of rotation status.
func TestRotationPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "docs", "reference", "rotation.md"))
	if err != nil {
		t.Fatal(err)
	}
	printed, err := os.ReadFile(filepath.Join("testdata", "rotation", "prepared.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), string(printed)) {
		t.Errorf("docs/reference/rotation.md does not have:\n%s", printed)
	}
}
