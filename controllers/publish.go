package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/yaml"

	"github.com/csr-controller-manager/csr-controller-manager/controllers/signer"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/config"
)

// Publish configures the ConfigMap in which the leader publishes its manager's configuration, for people and for the
// kubectl plugin.
type Publish struct {
	// ConfigMap is the name of the ConfigMap.
	ConfigMap types.NamespacedName
	// Configuration is published unchanged, so it must hold no credentials.
	Configuration *config.Configuration
	// Version is the version of the program.
	Version string
}

// PublishOf returns the Publish of a manager with the configuration c. It returns nil for a manager without leader
// election: the ConfigMap belongs to the holder of a Lease.
func PublishOf(c *config.Configuration, version string) (*Publish, error) {
	if !c.LeaderElection.Enabled {
		return nil, nil
	}
	namespace := LeaseNamespace(c)
	published, err := c.Published(namespace)
	if err != nil {
		return nil, err
	}
	name := types.NamespacedName{Namespace: namespace, Name: PublishedName(c)}
	return &Publish{ConfigMap: name, Configuration: published, Version: version}, nil
}

// PublishedName returns the name of the ConfigMap for a manager with the configuration c.
func PublishedName(c *config.Configuration) string {
	return c.LeaderElection.ResourceName + config.PublishedSuffix
}

// StatusKey is the key of a PublishedStatus in the ConfigMap.
const StatusKey = "manager.yaml"

// PublishedStatus is what a manager publishes beside its configuration. None of it is secret.
type PublishedStatus struct {
	// Version is the version of the manager.
	Version string `json:"version"`
	// User and Groups identify the manager at the API server.
	User   string   `json:"user,omitempty"`
	Groups []string `json:"groups,omitempty"`
	// Authorities are the CAs that the manager signs with.
	Authorities []PublishedAuthority `json:"authorities,omitempty"`
}

// PublishedAuthority is a CA without its key.
type PublishedAuthority struct {
	// Signers are the names of the signers that the CA signs for.
	Signers []string `json:"signers"`
	// Certificate is the CA's certificate in PEM. Chain holds the certificates that are appended to issued ones.
	Certificate string `json:"certificate"`
	Chain       string `json:"chain,omitempty"`
}

const (
	// publishTick is the pause between two comparisons of the published data with the current data. A comparison makes no
	// API call.
	publishTick = 10 * time.Second
	// publishInterval is the pause between two reads of the ConfigMap, because another program may have changed it.
	publishInterval = 5 * time.Minute
	// publishPause is the pause after a refused write, because missing rights are rarely granted soon.
	publishPause = time.Hour
)

// publisher is a Runnable of the leader that keeps the ConfigMap up to date.
type publisher struct {
	Publish
	reader client.Reader // not a cache, because the manager may not list ConfigMaps
	client client.Client
	signer *signer.Reconciler
	clock  clock.WithTicker
	log    logr.Logger

	user    authenticationv1.UserInfo
	written map[string]string // the last known content of the ConfigMap
	due     time.Time         // when to read the ConfigMap again
	problem string            // the problem that was last logged
}

// setupPublish adds the publisher to mgr, if o.Publish is set.
func (o Options) setupPublish(mgr manager.Manager) error {
	if o.Publish == nil {
		return nil
	}
	p := &publisher{
		Publish: *o.Publish, reader: mgr.GetAPIReader(), client: mgr.GetClient(), signer: o.Signer, clock: o.Clock,
		log: mgr.GetLogger().WithName("publish"),
	}
	if p.clock == nil {
		p.clock = clock.RealClock{}
	}
	return mgr.Add(p)
}

// NeedLeaderElection returns true, because the leader's configuration is in effect.
func (*publisher) NeedLeaderElection() bool { return true }

// Start publishes until ctx ends.
func (p *publisher) Start(ctx context.Context) error {
	ticker := p.clock.NewTicker(publishTick)
	defer ticker.Stop()
	for {
		p.sync(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// sync writes the ConfigMap if a read is due or the data has changed since a write that succeeded. It logs each problem
// once.
func (p *publisher) sync(ctx context.Context) {
	now := p.clock.Now()
	due := !now.Before(p.due)
	if due && p.user.Username == "" {
		p.user = p.whoAmI(ctx)
	}
	data, err := p.data(now)
	if err == nil {
		if changed := p.written != nil && !maps.Equal(data, p.written); !due && !changed {
			return
		}
		err = p.write(ctx, data)
	}
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		p.written, p.due, p.problem = data, now.Add(publishInterval), ""
		return
	}
	p.written, p.due = nil, now.Add(time.Minute)
	if apierrors.IsForbidden(err) {
		p.due = now.Add(publishPause)
	}
	if problem := err.Error(); problem != p.problem {
		p.problem = problem
		p.log.Info("The configuration is not published: the kubectl plugin can't read it. The controllers work on",
			"configMap", p.ConfigMap.String(), "why", problem)
	}
}

// whoAmI returns the manager's user according to the API server, or an empty value on an error.
func (p *publisher) whoAmI(ctx context.Context) authenticationv1.UserInfo {
	review := &authenticationv1.SelfSubjectReview{}
	if err := p.client.Create(ctx, review); err != nil {
		p.log.V(1).Info("The published configuration does not name the manager's user", "why", err.Error())
	}
	return review.Status.UserInfo
}

// data returns the data to publish at now.
func (p *publisher) data(now time.Time) (map[string]string, error) {
	configuration, err := yaml.Marshal(p.Configuration)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	status, err := yaml.Marshal(PublishedStatus{
		Version: p.Version, User: p.user.Username, Groups: p.user.Groups, Authorities: publishedAuthorities(p.signer, now),
	})
	if err != nil {
		return nil, fmt.Errorf("write status: %w", err)
	}
	return map[string]string{config.PublishedKey: string(configuration), StatusKey: string(status)}, nil
}

// publishedAuthorities returns the CAs of r at now, without duplicates. It omits signers without a CA.
func publishedAuthorities(r *signer.Reconciler, now time.Time) []PublishedAuthority {
	if r == nil {
		return nil
	}
	var all []PublishedAuthority
	for _, name := range slices.Sorted(maps.Keys(r.Signers)) {
		authority, err := r.Signers[name].KeyPair.Authority(now)
		if err != nil || authority == nil {
			continue
		}
		found := PublishedAuthority{
			Signers: []string{name}, Certificate: string(authority.CertificatePEM()), Chain: string(authority.AppendedPEM()),
		}
		same := func(other PublishedAuthority) bool {
			return other.Certificate == found.Certificate && other.Chain == found.Chain
		}
		if i := slices.IndexFunc(all, same); i >= 0 {
			all[i].Signers = append(all[i].Signers, name)
			continue
		}
		all = append(all, found)
	}
	return all
}

// write stores data, and the label that the plugin selects, in the ConfigMap. It creates the ConfigMap if it is
// missing.
func (p *publisher) write(ctx context.Context, data map[string]string) error {
	obj := &corev1.ConfigMap{}
	err := p.reader.Get(ctx, p.ConfigMap, obj)
	if apierrors.IsNotFound(err) {
		obj = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.ConfigMap.Namespace, Name: p.ConfigMap.Name}}
		metav1.SetMetaDataLabel(&obj.ObjectMeta, config.PublishedLabel, config.PublishedValue)
		obj.Data = data
		if err := p.client.Create(ctx, obj); err != nil {
			return fmt.Errorf("create ConfigMap %s: %w", p.ConfigMap, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", p.ConfigMap, err)
	}
	labelled := obj.Labels[config.PublishedLabel] == config.PublishedValue
	if labelled && maps.Equal(obj.Data, data) && len(obj.BinaryData) == 0 {
		return nil
	}
	metav1.SetMetaDataLabel(&obj.ObjectMeta, config.PublishedLabel, config.PublishedValue)
	obj.Data, obj.BinaryData = data, nil
	if err := p.client.Update(ctx, obj); err != nil {
		return fmt.Errorf("update ConfigMap %s: %w", p.ConfigMap, err)
	}
	return nil
}
