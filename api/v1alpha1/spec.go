package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// SigningAuthority is a signing CA through its generations. It holds no key: those are in the Secret that it names.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="whether a CA signs"
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.status.signing.keyID`
// +kubebuilder:printcolumn:name="Ends",type=string,JSONPath=`.status.signing.notAfter`
// +kubebuilder:printcolumn:name="Outstanding",type=integer,JSONPath=`.status.outstandingOnRetiring`,description="certificates that may still live on the CA that retires, at most"
// +kubebuilder:printcolumn:name="Rotated",type=date,JSONPath=`.status.lastCompletedAt`,description="when the last rotation was completed"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Waiting for",type=string,JSONPath=`.status.waitingFor[0]`,priority=1,description="what must happen before the next step; empty while there is none to take"
type SigningAuthority struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SigningAuthoritySpec   `json:"spec"`
	Status SigningAuthorityStatus `json:"status,omitempty"`
}

// SigningAuthorityList is a list of them.
//
// +kubebuilder:object:root=true
type SigningAuthorityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []SigningAuthority `json:"items"`
}

// SigningAuthoritySpec is what the owner wants.
type SigningAuthoritySpec struct {
	// Secret holds the CA and, during a rotation, both. It is made if it does not exist.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the Secret of an authority stays the same: make another authority, with spec.from, to move signers"
	Secret SecretReference `json:"secret"`
	// Signers are the signer names that it serves. One may leave. One that API servers verify may come if they verify
	// another one here; for any other to come, make another authority with spec.from.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=571
	// +kubebuilder:validation:XValidation:rule="self.all(signer, signer in oldSelf || signer in ['kubernetes.io/kube-apiserver-client', 'kubernetes.io/kube-apiserver-client-kubelet'] && oldSelf.exists(old, old in ['kubernetes.io/kube-apiserver-client', 'kubernetes.io/kube-apiserver-client-kubelet']))",message="nobody has been asked whether they trust this CA for another signer, but for one that API servers verify beside another one: make another authority, with spec.from, to move signers"
	// +listType=set
	Signers []string `json:"signers"`
	// From names the authority whose CA this one begins with, so that signers can leave a CA that they shared: rotate it
	// then.
	// +optional
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="an authority begins only once"
	From string `json:"from,omitempty"`
	// CA is how new CAs are made.
	// +optional
	CA NewCA `json:"ca,omitempty"`
	// Lifetimes bound how long a rotation takes.
	// +optional
	Lifetimes Lifetimes `json:"lifetimes,omitempty"`
	// Trust is where those who verify find what to trust.
	// +optional
	Trust Trust `json:"trust,omitempty"`
	// Verification is how it is proven that the API servers do.
	// +optional
	Verification Verification `json:"verification,omitempty"`
	// RotateAfter starts a rotation by itself when the CA has signed for so long. Unset is never.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1h')",message="must be 1h or more"
	RotateAfter *metav1.Duration `json:"rotateAfter,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=240
	Name string `json:"name"`
}

// NewCA says how CAs are made.
type NewCA struct {
	// KeyAlgorithm of the key. Unset is ECDSAP256.
	// +optional
	// +kubebuilder:validation:Enum=ECDSAP256;ECDSAP384;RSA3072;RSA4096;ED25519
	KeyAlgorithm string `json:"keyAlgorithm,omitempty"`
	// Duration that it is valid for. Unset is ten years.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('24h')",message="must be 24h or more"
	Duration *metav1.Duration `json:"duration,omitempty"`
}

// Lifetimes bound those of certificates, and what is believed of them.
type Lifetimes struct {
	// OldCap is the longest that certificates live which the old CA issues while a new one waits to be trusted. Unset
	// is the manager's rotation.oldLifetimeCap.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5m')",message="must be 5m or more"
	OldCap *metav1.Duration `json:"oldCap,omitempty"`
	// Adopted is the longest lifetime of what others have issued from a CA that was not made here: so long after its
	// adoption it counts as outstanding. Unset is one year, kube-controller-manager's and kubeadm's.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1h')",message="must be 1h or more"
	Adopted *metav1.Duration `json:"adopted,omitempty"`
}

// Trust is where the bundle of CAs is published: the new first, what has expired left out.
type Trust struct {
	// ConfigMaps to write it to.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	ConfigMaps []ConfigMapKey `json:"configMaps,omitempty"`
	// ClusterTrustBundles has one made for each signer where the API server serves them. Unset is true.
	// +optional
	ClusterTrustBundles *bool `json:"clusterTrustBundles,omitempty"`
}

// ConfigMapKey is one entry of a ConfigMap. It is none of those that the manager and the API servers keep their own in.
//
// +kubebuilder:validation:XValidation:rule="self.namespace != 'kube-system' || self.name != 'extension-apiserver-authentication'",message="the API servers write that one, with what they trust"
// +kubebuilder:validation:XValidation:rule="!self.name.endsWith('-ledger') && !self.name.matches('-nodes-0[0-9a-f]$')",message="what is issued is noted in ConfigMaps of such names"
type ConfigMapKey struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key in its data. Unset is ca.crt.
	// +optional
	Key string `json:"key,omitempty"`
}

// Verification is how to ask the API servers, and what to expect of others.
type Verification struct {
	// APIServers are all that verify client certificates, as host:port. Unset is the endpoints of the Service kubernetes.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	APIServers []string `json:"apiServers,omitempty"`
	// ServerName is the name in their certificates. Unset is kubernetes.default.svc.
	// +optional
	ServerName string `json:"serverName,omitempty"`
	// SettleFor is how long all of them must give the same answer. Unset is the manager's rotation.settleFor.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be 1s or more"
	SettleFor *metav1.Duration `json:"settleFor,omitempty"`
}
