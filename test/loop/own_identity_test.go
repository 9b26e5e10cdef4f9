package loop

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

// issuer is an OpenID Connect provider.
type issuer struct {
	*httptest.Server
	key *ecdsa.PrivateKey
}

func startIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{key: kit.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)}
	point := kit.Must(i.key.PublicKey.Bytes())(t)
	pages := http.NewServeMux()
	pages.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": i.URL, "jwks_uri": i.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"},
		})
	})
	pages.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]any{"keys": []map[string]string{{
			"kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "1", "x": encoded(point[1:33]), "y": encoded(point[33:65]),
		}}})
	})
	i.Server = httptest.NewTLSServer(pages)
	t.Cleanup(i.Close)
	return i
}

func encoded(data []byte) string { return base64.RawURLEncoding.EncodeToString(data) }

// token returns a token of jane, with more claims.
func (i *issuer) token(t *testing.T, end time.Time, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": i.URL, "aud": "csr", "sub": "jane", "groups": []string{"developers"}, "iat": time.Now().Unix(), "exp": end.Unix()}
	maps.Copy(all, claims)
	var parts []string
	for _, part := range []any{map[string]string{"alg": "ES256", "kid": "1", "typ": "JWT"}, all} {
		parts = append(parts, encoded(kit.Must(json.Marshal(part))(t)))
	}
	sum := sha256.Sum256([]byte(strings.Join(parts, ".")))
	r, s, err := ecdsa.Sign(rand.Reader, i.key, sum[:])
	kit.NoError(t, err)
	return strings.Join(append(parts, encoded(append(r.FillBytes(make([]byte, 32)), s.FillBytes(make([]byte, 32))...))), ".")
}

// TestOwnIdentityOfAnOIDCUser has an API server that authenticates users by OpenID Connect, and tells the end of a token as
// docs/how-to/user-certificates.md shows. A user gets a certificate for the same name, and with this certificate no other one.
func TestOwnIdentityOfAnOIDCUser(t *testing.T) {
	kit.Parallel(t)
	issuer := startIssuer(t)
	kit.WithAPIServer(t, nil, func(dir string, args *envtest.Arguments) {
		file := filepath.Join(dir, "authentication.yaml")
		authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issuer.Certificate().Raw})
		kit.Write(t, file, []byte(fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer: {url: %q, audiences: [csr], certificateAuthority: %q}
  claimMappings:
    username: {claim: sub, prefix: ""}
    groups: {claim: groups, prefix: ""}
    extra:
    - {key: example.com/exp, valueExpression: "string(int(claims.exp))"}
`, issuer.URL, authority)))
		args.Set("authentication-config", file)
	})
	mayUse(t, "jane", "people")
	r, jti, guests := ruleApprover(t), map[string]any{"jti": "4f1c"}, map[string]any{"jti": "4f1c", "groups": []string{"guests"}}
	for name, test := range map[string]struct {
		ends   time.Duration
		claims map[string]any
		want   string
	}{
		"a token":                    {2 * time.Hour, jti, "approved"},
		"a token that ends before":   {30 * time.Minute, jti, "would outlive the credential"},
		"a token without an ID":      {2 * time.Hour, nil, "a certificate cannot renew itself"},
		"a token of a smaller group": {2 * time.Hour, guests, "is not in all of the groups"},
	} {
		jane := kit.ClientOf(t, kit.WithToken(t, issuer.token(t, time.Now().Add(test.ends), test.claims)))
		decides(t, r, name, jane, asksIdentity(t, "jane", "developers"), test.want)
	}
	byCertificate := kit.CertificateClient(t, "jane", "developers")
	decides(t, r, "a certificate", byCertificate, asksIdentity(t, "jane", "developers"), "a certificate cannot renew itself")
}
