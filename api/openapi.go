// Package api holds the contracts of the service, so that it can hand them out and use them:
// openapi.yaml is the native API, each file in openapi is one of the other API formats or a JSON
// Schema, and eval.schema.json is the file that answerd eval reads.
package api

import "embed"

// OpenAPI has openapi.yaml and openapi/*.yaml. The latter refer to the former by relative
// references, which are the same between the files and between the addresses of the service.
//
//go:embed openapi.yaml openapi/*.yaml openapi/*.json
var OpenAPI embed.FS

// EvalSchema is the JSON Schema of a suite of answerd eval.
//
//go:embed eval.schema.json
var EvalSchema []byte
