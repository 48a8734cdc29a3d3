// Package importtest checks rules of the source tree that the compiler does not know, above
// all which package may import which. It has tests only:
//
//	go test ./internal/importtest
//
// A new package gets a line in the table packages. A test that fails names the file or the
// package and the rule.
package importtest

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// packages lists what each package may import: ours are packages below internal, outside
// are prefixes of other modules' packages. The standard library is always allowed. Blank
// lines between the entries keep gofmt from realigning all of them for one longer name.
var packages = map[string]struct{ ours, outside []string }{
	"answerd/api": {},

	"answerd/bench": {outside: []string{"github.com/nats-io/nats-server/v2/server"}},

	"answerd/internal/event": {ours: []string{"values"}, outside: jsonv2},

	"answerd/internal/values": {},

	"answerd/internal/help": {},

	"answerd/internal/sse": {},

	"answerd/internal/compute": {},

	"answerd/internal/console": {},

	"answerd/internal/client": {ours: []string{"sse"}},

	"answerd/internal/terminal": {ours: []string{"client", "event", "sse"}, outside: []string{"github.com/yuin/goldmark", "golang.org/x/term", "golang.org/x/text/width"}},

	"answerd/internal/eval": {ours: []string{"client", "event", "mcp/schema"}, outside: append(jsonv2, "go.yaml.in/yaml/v3")},

	"answerd/internal/lru": {},

	"answerd/internal/tlsconfig": {ours: []string{"auth/fetch"}},

	"answerd/internal/tlsconfig/tlstest": {ours: []string{"tlsconfig"}},

	"answerd/internal/auth": {ours: []string{"auth/fetch", "auth/issuer", "auth/strictjson"}, outside: append(jsonv2, "github.com/golang-jwt/jwt/v5")},

	// token may import auth, for Identity and Secret; auth must not import token.
	"answerd/internal/auth/token": {ours: []string{"auth", "auth/fetch", "auth/issuer", "auth/strictjson", "lru"}},

	"answerd/internal/auth/ocivault": {ours: []string{"auth", "auth/fetch"}, outside: []string{"github.com/oracle/oci-go-sdk/v65"}},

	"answerd/internal/auth/fetch": {},

	"answerd/internal/auth/sealed": {ours: []string{"values"}},

	"answerd/internal/auth/issuer": {ours: []string{"auth/fetch", "auth/strictjson"}},

	"answerd/internal/auth/signin": {ours: []string{"auth/issuer"}},

	"answerd/internal/auth/strictjson": {outside: jsonv2},

	"answerd/internal/auth/authtest": {},

	"answerd/internal/telemetry": {outside: []string{"go.opentelemetry.io/", "github.com/prometheus/client_golang"}},

	"answerd/internal/llm": {ours: []string{"auth/strictjson"}, outside: jsonv2},

	// Spans have content only if the operator wants it.
	"answerd/internal/llm/genai": {ours: []string{"llm"}, outside: otelAPI},

	"answerd/internal/llm/openai": {ours: []string{"auth/fetch", "compute", "llm", "llm/genai", "sse", "tlsconfig"}, outside: append(append(otelAPI, jsonv2...), "github.com/openai/openai-go/v3")},

	"answerd/internal/llm/texttool": {ours: []string{"llm"}, outside: jsonv2},

	"answerd/internal/llm/llmtest": {ours: []string{"llm"}},

	"answerd/internal/mcp": {ours: []string{"auth", "auth/fetch", "auth/sealed", "auth/token", "lru", "mcp/catalog", "mcp/config", "mcp/content", "mcp/limiter", "mcp/oauth", "mcp/schema", "mcp/session", "mcp/transport", "mcp/wire", "tlsconfig", "values"}, outside: append(jsonv2, "github.com/modelcontextprotocol/go-sdk")},

	"answerd/internal/mcp/session": {ours: []string{"auth/fetch", "mcp/content", "mcp/schema", "mcp/transport", "mcp/wire"}, outside: []string{"github.com/modelcontextprotocol/go-sdk"}},

	"answerd/internal/mcp/config": {ours: []string{"auth", "auth/fetch", "auth/token", "mcp/oauth", "tlsconfig"}, outside: append(jsonv2, "github.com/modelcontextprotocol/go-sdk")},

	"answerd/internal/mcp/catalog": {ours: []string{"mcp/config", "mcp/schema", "mcp/wire"}},

	"answerd/internal/mcp/content": {ours: []string{"compute", "mcp/schema", "mcp/wire"}, outside: jsonv2},

	"answerd/internal/mcp/schema": {ours: []string{"mcp/wire"}, outside: jsonv2},

	// The protocol of /mcp from the server's side: the go-sdk stays below internal/mcp, and
	// what a call means stays in api, which is passed in as a function.
	"answerd/internal/mcp/mcpserver": {outside: []string{"github.com/modelcontextprotocol/go-sdk"}},

	"answerd/internal/mcp/conformance": {},

	"answerd/internal/mcp/limiter": {},

	"answerd/internal/agent": {ours: []string{"event", "llm", "mcp", "mcp/catalog", "mcp/content", "auth", "agent/admission", "agent/attachment", "agent/budget", "agent/definition", "agent/delivery", "agent/output", "agent/prompt", "agent/record", "agent/recorded", "agent/replay", "agent/thread", "agent/toolsearch", "agent/usage", "agent/webhook", "agent/window", "llm/genai", "export"}, outside: otelAPI},

	"answerd/internal/agent/budget":     {ours: []string{"event", "llm", "mcp/content"}},
	"answerd/internal/agent/attachment": {ours: []string{"llm", "mcp/content"}},
	"answerd/internal/agent/recorded":   {ours: []string{"agent/budget", "event", "llm", "mcp/content"}},
	"answerd/internal/agent/output":     {ours: []string{"mcp/schema"}},
	"answerd/internal/agent/replay":     {ours: []string{"event"}},
	"answerd/internal/agent/thread":     {ours: []string{"compute", "event", "llm", "agent/attachment", "mcp/content"}, outside: jsonv2},
	"answerd/internal/agent/toolsearch": {ours: []string{"agent/window", "llm", "mcp/catalog", "mcp/content"}},
	"answerd/internal/agent/usage":      {ours: []string{"auth", "event", "values"}, outside: otelAPI},
	"answerd/internal/agent/window":     {ours: []string{"event", "llm"}},

	"answerd/internal/agent/admission": {},

	"answerd/internal/agent/record": {ours: []string{"agent/prompt", "agent/replay", "event", "export", "llm", "mcp/catalog", "values"}},

	"answerd/internal/receipt": {ours: []string{"event", "export"}, outside: []string{"github.com/golang-jwt/jwt/v5"}},

	"answerd/internal/rerun": {ours: []string{"agent", "agent/definition", "agent/prompt", "agent/record", "agent/recorded", "agent/replay", "auth", "event", "event/memory", "export", "llm", "mcp", "mcp/catalog", "mcp/content"}, outside: jsonv2},

	"answerd/internal/export": {ours: []string{"event", "llm"}},

	"answerd/internal/agent/prompt": {ours: []string{"mcp/catalog"}},

	"answerd/internal/agent/definition": {ours: []string{"agent/budget", "agent/prompt", "llm", "mcp/catalog", "mcp/config", "mcp/schema"}, outside: []string{"go.yaml.in/yaml/v3"}},

	"answerd/internal/agent/agenttest": {ours: []string{"agent", "auth", "event", "event/memory", "llm", "llm/llmtest", "llm/openai", "mcp", "mcp/config"}, outside: []string{"github.com/modelcontextprotocol/go-sdk"}},

	"answerd/internal/api/native": {ours: []string{"event", "agent", "agent/attachment", "agent/definition", "agent/thread", "sse"}, outside: jsonv2},

	"answerd/internal/api/typeerror": {outside: jsonv2},

	"answerd/internal/api/chat": {ours: []string{"event", "agent", "agent/output", "sse", "api/typeerror"}},

	"answerd/internal/api/responses": {ours: []string{"event", "agent", "agent/output", "agent/thread", "sse", "api/typeerror"}},

	"answerd/internal/api/aisdk": {ours: []string{"event", "agent", "agent/thread", "sse", "api/typeerror"}},

	"answerd/internal/api/agui": {ours: []string{"event", "agent", "agent/thread", "sse", "api/typeerror"}},

	// The structured content of the tool is the native answer, so it is made of it.
	"answerd/internal/api/mcptool": {ours: []string{"event", "agent", "api/native"}},

	"answerd/internal/api": {ours: []string{"agent", "agent/definition", "agent/record", "agent/thread", "agent/usage", "event", "auth", "sse", "mcp/mcpserver", "api/native", "api/chat", "api/responses", "api/aisdk", "api/agui", "api/mcptool", "receipt"}, outside: []string{"github.com/go-chi/chi/v5"}},

	"answerd/internal/demo": {ours: []string{"auth", "mcp/mcpserver"}, outside: []string{"github.com/golang-jwt/jwt/v5", "github.com/modelcontextprotocol/go-sdk"}},

	"answerd/internal/importtest": {},

	"answerd/internal/faults": {},

	"answerd/internal/supply": {},

	"answerd/internal/api/scenario": {ours: []string{"event", "event/memory"}},

	// It has a NATS cluster, for the tests of internal/event/jetstream and internal/faults.
	"answerd/internal/event/eventtest": {ours: []string{"event", "values"}, outside: []string{"github.com/nats-io/"}},

	"answerd/internal/event/jetstream": {ours: []string{"event", "event/jetstream/batch", "event/jetstream/embedded", "event/jetstream/share", "event/jetstream/threads", "values"}, outside: []string{"github.com/nats-io/"}},

	"answerd/internal/event/jetstream/embedded": {ours: []string{"event"}, outside: []string{"github.com/nats-io/nats-server/v2/server"}},

	"answerd/internal/event/jetstream/share": {ours: []string{"event"}, outside: []string{"github.com/nats-io/"}},

	"answerd/internal/event/jetstream/batch":   {ours: []string{"event"}},
	"answerd/internal/event/jetstream/threads": {ours: []string{"event", "event/threadindex"}, outside: []string{"github.com/nats-io/"}},

	"answerd/internal/event/memory": {ours: []string{"event", "event/memory/threads", "values"}},

	"answerd/internal/event/memory/threads": {ours: []string{"event", "event/threadindex"}},

	"answerd/internal/event/threadindex": {ours: []string{"event"}},

	"answerd/cmd/server": {
		ours:    []string{"agent", "agent/admission", "agent/definition", "agent/delivery", "agent/prompt", "agent/record", "agent/usage", "agent/webhook", "api", "auth", "auth/fetch", "auth/ocivault", "auth/sealed", "auth/signin", "auth/token", "console", "demo", "eval", "event", "event/jetstream", "event/memory", "export", "llm", "llm/genai", "llm/openai", "llm/texttool", "mcp", "mcp/catalog", "mcp/config", "receipt", "rerun", "telemetry", "terminal", "tlsconfig", "values"},
		outside: append(otelAPI, "golang.org/x/term", "github.com/caarlos0/env/v11", "github.com/KimMachineGun/automemlimit/memlimit"),
	},

	"answerd/internal/mcp/transport":               {ours: []string{"auth", "auth/token", "compute", "mcp/wire", "sse"}, outside: append(jsonv2, "github.com/modelcontextprotocol/go-sdk", "github.com/coder/websocket")},
	"answerd/internal/mcp/transport/transporttest": {},

	"answerd/internal/mcp/wire": {outside: jsonv2},

	"answerd/internal/mcp/oauth": {ours: []string{"auth", "auth/fetch", "auth/sealed", "auth/token", "lru", "tlsconfig", "values"}, outside: []string{"github.com/golang-jwt/jwt/v5", "golang.org/x/oauth2"}},

	"answerd/internal/mcp/oauth/oauthtest": {outside: []string{"github.com/golang-jwt/jwt/v5"}},

	"answerd/internal/agent/delivery": {ours: []string{"agent/webhook", "auth", "auth/fetch", "event"}, outside: otelAPI},

	"answerd/internal/agent/webhook": {ours: []string{"auth", "auth/fetch"}, outside: append(jsonv2, otelAPI...)},

	"answerd/internal/telemetry/otlptest": {outside: []string{"google.golang.org/protobuf/encoding/protowire"}},

	"answerd/internal/agent/webhook/webhooktest": {ours: []string{"auth"}},
}

// jsonv2 has the mirror of encoding/json/v2 and encoding/json/jsontext of Go 1.27.
var jsonv2 = []string{"github.com/go-json-experiment/json"}

// otelAPI has the packages of OpenTelemetry that may be used without its SDK.
var otelAPI = []string{
	"go.opentelemetry.io/otel/attribute", "go.opentelemetry.io/otel/codes", "go.opentelemetry.io/otel/metric",
	"go.opentelemetry.io/otel/propagation", "go.opentelemetry.io/otel/trace", "go.opentelemetry.io/otel/semconv",
}

// goPackage is a package as the go command describes it.
type goPackage struct {
	ImportPath string
	Standard   bool
	Imports    []string
}

func TestImportsFollowTheTable(t *testing.T) {
	for _, p := range listPackages(t) {
		rule, known := packages[p.ImportPath]
		if !known {
			t.Errorf("%s is not in the table of packages, want a row", p.ImportPath)
			continue
		}
		for _, imported := range p.Imports {
			if !mayImport(rule.ours, rule.outside, imported, p.ImportPath) {
				t.Errorf("%s imports %s, want an import that the table allows", p.ImportPath, imported)
			}
		}
	}
}

// mayImport reports whether the package by may import another one.
func mayImport(ours, outside []string, imported, by string) bool {
	if internal, ok := strings.CutPrefix(imported, "answerd/internal/"); ok {
		// Every package that logs may name a page of the documentation.
		return internal == "help" || slices.Contains(ours, internal)
	}
	if imported == "answerd/api" {
		return by == "answerd/cmd/server" || by == "answerd/internal/eval"
	}
	if first, _, _ := strings.Cut(imported, "/"); !strings.Contains(first, ".") {
		// An API format translates between events and bytes and does not use HTTP.
		return !(strings.HasPrefix(by, "answerd/internal/api/") && imported == "net/http")
	}
	return slices.ContainsFunc(outside, func(prefix string) bool { return strings.HasPrefix(imported, prefix) })
}

// listPackages asks the go command for every package of the module.
func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Standard,Imports", "answerd/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var listed []goPackage
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return listed
		} else if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, p)
	}
}
