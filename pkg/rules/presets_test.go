package rules_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/rules"
)

const (
	unexpectedAttribute = `no rule permits ["subject attribute 1.2.3"]`
	unexpectedUnit      = `no rule permits ["OU=unit"]`
	unexpectedExtension = `no rule permits ["extension 2.5.29.19"]`
	notAccount          = "the requester is not a ServiceAccount"
	tooLong             = "the certificate would be valid for 168h0m1s, longer than 168h0m0s: request less (spec.expirationSeconds)"
	noDuration          = "the request has no duration (spec.expirationSeconds), and this manager does not sign it"
)

// notMeantFor are the rows about a requester that is not ServiceAccount web of namespace shop.
func notMeantFor() map[string]row {
	return map[string]row{
		"a user":                             but(notAccount, user("web")),
		"a user with half a name":            but(notAccount, user("system:serviceaccount:shop")),
		"a name with more parts":             but(notAccount, user("system:serviceaccount:shop:web:x")),
		"a user who calls himself one":       but("the requester has the name of a ServiceAccount, but is not in the group system:serviceaccounts", groups("system:authenticated")),
		"groups of another namespace":        but("the requester has the name of a ServiceAccount, but is not in the group system:serviceaccounts:shop", groups("system:serviceaccounts", "system:serviceaccounts:kitchen")),
		"no UID, as of a client certificate": but("the requester has the name of a ServiceAccount, but no UID", noUID),
		"the account is deleted":             but("it is deleted", isNot("it is deleted")),
		"the account cannot be read":         but("error: down", unreadable),
	}
}

// with returns rows, and a row for each kind of content that is not allowed.
func with(rows map[string]row, allowed ...string) map[string]row {
	for kind, ask := range map[string]change{
		"names": names("api.shop.svc"), "addresses": address, "emails": email, "uris": uris("spiffe://a/b"),
		"commonName": common("web"), "organizations": orgs("shop"),
	} {
		if !slices.Contains(allowed, kind) {
			rows[kind] = but("the rule does not allow "+kind, ask)
		}
	}
	rows["other attribute"], rows["unknown attribute"] = but(unexpectedUnit, unit), but(unexpectedAttribute, unknownAttribute)
	rows["extension"] = but(unexpectedExtension, extension)
	return rows
}

// ofAccounts returns rows and those of notMeantFor.
func ofAccounts(rows map[string]row) map[string]row {
	maps.Copy(rows, notMeantFor())
	return rows
}

func TestServiceNames(t *testing.T) {
	t.Parallel()
	smallest := func() *trial {
		r := account()
		names("api.shop.svc")(r)
		usages("digital signature, server auth")(r)
		return r
	}
	const usual = `["digital signature" "key encipherment" "server auth"]`
	foreign := func(name string) string {
		return `DNS name "` + name + `" is not SERVICE.shop.svc or SERVICE.shop.svc.cluster.local: a ServiceAccount gets only names of Services in its own namespace`
	}
	judge(t, rules.Rule{Name: "a", SignerName: "example.com/serving", Preset: rules.ServiceNames}, smallest, with(ofAccounts(map[string]row{
		"smallest":                  but(""),
		"common name":               but("", common("api.shop.svc")),
		"CA that API servers trust": but("", trusted("API servers trust it")),
		"no names at all":           but("the request asks for no name, no address and no subject", names()),
		"a common name alone":       but("the request has no DNS name", names(), common("api.shop.svc")),
		"too many names":            but("the request has more than 20 DNS names", names(slices.Repeat([]string{"api.shop.svc"}, 21)...)),
		"another namespace":         but(foreign("api.kitchen.svc"), names("api.kitchen.svc")),
		"one more of another":       but(foreign("api.kitchen.svc"), names("api.shop.svc", "api.kitchen.svc")),
		"a short name":              but(foreign("api.shop"), names("api.shop")),
		"another domain":            but(foreign("api.shop.svc.example.com"), names("api.shop.svc.example.com")),
		"the domain twice":          but(foreign("api.shop.svc.cluster.local.cluster.local"), names("api.shop.svc.cluster.local.cluster.local")),
		"no Service":                but(foreign("shop.svc"), names("shop.svc")),
		"a Pod of a Service":        but(foreign("a.api.shop.svc"), names("a.api.shop.svc")),
		"the API server":            but(`DNS name "kubernetes.shop.svc" is a name of the API server`, names("kubernetes.shop.svc")),
		"a dot at the end":          but(`DNS name "api.shop.svc." has upper-case letters or a dot at the end`, names("api.shop.svc.")),
		"wildcard":                  but(`DNS name "*.shop.svc" is a wildcard, which is not permitted`, names("*.shop.svc")),
		"an address as a name":      but(`DNS name "10.0.0.1" is an address`, names("10.0.0.1")),
		"another common name":       but(`common name "web" is not one of the DNS names`, common("web")),
		"client usage too":          but(`usage "client auth" is not one of `+usual, usages("digital signature, server auth, client auth")),
		"any usage":                 but(`usage "any" is not one of `+usual, usages("digital signature, server auth, any")),
		"no extended usage":         but(`usages ["digital signature"] are too few: a digital signature and a purpose are needed, of `+usual, usages("digital signature")),
		"too long":                  but(tooLong, lives(168*time.Hour+time.Second)),
		"no duration":               but(noDuration, lives(0)),
	}), "names", "commonName"))
	own := rules.Rule{Name: "a", SignerName: "example.com/serving", Preset: rules.ServiceNames, ClusterDomain: "lab.example"}
	judge(t, own, smallest, map[string]row{
		"its own domain":   but("", names("api.shop.svc.lab.example")),
		"the usual domain": but(`DNS name "api.shop.svc.cluster.local" is not SERVICE.shop.svc or SERVICE.shop.svc.lab.example: a ServiceAccount gets only names of Services in its own namespace`, names("api.shop.svc.cluster.local")),
	})
	r := smallest()
	names("api.shop.svc", "b.shop.svc.lab.example", "api.shop.svc.lab.example")(r)
	subject := r.subject(t)
	if refusal, err := compile(t, own).Judge(t.Context(), subject); refusal != "" || err != nil ||
		fmt.Sprint(subject.Services) != "[shop/api shop/b]" {
		t.Errorf("%q, %v, Services %q", refusal, err, subject.Services)
	}
	if _, _ = compile(t, serving("true")).Judge(t.Context(), subject); len(subject.Services) > 0 {
		t.Errorf("Services %q for a rule without the preset", subject.Services)
	}
}

func TestSPIFFE(t *testing.T) {
	t.Parallel()
	const id = "spiffe://example.org/ns/shop/sa/web"
	smallest := func() *trial {
		r := account()
		uris(id)(r)
		usages("digital signature, client auth")(r)
		return r
	}
	const usual = `["digital signature" "key encipherment" "client auth" "server auth"]`
	const other = "the only URI must be " + id
	judge(t, rules.Rule{Name: "a", SignerName: "example.com/spiffe", Preset: rules.SPIFFE, TrustDomain: "example.org"}, smallest, with(ofAccounts(map[string]row{
		"smallest":               but(""),
		"both usages":            but("", usages("digital signature, key encipherment, client auth, server auth")),
		"server on a trusted CA": but("", usages("digital signature, server auth"), trusted("API servers trust it")),
		"client on a trusted CA": but(`usages ["digital signature" "client auth"] are valid for clients, but API servers trust it`, trusted("API servers trust it")),
		"no URI":                 but("the request asks for no name, no address and no subject", uris()),
		"two URIs":               but(other, uris(id, id)),
		"another trust domain":   but(other, uris("spiffe://example.com/ns/shop/sa/web")),
		"another account":        but(other, uris("spiffe://example.org/ns/shop/sa/root")),
		"a query":                but(other, uris(id+"?")),
		"an escaped letter":      but(other, uris("spiffe://example.org/ns/shop/sa/%77eb")),
		"upper case":             but(other, uris("spiffe://EXAMPLE.org/ns/shop/sa/web")),
		"no extended usage":      but(`usages ["digital signature"] are too few: a digital signature and a purpose are needed, of `+usual, usages("digital signature")),
		"too long":               but("the certificate would be valid for 24h0m1s, longer than 24h0m0s: request less (spec.expirationSeconds)", lives(24*time.Hour+time.Second)),
		"no duration":            but(noDuration, lives(0)),
	}), "uris"))
}

func TestOwnIdentity(t *testing.T) {
	t.Parallel()
	const credential, end = "authentication.kubernetes.io/credential-id", "example.com/exp"
	smallest := func() *trial {
		r := account()
		r.obj.Spec.SignerName = "kubernetes.io/kube-apiserver-client"
		for _, change := range []change{
			user("jane"), groups("developers", "system:authenticated"), common("jane"), usages("digital signature, client auth"),
			extra(credential, "JTI=4f1c"), trusted("API servers trust it"), isNot("none"),
		} {
			change(r)
		}
		return r
	}
	const usual = `["digital signature" "key encipherment" "client auth"]`
	const reserved = "no user name and no group may begin with system: or kubeadm:"
	const token = "the requester did not authenticate with a token that has an ID: a certificate cannot renew itself"
	rule := rules.Rule{Name: "a", SignerName: "kubernetes.io/kube-apiserver-client", Preset: rules.OwnIdentity}
	rows := map[string]row{
		"smallest":                   but(""),
		"a group":                    but("", orgs("developers")),
		"another user":               but(`common name "root" is not the requester's user name`, common("root")),
		"nobody":                     but("the request asks for no name, no address and no subject", common(""), user("")),
		"a foreign group":            but(`the requester is not in all of the groups ["admins" "developers"]`, orgs("developers", "admins")),
		"system:masters":             but(reserved, groups("system:masters"), orgs("system:masters")),
		"a group of kubeadm":         but(reserved, groups("kubeadm:cluster-admins"), orgs("kubeadm:cluster-admins")),
		"a user of Kubernetes":       but(reserved, user("system:serviceaccount:shop:web"), common("system:serviceaccount:shop:web")),
		"a user of kubeadm":          but(reserved, user("kubeadm:a"), common("kubeadm:a")),
		"a star in the user name":    but("", user("a*b"), common("a*b")),
		"a certificate":              but(token, extra(credential, "X509SHA256=00")),
		"impersonation":              but(token, extra(credential)),
		"two credentials":            but(token, extra(credential, "JTI=4f1c", "JTI=4f1c")),
		"an empty ID":                but(token, extra(credential, "JTI=")),
		"server usage":               but(`usage "server auth" is not one of `+usual, usages("digital signature, client auth, server auth")),
		"no client usage":            but(`usages ["digital signature"] are too few: a digital signature and a purpose are needed, of `+usual, usages("digital signature")),
		"too long":                   but("the certificate would be valid for 1h0m1s, longer than 1h0m0s: request less (spec.expirationSeconds)", lives(time.Hour+time.Second)),
		"no duration":                but(noDuration, lives(0)),
		"ten minutes old":            but("", made(now.Add(-10*time.Minute))),
		"older":                      but("the request is older than 10m0s: make a new one", made(now.Add(-601*time.Second))),
		"its credential ends sooner": but("", extra(end, "1")),
	}
	judge(t, rule, smallest, with(rows, "commonName", "organizations"))
	const outlives = `the certificate would outlive the credential of the requester, by "example.com/exp" of its extra: request less (spec.expirationSeconds)`
	until := func(at time.Time) change { return extra(end, fmtUnix(at)) }
	rule.ExpiryExtra = end
	judge(t, rule, smallest, map[string]row{
		"until the end":         but("", until(now.Add(time.Hour))),
		"in exponent notation":  but("", extra(end, "1.8e9")),
		"beyond the end":        but(outlives, until(now.Add(time.Hour-time.Second))),
		"no end":                but(outlives),
		"two ends":              but(outlives, extra(end, fmtUnix(now.Add(time.Hour)), fmtUnix(now.Add(time.Hour)))),
		"not a number":          but(outlives, extra(end, "tomorrow")),
		"never":                 but(outlives, extra(end, "+Inf")),
		"the time is not known": but("error: no time", until(now.Add(time.Hour)), func(r *trial) { r.facts.Now = func() (time.Time, error) { return time.Time{}, errors.New("no time") } }),
	})
}
