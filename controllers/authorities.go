package controllers

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// GuardedSigner is a signer whose CA signs only what its SigningAuthority permits.
type GuardedSigner struct {
	Signer string
	Secret types.NamespacedName
}

// GuardedSigners returns the signers of c that need a SigningAuthority, by name: none unless rotation is enabled.
func GuardedSigners(c *config.Configuration) []GuardedSigner {
	if !c.Rotation.Enabled || !c.Enabled(config.SignerController) {
		return nil
	}
	sources := map[string]config.CA{}
	if !c.Signing.Empty() {
		for _, name := range signer.KubernetesSignerNames() {
			sources[name] = c.Signing.CA
		}
	}
	for _, one := range c.Signing.Signers {
		if !one.Empty() {
			sources[one.Name] = one.CA
		}
	}
	var guarded []GuardedSigner
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if namespace, secret := sources[name].SecretName(); secret != "" {
			guarded = append(guarded, GuardedSigner{Signer: name, Secret: types.NamespacedName{Namespace: namespace, Name: secret}})
		}
	}
	return guarded
}
