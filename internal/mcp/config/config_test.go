package config

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"answerd/internal/auth"
	"answerd/internal/tlsconfig"
)

var testEnv = map[string]string{"HOST": "example.com", "KEY": "${TOKEN}", "TOKEN": "secret-token", "HOME_DIR": "/home/x"}

func testGetenv(name string) string { return testEnv[name] }

// loadFile returns the servers of a file.
func loadFile(t *testing.T, file string) []Server {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	servers, _, err := Parse(data, testGetenv)
	if err != nil {
		t.Fatal(err)
	}
	return servers
}

// The file has every field. The servers keep its order, and the value of a variable is not
// expanded again.
func TestParseReadsEveryField(t *testing.T) {
	want := []Server{
		{
			Name: "zeta", Type: TypeHTTP, URL: "https://example.com/mcp?x=1",
			Headers:     map[string]auth.Secret{"X-Key": auth.NewSecret("key ${TOKEN}"), "X-Plain": auth.NewSecret("$5")},
			Query:       map[string]string{"tenant": "acme", "empty": ""},
			BearerToken: auth.NewSecret("secret-token"), ToolPrefix: "z",
			Timeout: 90 * time.Second, MaxTime: 15 * time.Minute, MaxConcurrentCalls: 3, StandaloneStream: new(true),
			AllowTools: []string{"get_*"}, DenyTools: []string{"get_secret"},
			Approval: ApproveDestructive, ApproveTools: []string{"send_*"},
			IdempotentTools: []string{"get_*"}, ProtocolVersion: "2025-11-25", Pin: true,
			Instructions: true, Meta: []string{"run_id", "call_id"},
		},
		{Name: "alpha", Type: TypeHTTP, URL: "http://127.0.0.1:9000/mcp", Auth: AuthJWT, Timeout: 2500 * time.Millisecond},
		{Name: "files", Type: TypeStdio, Command: "mcp-files", Args: []string{"--root", "/home/x"},
			Env: map[string]auth.Secret{"KEY": auth.NewSecret("${TOKEN}")}, WorkDir: "/srv"},
		{Name: "socket", Type: TypeWebSocket, URL: "wss://example.com/mcp", Disabled: true, Meta: []string{}},
	}
	if got := loadFile(t, "testdata/mcp.json"); !reflect.DeepEqual(got, want) {
		t.Errorf("servers:\n got %+v\nwant %+v", got, want)
	}
}

// A file of the Rust program of seed 004 loads unchanged.
func TestParseReadsTheFileOfSeed004(t *testing.T) {
	all := Server{Hidden: true, Timeout: 30 * time.Second, MaxTime: 30 * time.Second, MaxConcurrentCalls: 10}
	fs, web, tagged, ws := all, all, all, all
	fs.Name, fs.Type, fs.Command, fs.Args = "filesystem_server", TypeStdio, "mcp-server-filesystem", []string{"--root", "/tmp"}
	fs.ToolPrefix, fs.Resources = "fs", []string{"file://**"}
	web.Name, web.Type, web.URL, web.Timeout, web.MaxTime = "web", TypeHTTP, "http://localhost:8080/mcp", 5*time.Second, 5*time.Second
	web.Headers = map[string]auth.Secret{"Authorization": auth.NewSecret("Bearer token")}
	tagged.Name, tagged.Type, tagged.URL, tagged.Disabled = "Tagged", TypeHTTP, "http://localhost:8081/mcp", true
	tagged.BearerToken = auth.NewSecret("own")
	ws.Name, ws.Type, ws.URL = "ws", TypeWebSocket, "ws://localhost:9090/mcp"
	want := []Server{fs, web, tagged, ws}
	if got := loadFile(t, "testdata/seed004.json"); !reflect.DeepEqual(got, want) {
		t.Errorf("servers:\n got %+v\nwant %+v", got, want)
	}
}

// fmt must not print the secrets of a configuration.
func TestServerPrintsNoSecrets(t *testing.T) {
	if s := fmt.Sprintf("%+v %#v", loadFile(t, "testdata/mcp.json"), loadFile(t, "testdata/seed004.json")); strings.Contains(s, "secret-token") {
		t.Errorf("printed configuration = %s, want no secret in it", s)
	}
}

// fileWithHTTPServer returns a file with one server of that JSON, its fields on line 3.
func fileWithHTTPServer(fields string) string {
	return "{\n \"mcpServers\": {\"crm\":\n  {\"url\": \"https://h\"" + fields + "}\n }\n}"
}

// fileWithStdioServer returns a file with one server of type stdio, its fields on line 3.
func fileWithStdioServer(fields string) string {
	return "{\n \"mcpServers\": {\"crm\":\n  {\"command\": \"x\", " + fields + "}\n }\n}"
}

// Errors are one line and quote no values.
func TestParseErrorsNameServerFieldAndLine(t *testing.T) {
	for file, want := range map[string]string{
		``:                                   `the JSON ends too early`,
		`{`:                                  `the JSON ends too early`,
		"{\n\"mcpServers\": {},,\n}":         `line 2: invalid character ','`,
		`[]`:                                 `the file: must be an object, not an array (line 1)`,
		`{}`:                                 `the file: has no mcpServers (line 1)`,
		"\n\n{}":                             `the file: has no mcpServers (line 3)`,
		"\n{\"servers\":\n[{},\n{\"x\":1}]}": `servers[0], name: must be 1 to 64 printable characters (line 3)`,
		"{\"mcpServers\":\n\"\\ud800 s\"}":   `line 2: invalid surrogate pair`,
		"{\"mcpServers\":\n\"\\usecret\"}":   `line 2: invalid escape sequence`,
		`{"mcpServers":{}} x`:                `line 1: there is more text after the JSON`,
		`{"mcpServers":{},"mcpServers":{}}`:  `line 1: "mcpServers" appears twice`,
		`{"mcpServers":{},"servers":[]}`:     `the file: has both mcpServers and servers (line 1)`,
		`{"mcpServers":[]}`:                  `the file, mcpServers: must be an object, not an array (line 1)`,
		"{\"mcpServers\":{\"\xff\":{}}}":     `not UTF-8`,
		`{"mcpServers":` + strings.Repeat(`{"a":`, 100) + `1` + strings.Repeat(`}`, 100) + `}`: `line 1: nested deeper than 16 levels`,
		`{"mcpServers":{"":{"url":"https://h"}}}`:                                              `server "", name: must be 1 to 64 printable characters (line 1)`,
		`{"mcpServers":{"` + strings.Repeat("x", 65) + `":{"url":"https://h"}}}`:               `server "` + strings.Repeat("x", 65) + `", name: must be 1 to 64 printable characters (line 1)`,
		`{"mcpServers":{"a\n":{"url":"https://h"}}}`:                                           `server "a\n", name: must be 1 to 64 printable characters (line 1)`,
		`{"mcpServers":{"a":7}}`:                                                               `server "a": must be an object, not a number (line 1)`,
		`{"mcpServers":{"a":{}}}`:                                                              `server "a", url: is missing (line 1)`,
		"{\"mcpServers\":{\"a\":{\"args\":[],\n\"commmand\":\"x\"}}}":                          `server "a", url: is missing (line 1); server "a", commmand: unknown member (line 2)`,
		`{"mcpServers":{"a":{"type":"stdio","cmd":"x"}}}`:                                      `server "a": command is missing (line 1); server "a", cmd: unknown member (line 1)`,
		`{"$schema":"x","mcpservers":{}}`:                                                      `the file: has no mcpServers (line 1); the file, mcpservers: unknown member (line 1)`,
		`{"mcpServers":{"a":{"url":"x","command":"y"}}}`:                                       `server "a": has both url and command (line 1)`,
		`{"mcpServers":{"a":{"type":"stdio"}}}`:                                                `server "a": command is missing (line 1)`,
		`{"mcpServers":{"a":{"url":"ftp://h"}}}`:                                               `server "a", url: must begin with http:// or https:// (line 1)`,
		`{"mcpServers":{"a":{"url":"https://u:p@h"}}}`:                                         `server "a", url: must not hold a user or password (line 1)`,
		`{"mcpServers":{"a":{"url":"https://h/#x"}}}`:                                          `server "a", url: must not have a fragment (line 1)`,
		`{"mcpServers":{"a":{"url":"https://"}}}`:                                              `server "a", url: has no host (line 1)`,
		`{"mcpServers":{"a":{"url":"https://h:port"}}}`:                                        `server "a", url: is not a URL (line 1)`,
		`{"mcpServers":{"a":{"url":"http://h","bearerToken":"x"}}}`:                            `server "a", url: must be https://, since bearerToken would be sent unencrypted (line 1)`,
		`{"mcpServers":{"a":{"url":"http://h","headers":{"authorization":"x"}}}}`:              `server "a", url: must be https://, since headers.authorization would be sent unencrypted (line 1)`,
		fileWithHTTPServer(`, "enabled": "yes"`):                                               `server "crm", enabled: must be a boolean, not a string (line 3)`,
		fileWithHTTPServer(`, "type": "carrier-pigeon"`):                                       `server "crm", type: must be http, stdio, websocket or sse (line 3)`,
		fileWithHTTPServer(`, "headers": {"X-Key": 7}`):                                        `server "crm", headers.X-Key: must be a string, not a number (line 3)`,
		fileWithHTTPServer(`, "headers": {"X Key": "secret"}`):                                 `server "crm", headers: "X Key" is not a header name (line 3)`,
		fileWithHTTPServer(`, "headers": {"X-Key": "secret\r\n"}`):                             `server "crm", headers.X-Key: has characters that a header cannot have (line 3)`,
		fileWithHTTPServer(`, "headers": {"X-Key": "a", "x-key": "b"}`):                        `server "crm", headers.x-key: appears twice, since case does not matter in names (line 3)`,
		fileWithHTTPServer(`, "headers": {"Host": "x"}`):                                       `server "crm", headers.Host: is set by the transport (line 3)`,
		fileWithHTTPServer(`, "headers": {"X-Key": "${MISSING}"}`):                             `server "crm", headers.X-Key: needs the environment variable MISSING, which is not set (line 3)`,
		fileWithHTTPServer(`, "headers": {"X-Key": "${MISSING"}`):                              `server "crm", headers.X-Key: has a ${ that is not ${NAME} or ${NAME:-default} (line 3)`,
		fileWithHTTPServer(`, "headers": {"X-Key": "${MISSING:-${PATH}}"}`):                    `server "crm", headers.X-Key: has a ${ inside of another ${…}, which is not supported (line 3)`,
		fileWithHTTPServer(`, "headers": {"X-Key": "${file:${PATH}/key}"}`):                    `server "crm", headers.X-Key: has a ${ inside of another ${…}, which is not supported (line 3)`,
		fileWithHTTPServer(`, "query": {"q": "${1A}"}`):                                        `server "crm", query.q: has a ${ that is not ${NAME} or ${NAME:-default} (line 3)`,
		fileWithHTTPServer(`, "bearerToken": "a\nb"`):                                          `server "crm", bearerToken: has characters that a header cannot have (line 3)`,
		fileWithHTTPServer(`, "bearerToken": "x", "auth": {"type":"jwt"}`):                     `server "crm", bearerToken: cannot be set together with auth type jwt (line 3)`,
		fileWithHTTPServer(`, "auth": {"type": "jwt", "issuer": "https://i"}`):                 `server "crm", auth.issuer: is not for auth type jwt (line 3)`,
		fileWithHTTPServer(`, "auth": {}`):                                                     `server "crm", auth: has no type (line 3)`,
		fileWithHTTPServer(`, "timeout": 0`):                                                   `server "crm", timeout: must be more than 0 and at most 24h0m0s (line 3)`,
		fileWithHTTPServer(`, "timeout": 5, "maxTime": 3`):                                     `server "crm", maxTime: must be no less than timeout (line 3)`,
		fileWithStdioServer(`"tls": {"caFile": "ca.pem"}`):                                     `server "crm", tls: a server of type stdio has none (line 3)`,
		fileWithHTTPServer(`, "tls": {"certFile": "c.pem"}`):                                   `server "crm", tls.keyFile: must be set, since the client certificate is (line 3)`,
		fileWithHTTPServer(`, "tls": {"caFile": 1}`):                                           `server "crm", tls.caFile: must be a string, not a number (line 3)`,
		fileWithHTTPServer(`, "tls": "ca.pem"`):                                                `server "crm", tls: must be an object, not a string (line 3)`,
		`{"mcpServers":{"crm":{"url":"http://h","tls":{"caFile":"ca.pem"}}}}`:                  `server "crm", tls: has no effect, since url is http:// (line 1)`,
		fileWithStdioServer(`"standaloneStream": true`):                                        `server "crm", standaloneStream: is for servers of type http (line 3)`,
		fileWithHTTPServer(`, "timeout": "soon"`):                                              `server "crm", timeout: must be a duration such as 30s, or a number of seconds, of more than 0 and at most 24h0m0s (line 3)`,
		fileWithHTTPServer(`, "maxConcurrentCalls": 0`):                                        `server "crm", maxConcurrentCalls: must be a whole number above 0 (line 3)`,
		fileWithHTTPServer(`, "maxConcurrentCalls": 100000`):                                   `server "crm", maxConcurrentCalls: must be 1 to 10000 (line 3)`,
		fileWithHTTPServer(`, "protocolVersion": "2020-01-01"`):                                `server "crm", protocolVersion: must be one of 2026-07-28, 2025-11-25, 2025-06-18, 2025-03-26, 2024-11-05 (line 3)`,
		fileWithHTTPServer(`, "tools": {"allow": ["[a"]}`):                                     `server "crm", tools.allow: "[a" is not a pattern (line 3)`,
		fileWithHTTPServer(`, "tools": {"deny": [7]}`):                                         `server "crm", tools.deny[0]: must be a string, not a number (line 3)`,
		fileWithHTTPServer(`, "tools": {"approve": ["[a"]}`):                                   `server "crm", tools.approve: "[a" is not a pattern (line 3)`,
		fileWithHTTPServer(`, "approval": "sometimes"`):                                        `server "crm", approval: must be never, destructive or always (line 3)`,
		fileWithHTTPServer(`, "approval": ""`):                                                 `server "crm", approval: must be never, destructive or always (line 3)`,
		fileWithHTTPServer(`, "type": "http", "command": "x"`):                                 `server "crm", command: is for servers of type stdio (line 3)`,
		fileWithHTTPServer(`, "args": ["x"]`):                                                  `server "crm", args: is for servers of type stdio (line 3)`,
		fileWithHTTPServer(`, "workDir": "/x"`):                                                `server "crm", workDir: is for servers of type stdio (line 3)`,
		fileWithHTTPServer(`, "command": "x"`):                                                 `server "crm": has both url and command (line 2)`,
		fileWithHTTPServer(`, "type": "stdio", "command": "x"`):                                `server "crm", url: a server of type stdio has none (line 3)`,
		fileWithStdioServer(`"headers": {"A": "secret"}`):                                      `server "crm", headers: a server of type stdio has none (line 3)`,
		fileWithStdioServer(`"bearerToken": "secret"`):                                         `server "crm", bearerToken: a server of type stdio gets none; put it into env (line 3)`,
		fileWithStdioServer(`"auth": {"type": "jwt"}`):                                         `server "crm", auth.type: a server of type stdio gets no token; put it into env (line 3)`,
		fileWithStdioServer(`"env": {"A=B": "secret"}`):                                        `server "crm", env: "A=B" is not the name of a variable (line 3)`,
		fileWithStdioServer(`"env": {"": "secret"}`):                                           `server "crm", env: "" is not the name of a variable (line 3)`,
		fileWithStdioServer(`"env": {"A": "secret\u0000"}`):                                    `server "crm", env.A: has a NUL byte (line 3)`,
		fileWithStdioServer(`"args": ["a", "secret\u0000"]`):                                   `server "crm", args: one has a NUL byte (line 3)`,
		fileWithStdioServer(`"workDir": "\u0000"`):                                             `server "crm", workDir: has a NUL byte (line 3)`,
		`{"mcpServers":{"a":{"command":"\u0000"}}}`:                                            `server "a", command: has a NUL byte (line 1)`,
		fileWithHTTPServer(`, "url": "https://i"`):                                             `line 3: "url" appears twice`,
		`{"servers":[{}]}`:                                                                      `servers[0], name: must be 1 to 64 printable characters (line 1)`,
		`{"mcpServers":{"a":{"url":"ws://h"}}}`:                                                 `server "a", url: must begin with http:// or https:// (line 1)`,
		`{"mcpServers":{"a":{"type":"websocket"}}}`:                                             `server "a", url: is missing (line 1)`,
		`{"mcpServers":{"a":{"type":"websocket","url":"https://h"}}}`:                           `server "a", url: must begin with ws:// or wss:// (line 1)`,
		`{"mcpServers":{"a":{"type":"ws","url":"wss://u:p@h"}}}`:                                `server "a", url: must not hold a user or password (line 1)`,
		`{"mcpServers":{"a":{"type":"ws","url":"ws://h","bearerToken":"x"}}}`:                   `server "a", url: must be wss://, since bearerToken would be sent unencrypted (line 1)`,
		`{"mcpServers":{"a":{"type":"ws","url":"ws://h","headers":{"authorization":"x"}}}}`:     `server "a", url: must be wss://, since headers.authorization would be sent unencrypted (line 1)`,
		`{"mcpServers":{"a":{"type":"ws","url":"ws://h","headers":{"Sec-WebSocket-Key":"x"}}}}`: `server "a", headers.Sec-WebSocket-Key: is set by the transport (line 1)`,
		fileWithHTTPServer(`, "meta": ["call_id",
"secret"]`): `server "crm", meta: may only have run_id, thread_id, subject, call_id (line 3)`,
		fileWithHTTPServer(`, "meta": "subject"`):          `server "crm", meta: must be an array, not a string (line 3)`,
		fileWithHTTPServer(`, "meta": [7]`):                `server "crm", meta[0]: must be a string, not a number (line 3)`,
		fileWithHTTPServer(`, "instructions": "Use add."`): `server "crm", instructions: must be a boolean, not a string (line 3)`,
		fileWithHTTPServer(`, "pin": "yes"`):               `server "crm", pin: must be a boolean, not a string (line 3)`,
		`{"servers":[{"id":"a","source":{"type":"Http","url":"https://h"}},{"id":"a","source":{"type":"Http","url":"https://h"}}]}`: `MCP server "a", name: it is used twice`,
		`{"servers":[{"id":"a","source":{"Ftp":{}}}]}`:                                             `server "a", source.Ftp: must be http, stdio, websocket or sse (line 1)`,
		`{"servers":[],"tool_timeout_secs":"x"}`:                                                   `the file, tool_timeout_secs: must be a duration such as 30s, or a number of seconds, of more than 0 and at most 24h0m0s (line 1)`,
		`{"mcpServers":{"a":{"url":"https://h","_comment":"` + strings.Repeat("x", 1<<20) + `"}}}`: `larger than 1048576 bytes`,
	} {
		_, _, err := Parse([]byte(file), testGetenv)
		got := fmt.Sprint(err)
		isWanted := got == "mcp.json: "+want || strings.HasPrefix(got, "mcp.json: "+want+" ")
		if !isWanted || strings.Contains(got, "\\u") {
			t.Errorf("Parse(%.100s)\n got %v\nwant mcp.json: %s", file, err, want)
		}
	}
}

func TestParseRefusesTooManyServers(t *testing.T) {
	all := map[string]any{}
	for i := range maxServers + 1 {
		all[fmt.Sprint(i)] = map[string]string{"url": "https://h"}
	}
	data, err := json.Marshal(map[string]any{"mcpServers": all})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Parse(data, testGetenv); err == nil || err.Error() != "mcp.json: 257 MCP servers, more than 256" {
		t.Errorf("Parse() = %v, want 257 MCP servers, more than 256", err)
	}
}

// MCP_URL gets the service's token if there is one, which then must not be sent over a
// network unencrypted.
func TestSingleRefusesPlainHTTPWithAServiceToken(t *testing.T) {
	cfg, err := SingleServer("http://mcp.internal:9000/mcp")
	if err != nil || cfg.Name != "default" || cfg.Auth != AuthJWT {
		t.Fatalf("Single() = %+v, %v, want a server named default with AuthJWT", cfg, err)
	}
	if err := Check([]Server{cfg}, false); err != nil {
		t.Errorf("Check() without a service token = %v, want nil", err)
	}
	want := `MCP server "default", url: must be https://, since the service's token would be sent unencrypted`
	if err := Check([]Server{cfg}, true); err == nil || err.Error() != want {
		t.Errorf("Check() with a service token = %v, want %s", err, want)
	}

	for _, ok := range []string{"https://h/mcp", "http://localhost:1", "http://127.3.2.1", "http://[::1]:80/"} {
		cfg, err := SingleServer(ok)
		if err != nil || Check([]Server{cfg}, true) != nil {
			t.Errorf("Single(%q) = %v, want a server that passes Check with a service token", ok, err)
		}
	}

	for bad, want := range map[string]string{
		"": "is missing", "mcp.internal": "must begin with http:// or https://",
		"http://a b": "is not a URL", "https://user@h": "must not hold a user or password",
	} {
		if _, err := SingleServer(bad); err == nil || err.Error() != want {
			t.Errorf("Single(%q) = %v, want %s", bad, err, want)
		}
	}
}

// For every file, Parse returns servers that pass Check, or an error of one line without
// secrets.
func FuzzParse(f *testing.F) {
	for _, name := range []string{"testdata/mcp.json", "testdata/seed004.json"} {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Add(fileWithHTTPServer(`, "bearerToken": "${TOKEN}\u0000"`))
	f.Add(fileWithHTTPServer(`, "headers": {"${TOKEN}": "${TOKEN:-}}"}`))
	f.Fuzz(func(t *testing.T, data string) {
		servers, warnings, err := Parse([]byte(data), testGetenv)
		if err != nil {
			if s := err.Error(); strings.ContainsAny(s, "\n\r") || strings.Contains(s, "secret-token") && !strings.Contains(data, "secret-token") {
				t.Errorf("Parse() = %q, want one line without secrets", s)
			}
			return
		}
		for _, w := range warnings {
			if strings.ContainsAny(w, "\n\r") || strings.Contains(w, "secret-token") && !strings.Contains(data, "secret-token") {
				t.Errorf("Parse() warns %q, want one line without secrets", w)
			}
		}
		if err := Check(servers, false); err != nil {
			t.Errorf("Check() of what Parse returned = %v, want nil", err)
		}
	})
}

func TestMatchWildcardLetsStarsStandForAnyText(t *testing.T) {
	for _, k := range []struct {
		pattern, s string
		want       bool
	}{
		{"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"*", "a/b", true}, {"a*", "a", true}, {"a*a", "a", false},
		{"file:///**", "file:///a/b", true}, {"file:///*.md", "file:///a/b.md", true}, {"file:///*.md", "file:///a.mdx", false},
		{"a*b*c", "aXbYc", true}, {"a*b*c", "aXc", false}, {"a*b*b", "ab", false}, {"[a]", "a", false},
	} {
		if got := matchWildcard(k.pattern, k.s); got != k.want {
			t.Errorf("matchWildcard(%q, %q) = %v, want %v", k.pattern, k.s, got, k.want)
		}
	}
}

// TestAllowsResourceRefusesParentDirectories checks that no URI leads out of a pattern, however the path in it
// ends: a query and a fragment are not part of it (RFC 3986 section 3).
func TestAllowsResourceRefusesParentDirectories(t *testing.T) {
	s := Server{Resources: []string{"file:///srv/docs/*", "db://tables/*"}}
	for uri, want := range map[string]bool{
		"file:///srv/docs/a.md": true, "file:///srv/docs/a..b": true, "file:///srv/docs/...": true, "db://tables/users?where=id%3D1": true,
		"file:///srv/docs/../key": false, "file:///srv/docs/..": false, "file:///srv/docs/%2e%2e/key": false, `file:///srv/docs/..\key`: false,
		"file:///srv/docs/..?x": false, "file:///srv/docs/a/..?": false, "file:///srv/docs/..#x": false, "file:///srv/docs/%2E.?x": false, "file:///srv/docs/..;v=1": false,
		"file:///srv/key": false, "": false,
	} {
		if got := s.AllowsResource(uri); got != want {
			t.Errorf("AllowsResource(%q) = %v, want %v", uri, got, want)
		}
	}
}

func TestParseReadsTLSFiles(t *testing.T) {
	data := `{"mcpServers": {"crm": {"url": "https://h", "tls": {"caFile": "${DIR}/ca.pem", "certFile": "c.pem", "keyFile": "c.key", "pinned": true}}}}`
	servers, warnings, err := Parse([]byte(data), func(name string) string { return "/etc/" + strings.ToLower(name) })
	if err != nil {
		t.Fatal(err)
	}
	want := tlsconfig.Files{CAFile: "/etc/dir/ca.pem", CertFile: "c.pem", KeyFile: "c.key"}
	if got := servers[0].TLS; got != want || len(warnings) != 1 || !strings.Contains(warnings[0], `tls.pinned: unknown member`) {
		t.Errorf("got %+v and warnings %q, want %+v and one about pinned", got, warnings, want)
	}
}
