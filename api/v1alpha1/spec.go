package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// DefaultOldLifetimeCap is Lifetimes.OldCap if neither the authority nor the manager's configuration has one. It makes
	// kubelets renew within a day.
	DefaultOldLifetimeCap = 24 * time.Hour
	// DefaultSettleFor is Verification.SettleFor if neither the authority nor the manager's configuration has one. It is
	// longer than an API server takes to notice a changed client CA file, which it checks every minute.
	DefaultSettleFor = 90 * time.Second
)

// SigningAuthority describes a signing CA through its generations. It holds no key: the keys are in the Secret that it
// names.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="whether a CA signs, and nothing stops its rotation"
// +kubebuilder:printcolumn:name="Key",type=string,JSONPath=`.status.signing.keyID`
// +kubebuilder:printcolumn:name="Ends",type=string,JSONPath=`.status.signing.notAfter`
// +kubebuilder:printcolumn:name="Old in use until",type=string,JSONPath=`.status.outstandingUntil`,description="when the last certificate of the retiring CA expires, at the latest"
// +kubebuilder:printcolumn:name="Rotated",type=date,JSONPath=`.status.lastCompletedTime`,description="when the last rotation was completed"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Waiting for",type=string,JSONPath=`.status.waitingFor[0]`,priority=1,description="what must happen before the next step; empty if there is no next step"
type SigningAuthority struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   SigningAuthoritySpec   `json:"spec"`
	Status SigningAuthorityStatus `json:"status,omitempty"`
}

// SigningAuthorityList is a list of SigningAuthorities.
//
// +kubebuilder:object:root=true
type SigningAuthorityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []SigningAuthority `json:"items"`
}

// SigningAuthoritySpec is the wanted state of a SigningAuthority.
//
// +kubebuilder:validation:XValidation:rule="!has(self.trust) || !has(self.trust.secrets) || !self.trust.secrets.exists(to, to.__namespace__ == self.secret.__namespace__ && to.name == self.secret.name)",message="spec.trust.secrets names spec.secret, which holds the keys: name another Secret"
type SigningAuthoritySpec struct {
	// Secret holds the CA, and during a rotation both CAs. The manager creates it if it does not exist.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the Secret of an authority cannot be changed: create another authority to move signers"
	Secret SecretReference `json:"secret"`
	// Signers are the signers that this CA serves. You may remove one. You may add kubernetes.io/kube-apiserver-client
	// or kubernetes.io/kube-apiserver-client-kubelet if the other one is listed.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=571
	// +kubebuilder:validation:XValidation:rule="self.all(signer, signer in oldSelf || signer in ['kubernetes.io/kube-apiserver-client', 'kubernetes.io/kube-apiserver-client-kubelet'] && oldSelf.exists(old, old in ['kubernetes.io/kube-apiserver-client', 'kubernetes.io/kube-apiserver-client-kubelet']))",message="the verifiers of an added signer are not known to trust this CA: create another authority for it"
	// +listType=set
	Signers []string `json:"signers"`
	// CA configures new CAs.
	CA NewCA `json:"ca,omitempty"`
	// Lifetimes limit how long a rotation takes.
	Lifetimes Lifetimes `json:"lifetimes,omitempty"`
	// Trust says where the trust bundle is published.
	Trust Trust `json:"trust,omitempty"`
	// Verification says how the manager probes the API servers.
	Verification Verification `json:"verification,omitempty"`
	// RotateAfter starts a rotation when the CA has signed for this long. Unset is never.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1h')",message="must be 1h or more"
	RotateAfter *metav1.Duration `json:"rotateAfter,omitempty"`
}

// SecretReference names a Secret.
type SecretReference struct {
	// Namespace is the namespace of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name is the name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=240
	Name string `json:"name"`
}

// NewCA configures new CAs.
type NewCA struct {
	// KeyAlgorithm is the algorithm of the key. Unset is ECDSAP256. Every verifier must know it. Verifiers know MLDSA44, MLDSA65 and
	// MLDSA87 from Go 1.27 or OpenSSL 3.5 on.
	// +kubebuilder:validation:Enum=ECDSAP256;ECDSAP384;RSA3072;RSA4096;ED25519;MLDSA44;MLDSA65;MLDSA87
	KeyAlgorithm string `json:"keyAlgorithm,omitempty"`
	// Duration is the lifetime of the CA. Unset is ten years.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('24h')",message="must be 24h or more"
	Duration *metav1.Duration `json:"duration,omitempty"`
}

// Lifetimes limit the lifetimes of certificates during a rotation.
type Lifetimes struct {
	// OldCap is the longest lifetime of certificates that the old CA issues while a new CA is not trusted yet. Unset is
	// the manager's rotation.oldLifetimeCap.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('5m')",message="must be 5m or more"
	OldCap *metav1.Duration `json:"oldCap,omitempty"`
	// Adopted is how long certificates that others have issued from an adopted CA count as valid. Unset is one year.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1h')",message="must be 1h or more"
	Adopted *metav1.Duration `json:"adopted,omitempty"`
}

// Trust says where the trust bundle is published. The bundle has the newest CA first, and no expired CA.
type Trust struct {
	// ConfigMaps are the ConfigMaps to write the bundle to. Those in which the manager or the API servers keep their own data are
	// refused.
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:XValidation:rule="self.namespace != 'kube-system' || self.name != 'extension-apiserver-authentication'",message="the API servers write this ConfigMap: name another one"
	// +kubebuilder:validation:items:XValidation:rule="!self.name.endsWith('-ledger') && !self.name.endsWith('-moved')",message="the ledgers of issued certificates have such names: name another ConfigMap"
	ConfigMaps []TrustEntry `json:"configMaps,omitempty"`
	// Secrets are the Secrets to write the bundle to, for API servers that mount it from there. A Secret with the keys of an
	// authority is refused.
	// +kubebuilder:validation:MaxItems=16
	Secrets []TrustEntry `json:"secrets,omitempty"`
	// ClusterTrustBundles makes the manager write a ClusterTrustBundle for each signer, where the API server serves
	// them. Unset is true.
	ClusterTrustBundles *bool `json:"clusterTrustBundles,omitempty"`
}

// TrustEntry is one entry of a ConfigMap or Secret.
type TrustEntry struct {
	// Namespace is the namespace of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name is the name of the object.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Key is the key in its data. Unset is ca.crt.
	Key string `json:"key,omitempty"`
}

// Verification says how the manager probes the API servers.
type Verification struct {
	// APIServers are the host:port of all API servers that verify client certificates. Unset is the endpoints of the
	// Service kubernetes.
	// +kubebuilder:validation:MaxItems=64
	APIServers []string `json:"apiServers,omitempty"`
	// ServerName is the name in their certificates. Unset is kubernetes.default.svc.
	ServerName string `json:"serverName,omitempty"`
	// SettleFor is how long all must give the same answer. Unset is the manager's rotation.settleFor.
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s')",message="must be 1s or more"
	SettleFor *metav1.Duration `json:"settleFor,omitempty"`
}
