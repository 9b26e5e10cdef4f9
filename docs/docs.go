// Package docs holds the pages of the documentation that programs show.
package docs

import _ "embed"

// Reasons is reference/reasons.md, which explains each reason. kubectl csr shows its next steps.
//
//go:embed reference/reasons.md
var Reasons string
