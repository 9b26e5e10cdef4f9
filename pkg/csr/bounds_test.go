package csr_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	toolscache "k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// numbered returns n texts, each of size bytes or more.
func numbered(n, size int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%0*d", size, i))
	}
	return all
}

// labelled returns a map of n entries with values of size bytes or more.
func labelled(n, size int) map[string]string {
	all := map[string]string{}
	for _, text := range numbered(n, size) {
		all["example.com/"+text] = text
	}
	return all
}

func usagesOf(texts []string) (all []certificatesv1.KeyUsage) {
	for _, text := range texts {
		all = append(all, certificatesv1.KeyUsage(text))
	}
	return all
}

// TestParseBoundsTheObject checks the limits of what a request holds beside spec.request, from both sides.
func TestParseBoundsTheObject(t *testing.T) {
	entries := func(list string) string {
		return "RequestTooLarge: " + list + " has more than 1000 entries (requestLimits.maxEntries)"
	}
	const (
		longName = "RequestTooLarge: metadata.name has more than 253 bytes"
		bytes    = "RequestTooLarge: the metadata, usages and requester have more than 65536 bytes (requestLimits.maxObjectBytes)"
	)
	for name, test := range map[string]struct {
		edit edit
		want string // empty means that the request is read
	}{
		"a name of 253 bytes":        {func(obj *request) { obj.Name = strings.Repeat("a", 253) }, ""},
		"a name of 254 bytes":        {func(obj *request) { obj.Name = strings.Repeat("a", 254) }, longName},
		"400,000 control characters": {func(obj *request) { obj.Name = strings.Repeat("\x01", 400_000) }, longName},
		"1000 labels":                {func(obj *request) { obj.Labels = labelled(1000, 1) }, ""},
		"1001 labels":                {func(obj *request) { obj.Labels = labelled(1001, 1) }, entries("metadata.labels")},
		"10,000 labels":              {func(obj *request) { obj.Labels = labelled(10_000, 1) }, entries("metadata.labels")},
		"1001 annotations":           {func(obj *request) { obj.Annotations = labelled(1001, 1) }, entries("metadata.annotations")},
		"1001 finalizers":            {func(obj *request) { obj.Finalizers = numbered(1001, 1) }, entries("metadata.finalizers")},
		"1001 owners":                {func(obj *request) { obj.OwnerReferences = make([]metav1.OwnerReference, 1001) }, entries("metadata.ownerReferences")},
		"1000 groups":                {func(obj *request) { obj.Spec.Groups = numbered(1000, 1) }, ""},
		"1001 groups":                {func(obj *request) { obj.Spec.Groups = numbered(1001, 1) }, entries("spec.groups")},
		"1001 usages":                {func(obj *request) { obj.Spec.Usages = usagesOf(numbered(1001, 1)) }, entries("spec.usages")},
		"1001 keys in the requester's extra": {func(obj *request) {
			obj.Spec.Extra = map[string]certificatesv1.ExtraValue{}
			for _, key := range numbered(1001, 1) {
				obj.Spec.Extra[key] = nil
			}
		}, entries("spec.extra")},
		"1001 values of one key": {func(obj *request) {
			obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"key": numbered(1001, 1)}
		}, entries("spec.extra")},
		"annotations up to the limit": {filled(65_536), ""},
		"annotations above the limit": {filled(65_537), bytes},
		"a long key of a label":       {func(obj *request) { obj.Labels = map[string]string{strings.Repeat("x", 65_537): ""} }, bytes},
		"200 finalizers of 400 bytes": {func(obj *request) { obj.Finalizers = numbered(200, 400) }, bytes},
		"an owner with a long name":   {func(obj *request) { obj.OwnerReferences = owners(65_537) }, bytes},
		"a long user name":            {func(obj *request) { obj.Spec.Username = strings.Repeat("u", 65537) }, bytes},
		"a long UID of the user":      {func(obj *request) { obj.Spec.UID = strings.Repeat("u", 65537) }, bytes},
		"one long group":              {func(obj *request) { obj.Spec.Groups = numbered(1, 65537) }, bytes},
		"one long value of the extra": {func(obj *request) { obj.Spec.Extra = map[string]certificatesv1.ExtraValue{"key": numbered(1, 65537)} }, bytes},
		"one long usage":              {func(obj *request) { obj.Spec.Usages = usagesOf(numbered(1, 65537)) }, bytes},
		"a long generateName":         {func(obj *request) { obj.GenerateName = strings.Repeat("g", 65537) }, bytes},
		// kubectl apply writes a copy of spec.request, as base64, into an annotation (cert-manager, pull request 5639).
		"applied by kubectl, 40 kB": {func(obj *request) {
			obj.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 40_000*4/3)}
		}, ""},
		"applied by kubectl, 60 kB": {func(obj *request) {
			obj.Annotations = map[string]string{"kubectl.kubernetes.io/last-applied-configuration": strings.Repeat("x", 60_000*4/3)}
		}, bytes},
		"many labels and a broken payload": {func(obj *request) { obj.Labels, obj.Spec.Request = labelled(1001, 1), nil }, entries("metadata.labels")},
	} {
		expect.Equal(t, name, refusal(csr.Limits{}, test.edit), test.want)
	}
	expect.Equal(t, "own limits", refusal(csr.Limits{Entries: 2, ObjectBytes: 1000}, func(obj *request) { obj.Labels = labelled(3, 1) }),
		"RequestTooLarge: metadata.labels has more than 2 entries (requestLimits.maxEntries)")
}

// owners returns two owners, one with a name of size bytes.
func owners(size int) []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "a", UID: "u"}, {Name: strings.Repeat("x", size)}}
}

// filled adds an annotation, so that all but spec.request has size bytes.
func filled(size int) edit {
	return func(obj *request) {
		text := ""
		for range 3 { // the lengths in protobuf grow with the text
			obj.Annotations = map[string]string{"a": text}
			rest := obj.DeepCopy()
			rest.Spec.Request = nil
			text = strings.Repeat("x", len(text)+size-rest.Size())
		}
	}
}

// TestWhateverAStrangerWrites keeps requests as an informer does. What a request costs does not depend on what its requester wrote.
func TestWhateverAStrangerWrites(t *testing.T) {
	const requests, most = 300, 3000
	ours := func(name string) bool { return name == "kubernetes.io/kube-apiserver-client-kubelet" }
	foreign := func(obj *request) { obj.Spec.SignerName = "example.com/foreign" }
	for name, edits := range map[string][]edit{
		"10,000 labels, for a signer of others":    {foreign, func(obj *request) { obj.Labels = labelled(10_000, 10) }},
		"annotations, for a signer of others":      {foreign, func(obj *request) { obj.Annotations = map[string]string{"a": strings.Repeat("x", 200_000)} }},
		"groups and extra, for a signer of others": {foreign, func(obj *request) { obj.Spec.Groups = numbered(5000, 10); obj.Spec.Extra["a"] = numbered(5000, 10) }},
		"usages and owners, denied": {conditions("Denied"), func(obj *request) {
			obj.Spec.Usages = usagesOf(numbered(5000, 10))
			obj.OwnerReferences = owners(90_000)
		}},
		"10,000 labels, pending":                     {func(obj *request) { obj.Labels = labelled(10_000, 10) }},
		"finalizers, approved":                       {conditions("Approved"), func(obj *request) { obj.Finalizers = numbered(2000, 50) }},
		"a payload of 200 kB, pending":               {func(obj *request) { obj.Spec.Request = make([]byte, 200_000) }},
		"a name of 400,000 control characters":       {foreign, longNamed("\x01", 400_000)},
		"a name of 300,000 letters, pending":         {longNamed("a", 300_000)},
		"a message of an approver, signed by others": {foreign, func(obj *request) { csr.AddCondition(obj, "Approved", "a", strings.Repeat("m", 100_000), now) }},
	} {
		obj := object(edits...)
		before := heap()
		store := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc)
		for i := range requests {
			obj.UID, obj.ResourceVersion = types.UID(fmt.Sprintf("uid-%05d", i)), fmt.Sprint(i)
			if len(obj.Name) < 300 {
				obj.Name = fmt.Sprintf("csr-%05d", i)
			}
			decoded := &request{}
			expect.NoError(t, decoded.Unmarshal(must(obj.Marshal())))
			expect.NoError(t, store.Add(must(csr.Trim{Ours: ours}.Transform(decoded))))
		}
		size := (heap() - before) / requests
		runtime.KeepAlive(obj)
		expect.True(t, size < most && len(store.List()) == requests, "%s: %d requests, %d bytes for each, want at most %d", name, len(store.List()), size, most)
	}
}

// TestInformerForgets runs an informer with requests that the cache holds by another name. It forgets them when they are deleted, and
// when a watch has ended before.
func TestInformerForgets(t *testing.T) {
	server := fcache.NewFakeControllerSource()
	informer := toolscache.NewSharedIndexInformer(server, &request{}, 0, toolscache.Indexers{})
	expect.NoError(t, informer.SetTransform(csr.Trim{}.Transform))
	go informer.RunWithContext(t.Context())
	holds := func(want ...string) {
		t.Helper()
		var got []string
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, 20*time.Second, true, func(context.Context) (bool, error) {
			got = slices.Sorted(slices.Values(informer.GetStore().ListKeys()))
			return slices.Equal(got, want), nil
		})
		expect.True(t, err == nil, "the cache holds %.300q, want %.300q", got, want)
	}
	first, second := object(longNamed("a", 300_000)), object(longNamed("b", 300_000), func(obj *request) { obj.UID = "second" })
	server.Add(first.DeepCopy())
	server.Add(second.DeepCopy())
	firstKey, secondKey := strings.Repeat("a", 253)+"...%uid-1", strings.Repeat("b", 253)+"...%second"
	holds(firstKey, secondKey)
	first.Labels = map[string]string{"a": "b"}
	server.Modify(first.DeepCopy())
	holds(firstKey, secondKey)
	server.Delete(second.DeepCopy())
	holds(firstKey)
	server.AddDropWatch(second.DeepCopy())
	server.DeleteDropWatch(first.DeepCopy())
	server.ResetWatch()
	holds(secondKey)
}

// longNamed names a request with a long text.
func longNamed(text string, n int) edit {
	return func(obj *request) { obj.Name = strings.Repeat(text, n) }
}
