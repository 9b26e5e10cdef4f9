package entries

import "time"

// StatusSuffix ends the name of the ConfigMap, beside the list, in which the manager publishes an Enforcement in JSON, under
// the key StatusKey.
const (
	StatusSuffix = "-status"
	StatusKey    = "enforcement"
)

// MostServers is the largest number of API servers in an Enforcement. A user who may write EndpointSlices in namespace default
// could name any number of addresses.
const MostServers = 100

// Enforcement is which API servers refuse what a version of the list names.
type Enforcement struct {
	// Digest is Entries.Digest of that version.
	Digest string `json:"digest"`
	// Servers are all API servers, sorted by address.
	Servers []Server `json:"servers"`
}

// Server is an API server. It enforces the version if Problem is empty.
type Server struct {
	// Address is host:port.
	Address string `json:"address"`
	// Since is since when Problem is as it is, to the second.
	Since time.Time `json:"since"`
	// Problem is why it is not known to enforce this version.
	Problem string `json:"problem,omitempty"`
}
