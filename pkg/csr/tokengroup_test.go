package csr_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
)

// permitted is the form of the extra groups of a bootstrap token (k8s.io/cluster-bootstrap, BootstrapGroupPattern).
var permitted = regexp.MustCompile(`\Asystem:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]\z`)

// TestTokenGroup checks that the group holds the whole hash of the node's name, and that a bootstrap token may have it.
func TestTokenGroup(t *testing.T) {
	t.Parallel()
	for node, hash := range map[string]string{ // printf '%s' NODE | sha256sum
		"worker-1":               "13029f9e83d15b3d437c2a7568fc1ca7990ecf3ff79bef6da08f13ff5ae12af8",
		"worker-1.example.com":   "357dd4545db034f7341c7764d46e035ea11ed9b2d070b0a887bceeb4b76a2b64",
		"":                       "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
		strings.Repeat("a", 253): "32859a3ab65ac52932e16fad6060653636d6746f52b4cb205f4f121569c499f5",
	} {
		got := csr.TokenGroup(node)
		if want := "system:bootstrappers:node:" + hash; got != want {
			t.Errorf("TokenGroup(%q) = %s, want %s", node, got, want)
		}
		if !permitted.MatchString(got) {
			t.Errorf("a bootstrap token can't have the group %s of %q", got, node)
		}
	}
}
