//go:build parityfuzz

package parity

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	gocmp "github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/csr-controller-manager/csr-controller-manager/test/kit"
)

const (
	// requestsInRound is the number of requests that each program gets in one start.
	requestsInRound = 300
	// quietFor is how long no request may change until a program counts as idle.
	quietFor = time.Second
)

// TestRandomParity sends random requests through kube-controller-manager and through this manager, round after round.
// It compares the outcomes field by field. A difference must be a deviation that the table lists for a request of that
// kind, and a listed deviation must differ. PARITY_FUZZ_FOR bounds the time. PARITY_SEED repeats a round: round n of seed
// s is the first round of seed s+n.
func TestRandomParity(t *testing.T) {
	seed := kit.Must(strconv.ParseUint(cmp.Or(os.Getenv("PARITY_SEED"), fmt.Sprint(rand.Uint64()%1_000_000_000)), 10, 64))(t)
	duration, err := time.ParseDuration(cmp.Or(os.Getenv("PARITY_FUZZ_FOR"), "1m"))
	kit.NoError(t, err)
	e := startEnv(t)
	tally, began := map[string]int{}, time.Now()
	for ; (time.Since(began) < duration || tally["rounds"] == 0) && !t.Failed(); seed++ {
		t.Logf("seed %d", seed)
		e.identify(t)
		rows := newRandom(seed).rows(t, requestsInRound)
		theirs := e.theirTurn().random(t, rows, nil)
		ours := e.ourTurn(t).random(t, rows, theirs)
		for _, key := range slices.Sorted(maps.Keys(rows)) {
			their, existed := theirs[key]
			our, exists := ours[key]
			problem, s := "", rows[key]
			switch {
			case existed != exists:
				problem = fmt.Sprintf("the API server accepted it for one program only: %t, %t", existed, exists)
			case !exists:
				tally["refused by the API server"]++
			default:
				problem = s.judge(their, our)
				tally[kindOf(s, their, our)]++
				tally[our.State]++
			}
			if problem != "" {
				t.Errorf("seed %d, request %s: %s\n%s", seed, key, problem, s.description())
			}
		}
		tally["rounds"]++
	}
	t.Log(tally)
	for _, least := range []string{"the same", approvedIssued, approvedFailed, untouched} {
		kit.Check(t, t.Failed() || tally[least] >= 10*tally["rounds"],
			"%q only %d times: the requests prove too little", least, tally[least])
	}
}

// kindOf returns what a pair of outcomes shows.
func kindOf(s sample, theirs, ours outcome) string {
	if gocmp.Equal(theirs, ours) {
		return "the same"
	}
	return "deviation " + strings.Join(s.traits, " ")
}

// judge returns what is wrong with a pair of outcomes, or "".
func (s sample) judge(theirs, ours outcome) string {
	diff := gocmp.Diff(theirs, ours)
	// The rows of the table that have a deviation of s and kube-controller-manager's outcome.
	var permitted []string
	fits := false
	last := cmp.Or(strings.Join(ours.Conditions[max(0, len(ours.Conditions)-1):], ""), "none")
	for key, listed := range table {
		if listed.deviation == "" || listed.want != theirs.State || !slices.Contains(s.traits, listed.deviation) {
			continue
		}
		permitted = append(permitted, key)
		reason, _, _ := strings.Cut(listed.message, ":")
		fits = fits || listed.ours == ours.State && (reason == "" || strings.HasPrefix(last, "Failed=True "+reason+": "))
	}
	switch {
	case diff == "" && len(permitted) > 0:
		return fmt.Sprintf("it has the traits %q, and no listed deviation differs", s.traits)
	case diff == "" || fits:
		return ""
	case len(permitted) == 0:
		return "a difference that is no listed deviation (-kube-controller-manager +ours):\n" + diff
	}
	return fmt.Sprintf("it has the traits %q, whose deviations are in the rows %q (-kube-controller-manager +ours):\n%s", s.traits, permitted, diff)
}

// description returns the content of r, so that a finding can become a row of the table.
func (r row) description() string {
	var kinds []string
	for _, condition := range r.conditions {
		kinds = append(kinds, string(condition.Type))
	}
	request, _ := r.pem()
	return fmt.Sprintf("signer %s, usages %q, seconds %d, user %+v, key %q, conditions %q, stored %t, spec.request %.8192q",
		r.signerName(), r.usages, r.seconds, r.user, r.key, kinds, r.stored, request)
}

// random gives the requests to one program and returns the outcomes of those that the API server accepted. Each program gets a
// request that it issues, and another one afterwards: the queues of kube-controller-manager are in order, so only what was in progress
// can still change then. Ours is awaited until each outcome is permitted too, as long as anything changes.
func (u *turn) random(t *testing.T, rows map[string]sample, theirs map[string]outcome) map[string]outcome {
	t.Helper()
	u.make(t, "marker", node)
	var accepted []string
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		u.from[key] = time.Now()
		switch err := u.create(t, u.name(key), rows[key].row); {
		case err == nil:
			accepted = append(accepted, key)
		case !apierrors.IsInvalid(err) && !apierrors.IsForbidden(err) && !apierrors.IsBadRequest(err):
			t.Fatalf("create request %s: %v\n%s", key, err, rows[key].description())
		}
	}
	u.run(t, u.flags[oneCA])
	for _, marker := range []string{"marker", "last"} {
		if u.from[marker].IsZero() {
			u.make(t, marker, node)
		}
		if !u.settle(t, map[string]string{u.name(marker): approvedIssued}) {
			t.Fatalf("%s does not issue:\n%s", u.id, u.tail())
		}
	}
	outcomes, versions, since := map[string]outcome{}, map[string]string{}, time.Now()
	_ = wait.PollUntilContextCancel(t.Context(), pollInterval, true, func(context.Context) (bool, error) {
		objs, right := u.list(t), true
		for _, key := range accepted {
			obj, version := objs[u.name(key)], ""
			if obj != nil {
				version = obj.ResourceVersion
			}
			if last, seen := versions[key]; !seen || last != version {
				versions[key], since = version, time.Now()
			}
			outcomes[key] = u.read(rows[key].row, key, obj)
			their, existed := theirs[key]
			right = right && (!existed || rows[key].judge(their, outcomes[key]) == "")
		}
		quiet := time.Since(since)
		return right && quiet > quietFor || quiet > u.patience, nil
	})
	u.end(t)
	return outcomes
}

// random makes requests. Values that mean something are more frequent than by chance.
type random struct{ *rand.Rand }

func newRandom(seed uint64) random { return random{rand.New(rand.NewPCG(seed, 0))} }

// oneOf returns one of all.
func oneOf[T any](g random, all ...T) T { return all[g.IntN(len(all))] }

// some returns up to n of all, each at most once.
func some[T any](g random, n int, all ...T) []T {
	var chosen []T
	for _, at := range g.Perm(len(all))[:g.IntN(min(n, len(all))+1)] {
		chosen = append(chosen, all[at])
	}
	return chosen
}

// sample is a random request, with the ids of the deviations that may apply to it.
type sample struct {
	row
	traits []string
}

// rows returns n random requests: a request that a table could have as its base, with up to four changes.
func (g random) rows(t *testing.T, n int) map[string]sample {
	t.Helper()
	rows := map[string]sample{}
	for i := range n {
		r := with(oneOf(g, node, node, node, byHand, byHand, client, client, client, serving, serving, legacy))
		r.want, r.ours, r.deviation = "", "", ""
		for range g.IntN(5) {
			oneOf(g, changes...)(g, &r)
		}
		if r.signer == legacyUnknown {
			r.stored = true // the API server accepts no new ones
		}
		request, err := r.pem()
		if err != nil {
			continue // PKCS#10 has no form for it, such as a DNS name that is not ASCII
		}
		r.payload = func([]byte) []byte { return request } // both programs get the same bytes
		if len(traits(r)) > 0 && len(r.conditions) > 0 {
			r.conditions = now("Approved") // the table lists deviations of new and of approved requests
		}
		rows[fmt.Sprintf("%03d", i)] = sample{r, traits(r)}
	}
	kit.Require(t, len(rows) >= n/2, "only %d of %d requests have a form", len(rows), n)
	return rows
}

// changes are the possible changes. A frequent one is there twice.
var changes = []func(random, *row){
	random.usage, random.usage, random.subjectOf, random.subjectOf, random.rawName, dns, dns, keyKind, keyKind, lifetime, lifetime,
	random.requester, random.requester, random.oddEncoding, random.huge,
	func(g random, r *row) {
		r.signer = oneOf(g, apiserverClient, kubeletClient, kubeletServing, "example.com/client", "kubernetes.io/parity", legacyUnknown)
	},
	func(g random, r *row) {
		r.names.IPAddresses = some(g, 3, net.IPv4(10, 0, 0, 1).To4(), net.IPv6loopback, net.ParseIP("fd00::1"), net.IPv4zero.To4(),
			net.ParseIP("::ffff:10.0.0.1"))
		r.names.URIs = some(g, 1, spiffe, &url.URL{Scheme: "https", Host: "a.example.org:1", Path: "/%41", RawQuery: "a=b"},
			&url.URL{Scheme: "urn", Opaque: "a"})
		r.names.EmailAddresses = some(g, 1, "a@example.org", "A@b", "\"a b\"@c.d")
	},
	func(g random, r *row) {
		r.names.ExtraExtensions = oneOf(g, askForCA, custom, otherName, slices.Concat(askForCA, custom))
	},
	func(g random, r *row) {
		r.conditions = oneOf(g, nil, now("Approved"), now("Approved"), now("Denied"), now("Failed"), now("Example"),
			now("Approved", "Failed"), now("Example", "Approved"))
	},
	func(g random, r *row) { // the API server accepts these
		r.payload = oneOf(g, trailing, textBefore, carriageReturns, secondBlock, withHeaders)
	},
}

func (g random) usage(r *row) {
	all := usages("digital signature", "key encipherment", "client auth", "server auth", "signing", "content commitment", "key agreement",
		"data encipherment", "cert sign", "crl sign", "encipher only", "decipher only", "any", "code signing", "email protection", "s/mime",
		"ipsec end system", "ipsec tunnel", "ipsec user", "timestamping", "ocsp signing", "microsoft sgc", "netscape sgc")
	r.usages = oneOf(g,
		usages("digital signature", "client auth"), usages("client auth", "key encipherment", "digital signature"),
		usages("digital signature", "server auth"), usages("server auth", "key encipherment", "digital signature"),
		usages("client auth"), some(g, 4, all[:4]...), some(g, 5, all...),
	)
	if len(r.usages) == 0 {
		r.usages = usages("any")
	}
}

// prefixed returns up to eight random characters, perhaps behind a prefix of Kubernetes or kubeadm.
func (g random) prefixed() string {
	text := oneOf(g, "", "system:", "kubeadm:", "system:masters", "system:serviceaccount:")
	for range g.IntN(9) {
		text += oneOf(g, "a", "B", "0", "-", ":", ".", "/", "ä", "系", " ")
	}
	return text
}

func (g random) text() string {
	return oneOf(g, "", "a", "n1", "system:node:n1", "system:node:", "system:nodes", "system:masters", "system:Nodes", " system:nodes",
		"system:kube-controller-manager", "system:serviceaccount:a:b", "kubeadm:cluster-admins", g.prefixed(), g.prefixed(),
		"Größe", "名", "a,b", "a+b=c", "\"a\"", "x\x00y", "*", "system:node:n1\n", strings.Repeat("l", 1+g.IntN(300)))
}

func (g random) subjectOf(r *row) {
	subject := nodeName(oneOf(g, "n1", "n2", "N1", "", "a b", "n1.example.org"))
	for range 1 + g.IntN(2) {
		switch g.IntN(6) {
		case 0:
			subject.CommonName = g.text()
		case 1:
			subject.Organization = some(g, 3, "system:nodes", "system:masters", "b", "a", g.text())
		case 2:
			subject.Organization = append(subject.Organization, g.text())
		case 3:
			subject.OrganizationalUnit, subject.Country = some(g, 2, "b", "a"), some(g, 2, "DE", "FR")
		case 4:
			subject.SerialNumber, subject.Locality, subject.Province = g.text(), some(g, 2, "l"), some(g, 1, "p")
		case 5:
			subject.StreetAddress, subject.PostalCode = some(g, 2, "s", "t"), some(g, 1, "1")
		}
	}
	r.subject, r.rawSubject = subject, nil
}

// rawName encodes a subject that crypto/x509 would not write.
func (g random) rawName(r *row) {
	var attributes []attribute
	for range g.IntN(6) {
		oid := oneOf(g, commonName, organization, organization, serialNumber, userID, domainComponent, asn1.ObjectIdentifier{1, 2, 3, g.IntN(3)},
			asn1.ObjectIdentifier{2, 5, 4, g.IntN(20)})
		attributes = append(attributes, attribute{oid, strings.ToValidUTF8(g.text(), "")})
	}
	if g.IntN(2) == 0 {
		attributes = append(attributes, attribute{organization, "system:nodes"}, attribute{commonName, "system:node:n1"})
	}
	if len(attributes) > 0 {
		r.rawSubject = oneOf(g, name, oneRDN)(attributes...)
	}
}

// The DNS names of random requests. A signer of ours issues no certificate with one of badNames.
var (
	goodNames = []string{
		"n1", "n1.example.org", "A.example.org.", "*.example.org", "_a", "kubernetes", "10.0.0.1", "fd00::1", "xn--a", "a.b.c", "a-",
		strings.Repeat("a.", 120) + "a", strings.Repeat("l", 64), "010.0.0.1",
	}
	badNames = []string{
		"a, DNS:b", "fd00::1%eth0", "::ffff:10.0.0.1", "a..b", "-a", ".", "*", "a.*", "a b", "a\x00", strings.Repeat("a.", 127) + "a", "a:443",
		"http://a",
	}
)

func dns(g random, r *row) { r.names.DNSNames = some(g, 4, slices.Concat(goodNames, badNames)...) }

func keyKind(g random, r *row) {
	r.key = oneOf(g, "P-256", "P-384", "P-521", "Ed25519", "RSA-2048", "RSA-4096", "RSA-1024", "P-224")
}

func lifetime(g random, r *row) {
	r.seconds = oneOf(g, 600, 601, 3600, 8*3600-1, 8*3600, 8*3600+1, 24*3600, 24*3600+1, 1<<31-1, 600+g.Int32N(48*3600))
	if r.stored {
		r.seconds = oneOf(g, r.seconds, 1, -1, 599, -1<<31)
	}
}

func (g random) requester(r *row) {
	groups := some(g, 3, "parity:bootstrappers", "parity:renewers", "system:nodes", "system:bootstrappers")
	sum := sha256.Sum256([]byte("n1"))
	printable := func(r rune) rune { // the header Impersonate-User can't hold others
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}
	r.user = oneOf(g, bootstrapper, stranger, nodeUser("n1", groups...), nodeUser("n2", groups...), nodeUser("", groups...),
		user{"named", stranger.groups}, boundUser(hex.EncodeToString(sum[:])), boundUser("0123456789abcdef"), boundUser(""),
		user{strings.Map(printable, g.text()), append(groups, "system:authenticated")})
	if r.user.name == "" {
		r.user.name = "x"
	}
}

// oddEncoding selects a form that only an older API server could have stored.
func (g random) oddEncoding(r *row) {
	r.stored = true
	position, bit := g.Float64(), byte(1)<<g.IntN(8)
	flip := func(request []byte) []byte {
		return inBlock(request, func(block *pem.Block) { block.Bytes[int(position*float64(len(block.Bytes)))] ^= bit })
	}
	cut := func(request []byte) []byte { return request[:int(position*float64(len(request)))] }
	spoil := func(request []byte) []byte {
		request[int(position*float64(len(request)))] ^= bit
		return request
	}
	r.payload = oneOf(g, otherBlockFirst, newBlockType, noPEM, badSignature, garbage, flip, flip, cut, spoil, spoil)
}

// huge goes up to our limits, or beyond. It is rare, because such requests are slow.
func (g random) huge(r *row) {
	switch g.IntN(16) {
	case 0:
		r.rawSubject = name(append(slices.Repeat([]attribute{{organization, "o"}}, 250+g.IntN(12)), attribute{commonName, "x"})...)
	case 1:
		r.names.DNSNames = slices.Repeat([]string{"a.example.org"}, 995+g.IntN(12))
	case 2:
		comment := strings.Repeat("#", 120<<10+g.IntN(16<<10))
		r.payload = func(request []byte) []byte { return append(request, comment...) }
	case 3:
		for i := range 92 + g.IntN(16) {
			r.names.ExtraExtensions = append(r.names.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3, i}, Value: []byte{5, 0}})
		}
	}
}

// traits returns the ids of the deviations that may apply to r. It measures the request itself, with crypto/x509.
func traits(r row) (all []string) {
	add := func(has bool, id string) {
		if has {
			all = append(all, id)
		}
	}
	request, err := r.pem()
	if err != nil {
		return nil
	}
	add(r.signerName() == legacyUnknown, "legacy-unknown")
	add(len(request) > 128<<10, "too-large")
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return all
	}
	payload, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return all
	}
	names := len(payload.DNSNames) + len(payload.EmailAddresses) + len(payload.IPAddresses) + len(payload.URIs)
	add(len(payload.Raw) > 64<<10 || len(payload.Subject.Names) > 256 || names > 1000 || len(payload.Extensions)+1 > 100, "too-large")
	add(r.key == "RSA-1024", "weak-rsa-key")
	add(r.key == "P-224", "key-not-permitted")
	add(slices.ContainsFunc(payload.DNSNames, func(name string) bool { return !isGoodName(name) }), "bad-name")
	add(r.signerName() == apiserverClient && slices.Contains(payload.Subject.Organization, "system:masters"), "forbidden-subject")
	bound := func(group string) bool { return strings.HasPrefix(group, "system:bootstrappers:node:") }
	sum := sha256.Sum256([]byte(strings.TrimPrefix(payload.Subject.CommonName, "system:node:")))
	decided := slices.ContainsFunc(r.conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateApproved || c.Type == certificatesv1.CertificateDenied
	})
	add(!decided && slices.ContainsFunc(r.user.groups, bound) &&
		!slices.Contains(r.user.groups, "system:bootstrappers:node:"+hex.EncodeToString(sum[:])), "bound-token")
	return all
}

// isGoodName reports whether a signer of ours may issue a certificate with name. A flipped bit makes names that are in
// neither list: their characters and labels decide.
func isGoodName(name string) bool {
	switch {
	case slices.Contains(goodNames, name):
		return true
	case slices.Contains(badNames, name):
		return false
	case net.ParseIP(name) != nil:
		return net.ParseIP(name).String() == name
	}
	return len(strings.TrimSuffix(name, ".")) <= 253 && dnsName.MatchString(name)
}

var dnsName = regexp.MustCompile(`^(\*\.)?[A-Za-z0-9_][A-Za-z0-9_-]*(\.[A-Za-z0-9_][A-Za-z0-9_-]*)*\.?$`)
