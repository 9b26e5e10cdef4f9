module github.com/csr-controller-manager/csr-controller-manager/hack/docs

go 1.26.0
