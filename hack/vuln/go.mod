module github.com/csr-controller-manager/csr-controller-manager/hack/vuln

go 1.27.0

// Vulnerable on purpose: never update it.
require golang.org/x/text v0.3.6
