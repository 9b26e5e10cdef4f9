package revocation

import (
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// delegatedCache is how long an aggregated API server remembers what a review said (k8s.io/apiserver, the defaults of
// NewDelegatingAuthenticationOptions and NewDelegatingAuthorizationOptions). A token has both behind it.
const delegatedCache = 10 * time.Second

// aggregatedPath is what the aggregated API server of aggregated serves.
const aggregatedPath = "/apis/example.com/v1"

// aggregated starts an API server that asks h's API server who a client is, and what the client may do, as every aggregated API server
// does, and registers it. It returns its address.
func aggregated(t *testing.T, h *host) (address string) {
	t.Helper()
	main := kubernetes.NewForConfigOrDie(h.config)
	trusted := kit.Get(t, metav1.NamespaceSystem, "extension-apiserver-authentication", &corev1.ConfigMap{}).Data
	content := func(key string) dynamiccertificates.CAContentProvider {
		return kit.Must(dynamiccertificates.NewStaticCAContent(key, []byte(trusted[key])))(t)
	}
	headers := &authenticatorfactory.RequestHeaderConfig{
		CAContentProvider:   content("requestheader-client-ca-file"),
		AllowedClientNames:  headerrequest.StaticStringSlice{"front-proxy-client"},
		UsernameHeaders:     headerrequest.StaticStringSlice{"X-Remote-User"},
		UIDHeaders:          headerrequest.StaticStringSlice{"X-Remote-Uid"},
		GroupHeaders:        headerrequest.StaticStringSlice{"X-Remote-Group"},
		ExtraHeaderPrefixes: headerrequest.StaticStringSlice{"X-Remote-Extra-"},
	}
	backoff := &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}
	authn, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:               &apiserver.AnonymousAuthConfig{Enabled: true},
		TokenAccessReviewClient: main.AuthenticationV1(), TokenAccessReviewTimeout: 10 * time.Second,
		WebhookRetryBackoff: backoff, CacheTTL: delegatedCache,
		ClientCertificateCAContentProvider: content("client-ca-file"), RequestHeaderConfig: headers,
	}.New()
	kit.NoError(t, err)
	authz := kit.Must(authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: main.AuthorizationV1(),
		AllowCacheTTL:             delegatedCache, DenyCacheTTL: delegatedCache, WebhookRetryBackoff: backoff,
	}.New())(t)
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	handler = filters.WithAuthorization(handler, authz, clientgoscheme.Codecs)
	handler = filters.WithAuthentication(handler, authn, filters.Unauthorized(clientgoscheme.Codecs), nil, headers)
	prefixes := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	handler = filters.WithRequestInfo(handler, prefixes)
	server := httptest.NewUnstartedServer(handler)
	server.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	server.StartTLS()
	t.Cleanup(server.Close)
	at := kit.Must(url.Parse(server.URL))(t)
	kit.Create(t, kit.Admin(t), kit.Object(t, `
apiVersion: v1
kind: Service
metadata: {namespace: default, name: aggregated}
spec: {type: ExternalName, externalName: localhost}`))
	kit.Create(t, kit.Admin(t), kit.Object(t, `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.example.com}
spec:
  {group: example.com, version: v1, groupPriorityMinimum: 1000, versionPriority: 10, insecureSkipTLSVerify: true,
  service: {namespace: default, name: aggregated, port: `+at.Port()+`}}`))
	return at.Host
}

// directly returns cfg's user at the aggregated API server.
func directly(cfg *rest.Config, address string) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Host, cfg.CAData, cfg.Insecure = "https://"+address, nil, true
	return cfg
}

// list reads aggregatedPath.
func list(ctx context.Context, cfg *rest.Config) error {
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	return c.RESTClient().Get().AbsPath(aggregatedPath).Do(ctx).Error()
}

// TestAggregatedAPIServer checks that an aggregated API server refuses the blocked within its cache, however they reach it, and
// serves them again.
func TestAggregatedAPIServer(t *testing.T) {
	kit.Parallel(t)
	hosts(t, func(t *testing.T, all []*host) {
		blocked := kit.BlockList(t, "")
		writer := install(t)
		for _, h := range all {
			h.write(t, writer)
		}
		address := aggregated(t, all[1])
		kit.NewNode(t, "w1")
		kit.NewNode(t, "w2")
		alice, _ := user(t, "alice")
		carol, sum := user(t, "carol")
		bob, _ := user(t, "bob")
		refusedUsers := map[string]*rest.Config{
			"client certificate": alice, "certificate by its SHA-256": carol, "token bound to a node": bound(t, "app", "w1"),
		}
		served := map[string]*rest.Config{"bob": bob, "token on another node": bound(t, "app", "w2")}
		for name, cfg := range refusedUsers {
			served[name] = cfg
		}
		works := func() {
			for name, cfg := range served {
				kit.Within(t, 2*delegatedCache+5*time.Second, name+" works", func(ctx context.Context) error { return list(ctx, directly(cfg, address)) })
				for _, h := range all {
					kit.Eventually(t, name+" works through the API server", func(ctx context.Context) error { return list(ctx, h.at(cfg)) })
				}
			}
		}
		works()
		began := time.Now()
		blocked.Data = map[string]string{"nodes": "w1", "users": "alice", "certificates": sum}
		kit.Update(t, blocked)
		for name, cfg := range refusedUsers {
			for _, h := range all {
				kit.Within(t, 10*time.Second, name+" is refused by the API server", func(ctx context.Context) error {
					err := list(ctx, h.at(cfg))
					return kit.OrError(refused(err), "%w", err)
				})
			}
			kit.Within(t, 10*time.Second+delegatedCache, name+" is refused", func(ctx context.Context) error {
				err := list(ctx, directly(cfg, address))
				return kit.OrError(refused(err), "%w", err)
			})
			t.Logf("%s: refused by all after %s", name, time.Since(began).Round(time.Millisecond))
		}
		kit.NoError(t, list(t.Context(), directly(bob, address)))
		kit.NoError(t, list(t.Context(), directly(served["token on another node"], address)))
		blocked.Data = map[string]string{"nodes": ""}
		kit.Update(t, blocked)
		works()
	})
}
