# Builds the same image as `make image`, with BuildKit: docker buildx build --platform linux/amd64,linux/arm64 .
# The builder is the index of both platforms. Its Go fetches the toolchain that go.mod names, and checks it by the checksum database.
FROM --platform=$BUILDPLATFORM docker.io/library/golang:1.26.8-alpine3.23@sha256:a8fa79c5bd40d880b52bd3b6d7669ecdcfd00e85facdd427d279efb5ddd79cb1 AS build
ARG TARGETOS TARGETARCH
ARG VERSION=dev
WORKDIR /src
ENV GOTOOLCHAIN=auto
COPY go.mod go.sum ./
RUN go mod download
COPY . .
RUN CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=$VERSION" -o /csr-controller-manager .

FROM scratch
ARG VERSION=dev
ARG REVISION=
LABEL org.opencontainers.image.title="csr-controller-manager" \
      org.opencontainers.image.description="Approves, signs and cleans Kubernetes CertificateSigningRequests" \
      org.opencontainers.image.source="https://github.com/csr-controller-manager/csr-controller-manager" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$REVISION"
COPY --from=build /csr-controller-manager /csr-controller-manager
USER 65532:65532
ENTRYPOINT ["/csr-controller-manager"]
