package csr

import (
	"crypto/sha256"
	"encoding/hex"
)

// TokenGroupPrefix begins the groups that bind a bootstrap token to one node.
const TokenGroupPrefix = "system:bootstrappers:node:"

// TokenGroup is the group of whoever may ask for a first certificate of node and of no other. A node's name can be longer
// than the API server lets the name of such a group be, so it holds the first 16 hex digits of the name's SHA-256.
func TokenGroup(node string) string {
	sum := sha256.Sum256([]byte(node))
	return TokenGroupPrefix + hex.EncodeToString(sum[:8])
}
