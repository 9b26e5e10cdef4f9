package rules

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"strings"

	"github.com/google/cel-go/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
)

// Variable is a field of the variables of conditions. Their names and types do not change.
type Variable struct {
	// Path is the name in expressions.
	Path string
	// Doc is what it holds.
	Doc string
	// MaxBytes is the length that the estimate of the cost assumes. Zero means that requestLimits bound it.
	MaxBytes uint64
	declared *apiservercel.DeclType
}

// Type returns the type in CEL.
func (v Variable) Type() string { return cel.FormatCELType(v.declared.CelType()) }

var (
	text    = apiservercel.StringType
	texts   = apiservercel.NewListType(text, -1)
	byText  = apiservercel.NewMapType(text, text, -1)
	listsBy = apiservercel.NewMapType(text, texts, -1)
)

// Variables returns all fields. A request is what the signer would sign.
func Variables() []Variable {
	return []Variable{
		{"request.commonName", "common name of the subject, or an empty text", 0, text},
		{"request.organizations", "organizations of the subject", 0, texts},
		{"request.names", "DNS names, in lower case and without a dot at the end", 0, texts},
		{"request.addresses", "IP addresses as text, for `ip()`", 0, texts},
		{"request.emails", "e-mail addresses", 0, texts},
		{"request.uris", "URIs as the certificate would hold them", 0, texts},
		{"request.usages", "usages as in `spec.usages`", 0, texts},
		{"request.duration", "lifetime of the certificate that would be issued: the requested one, or the default of the signer, within its limits", 0, apiservercel.DurationType},
		{"request.key.algorithm", "`RSA`, `ECDSA` or `Ed25519`", 16, text},
		{"request.key.bits", "size of the key", 0, apiservercel.IntType},
		{"requester.username", "user name", 1024, text},
		{"requester.uid", "UID, or an empty text", 128, text},
		{"requester.groups", "groups", 0, texts},
		{"requester.extra", "extra of the authenticator: for each key a list", 0, listsBy},
		{"requester.serviceAccount.namespace", "namespace of the ServiceAccount that the requester is", 63, text},
		{"requester.serviceAccount.name", "name of that ServiceAccount", 253, text},
		{"object.name", "name of the CertificateSigningRequest, which the requester chose", 253, text},
		{"object.labels", "its labels, which the requester chose and others may change", 0, byText},
		{"object.annotations", "its annotations, likewise", 0, byText},
		{"object.created", "its creation, by the API server's clock", 0, apiservercel.TimestampType},
	}
}

// declare returns the options that declare the variables, and the types of their fields.
func declare(env *cel.Env) ([]cel.EnvOption, error) {
	objects := map[string]*apiservercel.DeclType{}
	var roots []*apiservercel.DeclType
	for _, each := range Variables() {
		path := strings.Split(each.Path, ".")
		inner := each.declared
		for i := len(path) - 1; i > 0; i-- { // the objects around the field, from the inside
			name := strings.Join(path[:i], ".")
			object, known := objects[name]
			if !known {
				object = apiservercel.NewObjectType("rules."+name, map[string]*apiservercel.DeclField{})
				objects[name] = object
				if i == 1 {
					roots = append(roots, object)
				}
			}
			object.Fields[path[i]] = apiservercel.NewDeclField(path[i], inner, true, nil, nil)
			inner = object
		}
	}
	options, err := apiservercel.NewDeclTypeProvider(roots...).EnvOptions(env.CELTypeProvider())
	for _, root := range roots {
		options = append(options, cel.Variable(strings.TrimPrefix(root.TypeName(), "rules."), root.CelType()))
	}
	return options, err
}

// variablesOf returns the variables for s, without the ServiceAccount of the requester.
func variablesOf(s *Subject) map[string]any {
	algorithm, bits := keyOf(s.Cert.PublicKey)
	addresses := make([]string, len(s.Cert.IPAddresses))
	for i, address := range s.Cert.IPAddresses {
		addresses[i] = address.String()
	}
	uris := make([]string, len(s.Cert.URIs))
	for i, uri := range s.Cert.URIs {
		uris[i] = uri.String()
	}
	usages := make([]string, len(s.Usages))
	for i, usage := range s.Usages {
		usages[i] = string(usage)
	}
	extra := make(map[string][]string, len(s.Requester.Extra))
	for key, values := range s.Requester.Extra {
		extra[key] = values
	}
	return map[string]any{
		"request": map[string]any{
			"commonName": s.Cert.Subject.CommonName, "organizations": s.Cert.Subject.Organization,
			"names": s.Cert.DNSNames, "addresses": addresses, "emails": s.Cert.EmailAddresses, "uris": uris,
			"usages": usages, "duration": s.Facts.Lifetime, "key": map[string]any{"algorithm": algorithm, "bits": bits},
		},
		"requester": map[string]any{
			"username": s.Requester.Username, "uid": s.Requester.UID, "groups": s.Requester.Groups, "extra": extra,
		},
		"object": map[string]any{
			"name": s.Name, "labels": s.Labels, "annotations": s.Annotations, "created": s.Created,
		},
	}
}

// keyOf returns the algorithm and the size of a public key. csr.Parse permits no others.
func keyOf(public crypto.PublicKey) (algorithm string, bits int) {
	switch key := public.(type) {
	case *rsa.PublicKey:
		return "RSA", key.N.BitLen()
	case *ecdsa.PublicKey:
		return "ECDSA", key.Curve.Params().BitSize
	case ed25519.PublicKey:
		return "Ed25519", 256
	}
	return "", 0
}
