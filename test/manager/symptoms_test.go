//go:build nightly

package manager

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// TestNodeDoesNotJoin follows docs/symptoms.md for a bootstrap token without rights: its kubelet may not create a request, and
// then its request waits.
func TestNodeDoesNotJoin(t *testing.T) {
	kit.Parallel(t)
	w := newTakeover(t)
	w.startOurs(t, w.caFlags(t)...)
	page := howTo(t, "../symptoms.md")
	find := regexp.MustCompile(`(?m)^kubectl describe csr \| grep.*$`).FindString(page)
	describe := regexp.MustCompile(`(?m)^kubectl describe csr NAME.*$`).FindString(page)
	repair := map[string]string{}
	for _, match := range regexp.MustCompile("`(kubectl create clusterrolebinding (csr-[a-z]+) [^`]+)`").FindAllStringSubmatch(page, -1) {
		repair[match[2]] = match[1]
	}
	if find == "" || describe == "" || len(repair) != 2 {
		t.Fatalf("commands of the page: %q, %q, %q", find, describe, repair)
	}

	kubelet := rest.CopyConfig(w.Config)
	kubelet.Impersonate = rest.ImpersonationConfig{UserName: "system:bootstrap:abcdef", Groups: []string{"system:bootstrappers", "system:authenticated"}}
	obj := kit.NodeRequest(t, "worker-1")
	err := kit.ClientOf(t, kubelet).Create(t.Context(), obj)
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `is forbidden: User "system:bootstrap:abcdef" cannot create resource`) {
		t.Fatalf("%v: not the text of the page", err)
	}
	w.shell(t, repair["csr-create"])
	kit.Eventually(t, "the token may create requests", func(ctx context.Context) error { return kit.ClientOf(t, kubelet).Create(ctx, obj) })

	found := regexp.MustCompile(`(?m)^Name: +(\S+)$`).FindStringSubmatch(w.shell(t, find))
	if found == nil || found[1] != obj.Name {
		t.Fatalf("%s finds %q, want %s", find, found, obj.Name)
	}
	kit.Eventually(t, "the reason", func(context.Context) error {
		if out := w.shell(t, strings.Replace(describe, "NAME", found[1], 1)); !strings.Contains(out, "NotAuthorized") {
			return errors.New(out)
		}
		return nil
	})
	w.shell(t, repair["csr-join"])
	w.reaches(t, obj, csr.Issued)
}
