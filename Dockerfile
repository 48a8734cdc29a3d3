# One static binary in an image without a shell: docker build -t answerd .
#
# BUILD_IMAGE needs /bin/sh, Go 1.26 and CA certificates; RUN_IMAGE needs nothing,
# scratch will do: the time zones are in the binary. There is no syntax line and no cache mount, so that a builder
# without a registry or BuildKit can build it (docker/test.sh is one).
ARG BUILD_IMAGE=golang:1.26-bookworm
ARG RUN_IMAGE=gcr.io/distroless/static-debian12:nonroot

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
# Empty means Go's default. A proxy's address stays in this stage.
ARG GOPROXY GOFLAGS
# The modules are a layer of their own: editing code doesn't fetch them again.
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=dev COMMIT
RUN CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -buildvcs=false \
    -ldflags "-s -w -X main.version=${VERSION} -X main.commit=${COMMIT}" \
    -o /out/answerd ./cmd/server
# The licences of all modules come with the binary. With the flags of the build, its packages are not compiled again.
RUN CGO_ENABLED=0 go test -trimpath ./internal/supply -run Notices -notices /out/THIRD_PARTY_NOTICES
# An empty directory: RUN mkdir would need a program that BUILD_IMAGE need not have.
WORKDIR /out/data

FROM ${RUN_IMAGE}
ARG VERSION=dev COMMIT
LABEL org.opencontainers.image.title="answerd" \
      org.opencontainers.image.description="Ask over HTTP; a language model answers with the tools of your MCP servers" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /out/answerd /answerd
COPY --from=build /src/LICENSE /out/THIRD_PARTY_NOTICES /licences/
# For EVENTS_URL=file:/data: a new volume at /data has the owner of this directory.
COPY --from=build --chown=65532:65532 /out/data /data
# distroless' nonroot; a number, because scratch has no /etc/passwd.
USER 65532:65532
# The container's loopback reaches nobody. Beyond it, answerd refuses to start until
# inbound authentication is set (AUTH_ISSUER …) or waived.
# PORT and not ADDR, so that a platform can set another.
ENV PORT=8080
EXPOSE 8080
# No curl in here: the binary asks its own GET /healthz at ADDR or PORT.
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/answerd", "health"]
ENTRYPOINT ["/answerd"]
