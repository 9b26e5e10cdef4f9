package csr

import (
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// NodeName is the node that the subject of r names, or empty.
func (r *Request) NodeName() string {
	name, found := strings.CutPrefix(r.Cert.Subject.CommonName, NodeUserPrefix)
	if !found {
		return ""
	}
	return name
}

// IsNode says whether w is a kubelet, as the API server's node authorizer sees it (Kubernetes
// pkg/auth/nodeidentifier/default.go): a user with the prefix and a name after it, in the group of nodes.
func (w Requester) IsNode() bool {
	name, found := strings.CutPrefix(w.Username, NodeUserPrefix)
	return found && name != "" && slices.Contains(w.Groups, NodeGroup)
}

// HasServingUsages says whether the usages are those of a kubelet's serving certificate, with or without key encipherment.
func (r *Request) HasServingUsages() bool {
	return isUsageSet(r.Usages, certificatesv1.UsageServerAuth)
}

// OtherSubject lists the attributes of the subject other than common name and organization.
func (r *Request) OtherSubject() []string {
	var other []string
	for name, values := range map[string][]string{
		"country": r.Cert.Subject.Country, "organizational unit": r.Cert.Subject.OrganizationalUnit,
		"locality": r.Cert.Subject.Locality, "province": r.Cert.Subject.Province, "street": r.Cert.Subject.StreetAddress,
		"postal code": r.Cert.Subject.PostalCode,
	} {
		if len(values) > 0 {
			other = append(other, name)
		}
	}
	if r.Cert.Subject.SerialNumber != "" {
		other = append(other, "serial number")
	}
	slices.Sort(other)
	return other
}
