package signer

import (
	"slices"
	"testing"
)

func TestSharingTheCAOfServing(t *testing.T) {
	t.Parallel()
	const serving, kubelet, client = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kube-apiserver-client"
	one, other := &KeyPair{}, &KeyPair{name: "other"}
	for name, test := range map[string]struct {
		signers map[string]Signer
		want    []string
	}{
		"one for all":       {map[string]Signer{serving: {KeyPair: one}, kubelet: {KeyPair: one}, client: {KeyPair: one}}, []string{client, kubelet}},
		"its own":           {map[string]Signer{serving: {KeyPair: other}, kubelet: {KeyPair: one}, client: {KeyPair: one}}, nil},
		"with one of them":  {map[string]Signer{serving: {KeyPair: one}, kubelet: {KeyPair: one}, client: {KeyPair: other}}, []string{kubelet}},
		"no serving at all": {map[string]Signer{kubelet: {KeyPair: one}, client: {KeyPair: one}}, nil},
	} {
		if got := (&Reconciler{Signers: test.signers}).sharingServing(); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}
