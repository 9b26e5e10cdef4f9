package rotation

import (
	"slices"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/api/v1alpha1"
)

// waitsFor checks that the authority in phase waits for all parts.
func (r *rotating) waitsFor(t *testing.T, name string, phase v1alpha1.Phase, parts ...string) *v1alpha1.SigningAuthority {
	t.Helper()
	return r.reaches(t, name, phase, func(obj *v1alpha1.SigningAuthority) bool {
		waiting := strings.Join(obj.Status.WaitingFor, "\n")
		return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(waiting, part) })
	})
}
