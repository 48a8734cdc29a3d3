// Package api holds the HTTP API's contract, openapi.yaml, so that the service can
// hand it out.
package api

import _ "embed"

// OpenAPI is openapi.yaml.
//
//go:embed openapi.yaml
var OpenAPI []byte
