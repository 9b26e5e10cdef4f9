module github.com/csr-controller-manager/csr-controller-manager/hack/docs

go 1.27.0
