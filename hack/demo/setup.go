package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	signingSecret = "kube-system/csr-signer"

	tokenID     = "07401b"
	tokenSecret = "f395accd246ae52d"
	tokenUser   = "system:bootstrap:" + tokenID

	bootstrappers = "system:bootstrappers"

	mayRequest = "system:node-bootstrapper"
	nodeClient = "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
	selfClient = "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"
)

// setUp does the administrator's steps of the TLS bootstrapping document, and starts the manager.
func (d *demo) setUp(ctx context.Context, binary string, ended context.CancelCauseFunc) error {
	err := until(ctx, "namespace kube-system exists", func(ctx context.Context) (bool, error) {
		err := d.admin.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, &corev1.Namespace{})
		return err == nil, client.IgnoreNotFound(err)
	})
	if err != nil {
		return err
	}
	if err := d.createSecrets(ctx); err != nil {
		return err
	}
	if err := d.createBindings(ctx); err != nil {
		return err
	}
	if err := d.startManager(ctx, binary, ended); err != nil {
		return err
	}
	d.say("%s --signing-secret %s runs as process %d and is ready", binary, signingSecret, d.manager.Pid())
	return d.waitForToken(ctx)
}

func (d *demo) createSecrets(ctx context.Context) error {
	signer := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "csr-signer"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: d.cluster.CA.CertPEM, corev1.TLSPrivateKeyKey: d.cluster.CA.KeyPEM},
	}
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + tokenID},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": tokenID, "token-secret": tokenSecret, "usage-bootstrap-authentication": "true",
		},
	}
	for _, obj := range []*corev1.Secret{signer, token} {
		if err := d.admin.Create(ctx, obj); err != nil {
			return fmt.Errorf("create Secret %s: %w", obj.Name, err)
		}
		d.say("Secret %s/%s created, type %s", obj.Namespace, obj.Name, obj.Type)
	}
	return nil
}

func (d *demo) createBindings(ctx context.Context) error {
	group := func(name string) rbacv1.Subject {
		return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: name}
	}
	for _, binding := range []struct {
		name, role string
		subject    rbacv1.Subject
	}{
		{"create-csrs-for-bootstrapping", mayRequest, group(bootstrappers)},
		{"auto-approve-csrs-for-group", nodeClient, group(bootstrappers)},
		{"auto-approve-renewals-for-nodes", selfClient, group("system:nodes")},
	} {
		if err := d.bind(ctx, binding.name, binding.role, binding.subject); err != nil {
			return err
		}
		d.say("%s has ClusterRole %s", binding.subject.Name, binding.role)
	}
	return nil
}

func (d *demo) bind(ctx context.Context, name, role string, to rbacv1.Subject) error {
	obj := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{to},
	}
	if err := d.admin.Create(ctx, obj); err != nil {
		return fmt.Errorf("bind %s to %s: %w", role, to.Name, err)
	}
	return nil
}

// waitForToken waits until the API server knows the token and the rights of its holder. It reads both from caches.
func (d *demo) waitForToken(ctx context.Context) error {
	d.bootstrap = rest.AnonymousClientConfig(d.cluster.Config)
	d.bootstrap.BearerToken = tokenID + "." + tokenSecret
	return d.waitForRight(ctx, d.bootstrap, tokenUser)
}

// waitForRight waits until the API server identifies cfg as user, and permits it to create requests.
func (d *demo) waitForRight(ctx context.Context, cfg *rest.Config, user string) error {
	return until(ctx, user+" may create requests", func(ctx context.Context) (bool, error) {
		ok, err := mayCreateRequests(ctx, cfg, user)
		if apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) {
			return false, nil
		}
		return ok, err
	})
}
