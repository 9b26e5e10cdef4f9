// Package docs holds the pages that the program quotes.
package docs

import (
	_ "embed" // for Reasons
)

// Reasons is docs/reasons.md.
//
//go:embed reasons.md
var Reasons string
