package plugin

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// TestRenewWaits checks that the wait for a certificate outlasts an API server that does not answer, and how each wait ends.
func TestRenewWaits(t *testing.T) {
	for name, test := range map[string]struct {
		answer func(*request) error // the first read fails
		want   string               // error
	}{
		"issued":  {func(obj *request) error { obj.Status.Certificate = []byte("made"); return nil }, ""},
		"nothing": {func(*request) error { return nil }, "context deadline exceeded"},
		"denied": {func(obj *request) error {
			obj.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Status: "True"}}
			return nil
		}, "the request is denied"},
		"deleted": {func(*request) error {
			return apierrors.NewNotFound(certificatesv1.Resource("certificatesigningrequests"), "r")
		}, "not found"},
		"may not read": {func(*request) error {
			return apierrors.NewForbidden(certificatesv1.Resource("certificatesigningrequests"), "r", nil)
		}, "forbidden"},
		"off": {func(*request) error { return errors.New("it is off") }, "it is off"},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, api := clusterOf(t, nil)
			reads := 0
			api.PrependReactor("*", "certificatesigningrequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
				obj := requestOf(t, "r")
				if action.GetVerb() != "get" {
					return true, obj, nil
				}
				if reads++; reads == 1 {
					return true, &request{}, errors.New("it is off")
				}
				return true, obj, test.answer(obj)
			})
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
			defer cancel()
			made, err := c.issued(ctx, &cobra.Command{}, nil)
			if test.want == "" && string(made) == "made" && err == nil {
				return
			}
			if err == nil || test.want == "" || !strings.HasPrefix(err.Error(), "request r: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s: %q, error %v, want %q", name, made, err, test.want)
			}
		})
	}
}
