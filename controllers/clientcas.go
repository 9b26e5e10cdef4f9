package controllers

import (
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/check"
)

// clientSigners issue certificates that the API server is to accept.
var clientSigners = []string{certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName}

// clientPairs are the signers whose certificates the API server is to accept, in order.
func clientPairs(r *signer.Reconciler) []string {
	var names []string
	for _, name := range clientSigners {
		if r != nil && r.Signers[name].KeyPair != nil {
			names = append(names, name)
		}
	}
	return names
}

// ClientCAs are the CAs at now that the API server must trust, each once.
func ClientCAs(r *signer.Reconciler, now time.Time) []check.CA {
	var all []check.CA
	var pairs []*signer.KeyPair
	for _, name := range clientPairs(r) {
		pair := r.Signers[name].KeyPair
		if i := slices.Index(pairs, pair); i >= 0 {
			all[i].Signers = append(all[i].Signers, name)
			continue
		}
		authority, err := pair.Authority(now)
		pairs, all = append(pairs, pair), append(all, check.CA{Signers: []string{name}, Authority: authority, Err: err})
	}
	return all
}

// keyIDs tells one set of CAs from another.
func keyIDs(all []check.CA) string {
	var ids []string
	for _, one := range all {
		if one.Authority != nil {
			ids = append(ids, string(one.Authority.CertificatePEM()))
		}
	}
	return strings.Join(ids, " ")
}
