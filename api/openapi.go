// Package api holds the HTTP API's contract, so that the service can hand it out: openapi.yaml
// is the native API, and each file in openapi one of the other API formats.
package api

import "embed"

// OpenAPI has openapi.yaml and openapi/*.yaml. The latter refer to the former by relative
// references, which are the same between the files and between the addresses of the service.
//
//go:embed openapi.yaml openapi/*.yaml
var OpenAPI embed.FS
