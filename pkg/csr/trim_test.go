package csr_test

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/fips140"
	"crypto/mldsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/csr-controller-manager/csr-controller-manager/pkg/ca"
	"github.com/csr-controller-manager/csr-controller-manager/pkg/csr"
	"github.com/csr-controller-manager/csr-controller-manager/test/kit/expect"
)

// whole returns a request of a kubelet with everything that an API server stores, with edits.
func whole(edits ...edit) *request {
	deleted, seconds := metav1.NewTime(now.Add(time.Hour)), int32(600)
	obj := object()
	obj.ObjectMeta = metav1.ObjectMeta{
		Name: "csr-a", GenerateName: "csr-", UID: "uid", ResourceVersion: "7", CreationTimestamp: metav1.NewTime(now),
		DeletionTimestamp: &deleted, Annotations: map[string]string{"a": strings.Repeat("x", 1000)},
		Labels: map[string]string{"b": "c"}, Finalizers: []string{"d"}, OwnerReferences: []metav1.OwnerReference{{Name: "e"}},
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update"}},
	}
	obj.Spec.ExpirationSeconds = &seconds
	csr.AddCondition(obj, "Other", "Reason", strings.Repeat("y", 1000), now)
	for _, each := range edits {
		each(obj)
	}
	return obj
}

// transformed returns a copy of obj after trim.
func transformed(trim csr.Trim, obj *request) *request {
	return must(trim.Transform(obj.DeepCopy())).(*request)
}

// issued is an approved request with a certificate.
func issued(data []byte) *request { return object(conditions("Approved@1m"), certificate(data)) }

// recordOf returns what stands in place of a certificate in a trimmed object.
func recordOf(data []byte) []byte { return transformed(csr.Trim{}, issued(data)).Status.Certificate }

// TestTrim trims requests for our signers.
func TestTrim(t *testing.T) {
	hour, other := certificateUntil(now.Add(time.Hour)), certificateUntil(now)
	first, _ := pem.Decode(hour)
	second, _ := pem.Decode(other)
	joined := block("CERTIFICATE", slices.Concat(first.Bytes, second.Bytes))
	longName := whole(conditions("Approved"), certificate(hour), func(obj *request) { obj.Spec.Username = strings.Repeat("u", 1<<20) })
	of := func(text string, data []byte) *request { return whole(conditions(text), certificate(data)) }
	for name, test := range map[string]struct {
		obj     *request
		trimmed bool
	}{
		"pending":           {whole(), false},
		"approved":          {of("Approved@1m", nil), false},
		"failed, undecided": {of("Failed@1m", nil), false},

		"denied":                       {of("Denied@1m", nil), true},
		"approved and denied":          {of("Approved Denied@1m", nil), true},
		"approved and failed":          {of("Approved Failed@1m", nil), true},
		"issued":                       {of("Approved@1m", hour), true},
		"issued, not approved":         {of("", hour), true},
		"issued, expired before 1970":  {of("Approved", certificateUntil(time.Unix(-1e9, 0))), true},
		"issued, ends in 9999":         {of("Approved", certificateUntil(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC))), true},
		"issued with a chain":          {of("Approved", slices.Concat(hour, other)), true},
		"two certificates in a block":  {of("Approved", joined), true},
		"no PEM":                       {of("Approved", []byte("x")), true},
		"an empty block":               {of("Approved", block("CERTIFICATE", nil)), true},
		"a broken certificate":         {of("Approved", block("CERTIFICATE", []byte("x"))), true},
		"a long user name":             {longName, true},
		"a record before the PEM text": {of("Approved", slices.Concat(recordOf(hour), []byte("\n"), other)), true},
		"a record in place of the PEM": {of("Approved", recordOf(hour)), true},
	} {
		expect.Equal(t, name+": trimmed", csr.Trimmed(transformed(csr.Trim{}, test.obj)), test.trimmed)
		t.Run(name, func(t *testing.T) {
			checkTrimmed(t, test.obj)
		})
	}
}

var onlyExpired = csr.RetentionPolicy{Default: csr.Retention{Approved: -1, Denied: -1, Failed: -1, Pending: -1}}

// answers returns what each reader says about obj.
func answers(obj *request) []any {
	record, readable := csr.Certificate(obj)
	all := []any{csr.StateOf(obj), csr.Undecided(obj), csr.ApprovedAt(obj), len(obj.Status.Conditions), record.NotBefore, record.NotAfter, record.Node, readable}
	for _, condition := range obj.Status.Conditions {
		all = append(all, condition.Type, condition.Status, csr.ConditionTime(obj, condition.Type))
	}
	for _, policy := range []csr.RetentionPolicy{{}, onlyExpired} {
		at, due := policy.Deadline(obj, now)
		all = append(all, at, due)
	}
	return all
}

// checkTrimmed trims obj, as a request of ours and as one of others, and compares what the readers say. A trimmed object can't be
// parsed, which is not a verdict about the request.
func checkTrimmed(t *testing.T, obj *request) {
	t.Helper()
	for _, trim := range []csr.Trim{{}, {Ours: func(string) bool { return false }}} {
		small := transformed(trim, obj)
		expect.Equal(t, "answers", answers(small), answers(obj))
		metadata := obj.ObjectMeta.DeepCopy()
		metadata.ManagedFields = nil
		expect.Equal(t, "trimmed again", transformed(csr.Trim{}, small), small)
		spec := obj.Spec
		if csr.Trimmed(small) {
			*metadata = metav1.ObjectMeta{
				Name: obj.Name, UID: obj.UID, ResourceVersion: obj.ResourceVersion,
				CreationTimestamp: obj.CreationTimestamp, DeletionTimestamp: obj.DeletionTimestamp,
			}
			for _, condition := range small.Status.Conditions {
				expect.Equal(t, "texts of an approver", condition.Reason+condition.Message, "")
			}
			spec = certificatesv1.CertificateSigningRequestSpec{
				Request: []byte("trimmed by csr-controller-manager"), SignerName: spec.SignerName, Username: csr.Shorten(spec.Username),
			}
			_, err := csr.Parse(small)
			expect.Error(t, "parsed", err, "spec.request is not in the cache")
		}
		if !csr.Trimmed(obj) && !csr.Oversized(small) {
			expect.Equal(t, "spec", small.Spec, spec)
			expect.Equal(t, "metadata", small.ObjectMeta, *metadata)
		}
	}
}

// TestTrimTooLarge checks that a pending request above the limits is made small, that the limit itself is permitted, and that
// the request is refused with the same message. Objects of other kinds stay as they are.
func TestTrimTooLarge(t *testing.T) {
	for _, obj := range []any{&corev1.Node{}, toolscache.DeletedFinalStateUnknown{Key: "csr-a"}} {
		if got, err := (csr.Trim{}).Transform(obj); err != nil || got != obj {
			t.Errorf("%v, %v", got, err)
		}
	}
	sized := func(size int) edit {
		return func(obj *request) {
			obj.Spec.Request = append(obj.Spec.Request, bytes.Repeat([]byte("x"), size-len(obj.Spec.Request))...)
		}
	}
	labels := func(obj *request) { obj.Labels = labelled(1001, 1) }
	for name, test := range map[string]struct {
		most  int // the bytes of spec.request, or 0 for the default
		edits []edit
		want  string // empty means that it stays whole
		name  string // by which it is in the cache
		large bool
	}{
		"as large as the limit": {most: 5000, edits: []edit{sized(5000)}},
		"an ML-DSA-87 key, 1 kB of names": {edits: []edit{func(obj *request) {
			obj.Status = certificatesv1.CertificateSigningRequestStatus{}
			obj.Spec.Request = append(mldsaRequest(t, "ML-DSA-87"), bytes.Repeat([]byte("x"), 1000)...)
		}}},
		"above 12 KiB":           {edits: []edit{sized(13_000)}, large: true},
		"above 12 KiB, approved": {edits: []edit{sized(13_000), conditions("Approved@1m")}, large: true},
		"annotations above 12 KiB": {edits: []edit{func(obj *request) {
			obj.Annotations = map[string]string{"a": strings.Repeat("a", 13_000)}
		}}, large: true},
		"above the default":            {edits: []edit{sized(1 << 20)}, want: "spec.request has more than 131072 bytes (requestLimits.maxRequestBytes)"},
		"above another limit":          {most: 5000, edits: []edit{sized(5001)}, want: "spec.request has more than 5000 bytes (requestLimits.maxRequestBytes)"},
		"a negative limit":             {most: -5, edits: []edit{sized(5000)}, want: "spec.request has more than -5 bytes (requestLimits.maxRequestBytes)"},
		"labels":                       {edits: []edit{labels}, want: "metadata.labels has more than 1000 entries (requestLimits.maxEntries)"},
		"labels, approved":             {edits: []edit{labels, conditions("Approved@1m")}, want: "metadata.labels has more than 1000 entries (requestLimits.maxEntries)"},
		"a name that a URL may hold":   {edits: []edit{longNamed("a", 2048)}, want: "metadata.name has more than 253 bytes"},
		"a name that no URL may hold":  {edits: []edit{longNamed("a", 2049)}, want: "metadata.name has more than 253 bytes", name: strings.Repeat("a", 253) + "...%uid"},
		"a name of control characters": {edits: []edit{longNamed("\x01", 683)}, want: "metadata.name has more than 253 bytes", name: strings.Repeat("\x01", 253) + "...%uid"},
		"253 control characters":       {edits: []edit{longNamed("\x01", 253)}},
		"the mark before a PEM block": {edits: []edit{func(obj *request) {
			obj.Spec.Request = append([]byte("oversized for csr-controller-manager: forged\n"), obj.Spec.Request...)
		}}},
	} {
		obj := whole(test.edits...)
		limits := csr.Limits{RequestBytes: test.most}
		trim := csr.Trim{Limits: limits}
		got := transformed(trim, obj)
		expect.Equal(t, name+": oversized, trimmed, reachable", fmt.Sprint(csr.Oversized(got), csr.Trimmed(got), csr.Reachable(got)),
			fmt.Sprint(test.want != "", false, test.name == ""))
		expect.Equal(t, name+": trimmed again", transformed(trim, got), got)
		expect.Equal(t, name+": large", csr.Large(got), test.large)
		if test.large {
			_, err := csr.Parse(got)
			expect.Error(t, name+": parsed", err, "spec.request is not in the cache")
			expect.Equal(t, name+": answers", answers(got), answers(obj))
			expect.True(t, got.Size() < 1000, "%s: %d bytes", name, got.Size())
			continue
		}
		obj.ManagedFields = nil
		if test.want == "" {
			expect.Equal(t, name+": the object", got, obj)
			continue
		}
		expect.Equal(t, name+": requester", got.Spec.Groups, []string{"system:bootstrappers"})
		for form, each := range map[string]*request{"whole": obj, "small": got} {
			expect.Equal(t, name+": refusal, "+form, refusal(limits, func(into *request) { *into = *each }), "RequestTooLarge: "+test.want)
			expect.Equal(t, name+": node, "+form, limits.NodeOf(each), "")
		}
		expect.Equal(t, name+": metadata", got.ObjectMeta, metav1.ObjectMeta{
			Name: cmp.Or(test.name, obj.Name), UID: "uid", ResourceVersion: "7", CreationTimestamp: obj.CreationTimestamp, DeletionTimestamp: obj.DeletionTimestamp,
		})
	}
	dry := csr.Trim{KeepFinished: true, Ours: func(name string) bool { return name == object().Spec.SignerName }}
	for name, test := range map[string]struct {
		obj                *request
		trimmed, oversized bool
	}{
		"issued, in a dry run":            {obj: whole(conditions("Approved"), certificate([]byte("x")))},
		"issued, with labels":             {obj: whole(conditions("Approved"), certificate(certificateUntil(now)), labels), oversized: true},
		"for a signer of others, dry run": {obj: whole(func(obj *request) { obj.Spec.SignerName = "example.com/foreign" }), trimmed: true},
	} {
		got := transformed(dry, test.obj)
		expect.Equal(t, name, fmt.Sprint(csr.Trimmed(got), csr.Oversized(got)), fmt.Sprint(test.trimmed, test.oversized))
		_, want := csr.Certificate(test.obj)
		_, readable := csr.Certificate(got)
		expect.Equal(t, name+": certificate", readable, want)
	}
}

// TestBrokenRecords checks that no bytes in place of a record make a reader fail.
func TestBrokenRecords(t *testing.T) {
	good := transformed(csr.Trim{}, issued(certificateUntil(now)))
	for at := range good.Status.Certificate {
		obj := good.DeepCopy()
		obj.Status.Certificate = obj.Status.Certificate[:at]
		if record, readable := csr.Certificate(obj); readable {
			t.Errorf("%d bytes: %+v, %t", at, record, readable)
		}
		_, _ = csr.RetentionPolicy{}.Deadline(obj, now)
		obj = good.DeepCopy()
		obj.Status.Certificate[at] ^= 0xff
		_, _ = csr.Certificate(obj)
	}
}

// mldsaKeys returns a key of each kind of ML-DSA, or none with a FIPS 140-3 module that lacks them.
func mldsaKeys() map[string]crypto.Signer {
	all := map[string]crypto.Signer{}
	for _, parameters := range []mldsa.Parameters{mldsa.MLDSA44(), mldsa.MLDSA65(), mldsa.MLDSA87()} {
		key, err := mldsa.GenerateKey(parameters)
		if lacking := fips140.Version() == "v1.0.0"; (err != nil) != lacking {
			panic(fmt.Sprintf("%s with the module %s: %v", parameters, fips140.Version(), err))
		} else if !lacking {
			all[parameters.String()] = key
		}
	}
	return all
}

// TestSignedBy checks that only the CA whose key has signed a certificate is recognized, whatever names and key
// identifiers it shares with others, in whole and in trimmed objects. A trimmed object knows the CAs from when it was trimmed.
func TestSignedBy(t *testing.T) {
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	keys := map[string]crypto.Signer{
		"P-256": must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)), "another P-256": must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)),
		"P-521": must(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)), "RSA": must(rsa.GenerateKey(rand.Reader, 2048)), "Ed25519": must(edKey, err),
	}
	maps.Copy(keys, mldsaKeys())
	authorities := map[string]*x509.Certificate{}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, SubjectKeyId: []byte{1}, NotBefore: now, NotAfter: now.Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	for name, key := range keys {
		authorities[name] = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))))
	}
	algorithms := map[string][]x509.SignatureAlgorithm{
		"P-256": {x509.ECDSAWithSHA384}, "RSA": {x509.SHA512WithRSA, x509.SHA256WithRSAPSS, x509.SHA384WithRSAPSS},
	}
	all := slices.Collect(maps.Values(authorities))
	knowing := csr.Trim{Authorities: func() []*x509.Certificate { return all }}
	for signer := range keys {
		for _, algorithm := range append(algorithms[signer], 0) {
			leaf := &x509.Certificate{
				SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "system:node:a"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(time.Hour),
				SignatureAlgorithm: algorithm,
			}
			made := must(x509.CreateCertificate(rand.Reader, leaf, authorities[signer], leafKey().Public(), keys[signer]))
			obj := issued(block("CERTIFICATE", made))
			for form, obj := range map[string]*request{"whole": obj, "trimmed": transformed(knowing, obj), "trimmed before": transformed(csr.Trim{}, obj)} {
				record, readable := csr.Certificate(obj)
				if !readable || record.Node != "a" || !record.NotBefore.Equal(leaf.NotBefore) || !record.NotAfter.Equal(leaf.NotAfter) {
					t.Errorf("%s: %+v, %t", form, record, readable)
				}
				for name, authority := range authorities {
					got := record.SignedBy([]*x509.Certificate{authority}) == ca.KeyID(authority.RawSubjectPublicKeyInfo)
					expect.Equal(t, fmt.Sprintf("%s, %s by %s: signed by %s", form, algorithm, signer, name), got, name == signer && form != "trimmed before")
				}
			}
			made[len(made)-1] ^= 1
			obj = issued(block("CERTIFICATE", made))
			for _, obj := range []*request{obj, transformed(knowing, obj)} {
				if record, readable := csr.Certificate(obj); !readable || record.SignedBy(all) != "" {
					t.Errorf("%s by %s: readable: %t, and a changed signature is recognized", algorithm, signer, readable)
				}
			}
		}
		crossed := must(x509.CreateCertificate(rand.Reader, template, authorities["P-521"], keys[signer].Public(), keys["P-521"]))
		for _, der := range [][]byte{authorities[signer].Raw, crossed} {
			obj := issued(block("CERTIFICATE", der))
			for _, obj := range []*request{obj, transformed(knowing, obj)} {
				if record, readable := csr.Certificate(obj); !readable || record.SignedBy(all) != "" {
					t.Errorf("%s: readable: %t, and a certificate of a CA counts as issued", signer, readable)
				}
			}
		}
	}
	if (csr.CertificateRecord{}).SignedBy(all) != "" {
		t.Error("no certificate is signed by a CA")
	}
}

// TestFinishedRequestsAreSmall decodes finished requests of kubelets as an informer does, trims them and keeps them in
// its store.
func TestFinishedRequestsAreSmall(t *testing.T) {
	const requests, nodes = 500, 50
	ca := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "kubernetes"}, IsCA: true, BasicConstraintsValid: true}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:worker-0000", Organization: []string{"system:nodes"}},
		NotBefore: now, NotAfter: now.AddDate(1, 0, 0), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	obj := object(func(obj *request) { obj.ManagedFields = whole().ManagedFields })
	obj.GenerateName, obj.UID = "csr-", "4b3e3b7d-5f2e-4f0e-9a5e-0123456789ab"
	obj.Spec.Groups = []string{"system:nodes", "system:authenticated"}
	obj.Spec.Extra = map[string]certificatesv1.ExtraValue{csr.CredentialIDKey: {csr.CertificateIDPrefix + strings.Repeat("0a", 32)}}
	csr.AddCondition(obj, "Approved", "AutoApproved", "Auto approving kubelet client certificate after SubjectAccessReview.", now)
	keys := mldsaKeys()
	keys["P-256"], keys["RSA 3072"] = leafKey(), must(rsa.GenerateKey(rand.Reader, 3072))
	for name, key := range keys {
		obj.Status.Certificate = block("CERTIFICATE", must(x509.CreateCertificate(rand.Reader, leaf, ca, leafKey().Public(), key)))
		known := []*x509.Certificate{must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key))))}
		trim := csr.Trim{Authorities: func() []*x509.Certificate { return known }}
		store, before := toolscache.NewStore(toolscache.MetaNamespaceKeyFunc), heap()
		for i := range requests {
			obj.Name, obj.ResourceVersion = fmt.Sprintf("csr-%05d", i), fmt.Sprint(10_000_000+i)
			obj.Spec.Username = fmt.Sprintf("system:node:worker-%04d", i%nodes)
			decoded := &request{}
			if err := errors.Join(decoded.Unmarshal(must(obj.Marshal())), store.Add(must(trim.Transform(decoded)))); err != nil {
				t.Fatal(err)
			}
		}
		size := (heap() - before) / requests
		runtime.KeepAlive(store)
		if t.Logf("a CA with a key of %s: %d bytes for each request", name, size); size > 900 {
			t.Error("want at most 900")
		}
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the first one removes what sync.Pool and unique still hold
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// FuzzTrim checks that every reader gives the same answer about a whole and about a trimmed object, that a trimmed object
// stays as it is, and that the end of a certificate is the one that crypto/x509 reads.
func FuzzTrim(f *testing.F) {
	node := block("CERTIFICATE REQUEST", der(nodeRequest()))
	valid := certificateUntil(now.Add(time.Hour))
	f.Add(node, valid, "user", "kubernetes.io/kubelet-serving", "True", uint8(1), int64(0), int64(60))
	f.Add(node, []byte(nil), strings.Repeat("ü", 300), "kubernetes.io/kube-apiserver-client-kubelet", "", uint8(0), int64(5), int64(0))
	f.Add([]byte("x"), append(block("OTHER", []byte{1}), valid...), "", "example.com/a", "False", uint8(6), int64(-1), int64(1)<<33)
	f.Add(node, append(slices.Clone(valid), valid...), "", "", "True", uint8(9), int64(0), int64(0))
	f.Add([]byte("trimmed by csr-controller-manager"), valid, "", "", "", uint8(2), int64(0), int64(0))
	f.Fuzz(func(t *testing.T, payload, certificate []byte, user, signer, status string, kinds uint8, created, updated int64) {
		const years = 1 << 35 // metav1.Time has no JSON form after the year 9999
		obj := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{Name: "csr-1", UID: "u", ResourceVersion: "7", CreationTimestamp: metav1.Unix(created%years, 0)},
			Spec:       certificatesv1.CertificateSigningRequestSpec{Request: payload, SignerName: signer, Username: user},
			Status:     certificatesv1.CertificateSigningRequestStatus{Certificate: certificate},
		}
		for i, kind := range []certificatesv1.RequestConditionType{"Approved", "Denied", "Failed", "Example"} {
			if kinds&(1<<i) == 0 {
				continue
			}
			obj.Status.Conditions = append(obj.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: kind, Message: user})
			at := &obj.Status.Conditions[len(obj.Status.Conditions)-1]
			if kinds&(16<<i) == 0 {
				at.LastUpdateTime, at.Status = metav1.Unix(updated%years, 0), "True"
			}
		}
		checkTrimmed(t, obj)
		if !csr.Trimmed(obj) {
			checkEnd(t, obj)
		}
	})
}

// checkEnd compares the end of the certificate with that of crypto/x509.
func checkEnd(t *testing.T, obj *request) {
	t.Helper()
	first, _ := pem.Decode(obj.Status.Certificate)
	if first == nil {
		return
	}
	cert, err := x509.ParseCertificate(first.Bytes)
	if err != nil || cert.NotAfter.IsZero() {
		return
	}
	approved := obj.DeepCopy()
	csr.AddCondition(approved, certificatesv1.CertificateApproved, "", "", now)
	if at, ok := onlyExpired.Deadline(approved, now); !ok || !at.Equal(cert.NotAfter) {
		t.Errorf("the certificate ends at %s %t, crypto/x509 reads %s", at, ok, cert.NotAfter)
	}
}
