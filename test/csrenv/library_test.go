package csrenv_test

import (
	"context"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/csr-controller-manager/csr-controller-manager/controllers"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/approver"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/cleaner"
	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/csrenv"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/keypair"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// runManager runs options on a manager of the test, with a minimal scheme.
func runManager(t *testing.T, options controllers.Options) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{certificatesv1.AddToScheme, corev1.AddToScheme, authorizationv1.AddToScheme} {
		_ = must(scheme, add(scheme))
	}
	mgr := must(manager.New(admin(t), manager.Options{
		Scheme:     scheme,
		Cache:      cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:    metricsserver.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: new(true)},
	}))
	_ = must(mgr, options.SetupWithManager(mgr))
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-stopped; err != nil {
			t.Error(err)
		}
	})
}

func TestTwoLoopsOnManagersOfTheCaller(t *testing.T) {
	kit.Alone(t)
	const name = "example.com/mine"
	profile, mine := must(ca.NewProfile(ca.ProfileConfig{})), must(csrenv.NewCA())
	runManager(t, controllers.Options{
		Approver: &approver.Reconciler{Judges: map[string]approver.Judge{certificatesv1.KubeAPIServerClientKubeletSignerName: approver.KubeletClient{}}},
		Cleaner: &cleaner.Reconciler{
			Retention: csr.RetentionPolicy{Default: csr.Retention{Approved: -1, Denied: time.Nanosecond, Failed: -1, Pending: -1}},
			Every:     10 * time.Millisecond,
		},
	})
	runManager(t, controllers.Options{
		Signer: &signer.Reconciler{Signers: map[string]signer.Signer{name: {
			Profile: profile, Usages: []certificatesv1.KeyUsage{"digital signature", "client auth"},
			KeyPair: keypair.New(keypair.Static{Cert: mine.CertPEM, Key: mine.KeyPEM}),
		}}},
	})
	node := create(t, "managed")
	kit.Reaches(t, node, csr.Approved) // pending, because the second manager serves another signer
	custom := create(t, "custom", func(obj *kit.Request) { obj.Spec.SignerName = name })
	kit.Approve(t, custom)
	verifies(t, kit.Leaf(t, kit.Reaches(t, custom, csr.Issued)), mine)
	markerIsCleaned(t)
	still(t, node, csr.Approved)
}
