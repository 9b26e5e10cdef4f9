package csr

// Objection says why something is not permitted, in a clause for a message. NoObjection permits it.
type Objection string

// NoObjection is the Objection to what is permitted.
const NoObjection Objection = ""
