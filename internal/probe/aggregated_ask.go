package probe

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// askResource shows c to an aggregated API server. It has no SelfSubjectReview, but whoever may not get a resource is told
// who he is taken for; the credential is not.
func (c *Certificate) askResource(ctx context.Context, target Target) Answer {
	if target.Cluster.Insecure {
		return unverified(target.Cluster)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	shown := anonymous(target.Cluster)
	shown.CertData, shown.KeyData = c.certPEM, c.keyPEM
	err := get(ctx, shown, target.resource)
	if err == nil || apierrors.IsNotFound(err) {
		// It may let in everybody: then that says nothing about the certificate.
		if bare := get(ctx, anonymous(target.Cluster), target.resource); apierrors.IsUnauthorized(bare) || apierrors.IsForbidden(bare) {
			return Answer{Recognised, fmt.Sprintf("%s lets in who shows a client certificate of this CA, and nobody who shows none", target.Name)}
		}
		return Answer{Unknown, fmt.Sprintf("%s lets in everybody, so it can't be told whose certificates it accepts", target.Name)}
	}
	return c.judgeResource(target.Name, err)
}

// judgeResource says what err means, which came of asking for a resource that nobody may have.
func (c *Certificate) judgeResource(name string, err error) Answer {
	quoted := func(user string) bool { return strings.Contains(err.Error(), fmt.Sprintf("User %q", user)) }
	switch {
	case refused(err):
		return Answer{Refused, fmt.Sprintf("%s answers 401 to a client certificate of this CA", name)}
	case apierrors.IsForbidden(err) && quoted(c.Subject):
		return Answer{Recognised, fmt.Sprintf("%s knows the subject of a client certificate of this CA", name)}
	case apierrors.IsForbidden(err) && quoted(anonymousUser):
		return Answer{Unknown, fmt.Sprintf("%s takes the holder of a client certificate of this CA for anonymous: it trusts no client CA at all, or has not seen the certificate", name)}
	default:
		return Answer{Unknown, fmt.Sprintf("%s gave no answer that counts: %v", name, err)}
	}
}

// get asks for path as the user of config, on a connection of its own.
func get(ctx context.Context, config *rest.Config, path string) error {
	used, _, err := connection(config)
	if err != nil {
		return err
	}
	defer used.CloseIdleConnections()
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	asker, err := rest.UnversionedRESTClientForConfigAndClient(config, used)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return asker.Get().AbsPath(path).Do(ctx).Error()
}
