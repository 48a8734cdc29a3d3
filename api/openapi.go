// Package api embeds the contracts of the service, so that answerd can serve them and validate against them:
// openapi.yaml is the native API, and each file in openapi is another API format or a JSON Schema.
package api

import "embed"

// OpenAPI has openapi.yaml and the files in openapi. Those files refer to openapi.yaml by relative references, which are
// the same for the files as for the URLs at which answerd serves them.
//
//go:embed openapi.yaml openapi/*.yaml openapi/*.json
var OpenAPI embed.FS

// EvalSchema is the JSON Schema of a suite for answerd eval.
//
//go:embed openapi/eval.schema.json
var EvalSchema []byte
