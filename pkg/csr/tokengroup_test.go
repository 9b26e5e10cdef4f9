package csr_test

import (
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

func TestTokenGroup(t *testing.T) {
	t.Parallel()
	for node, want := range map[string]string{ // printf '%s' NODE | sha256sum | cut -c1-16
		"worker-1":             "system:bootstrappers:node:13029f9e83d15b3d",
		"worker-1.example.com": "system:bootstrappers:node:357dd4545db034f7",
		"":                     "system:bootstrappers:node:e3b0c44298fc1c14",
	} {
		if got := csr.TokenGroup(node); got != want {
			t.Errorf("TokenGroup(%q) = %s, want %s", node, got, want)
		}
	}
}
