package csr_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestBuiltinSigners(t *testing.T) {
	t.Parallel()
	want := []string{"kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"}
	if diff := cmp.Diff(want, csr.BuiltinSigners()); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for _, name := range want {
		signer, found := csr.BuiltinSigner(name)
		if !found || signer.Name != name || signer.Shape == nil || signer.Contents.KeyUsage == 0 || signer.Contents.ExtKeyUsage == nil {
			t.Errorf("%s: %t, %+v", name, found, signer)
		}
	}
	if signer, found := csr.BuiltinSigner("example.com/custom"); found {
		t.Errorf("a custom signer is %+v", signer)
	}
}

func TestVerifiedByAPIServers(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]bool{
		"kubernetes.io/kube-apiserver-client":         true,
		"kubernetes.io/kube-apiserver-client-kubelet": true,
		"kubernetes.io/kubelet-serving":               false,
		"example.com/custom":                          false,
	} {
		if got := csr.VerifiedByAPIServers(name); got != want {
			t.Errorf("%s: %t, want %t", name, got, want)
		}
	}
}
