package config

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"answerd/internal/auth"
)

// secrets returns a map of secrets, from names and values in turn.
func secrets(pairs ...string) map[string]auth.Secret {
	out := map[string]auth.Secret{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = auth.NewSecret(pairs[i+1])
	}
	return out
}

// hostFiles are files as the documentation of each host has them, and what Parse makes of them in a
// process whose PATH is /bin.
var hostFiles = []struct {
	file, source string
	servers      []Server
	warnings     []string
}{
	{
		file: "claude-desktop.json", source: "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
		servers: []Server{
			{Name: "filesystem", Type: TypeStdio, Command: "npx", Env: secrets("PATH", "/bin"),
				Args: []string{"-y", "@modelcontextprotocol/server-filesystem", "/Users/username/Desktop", "/Users/username/Downloads"}},
			{Name: "brave-search", Type: TypeStdio, Command: "npx", Args: []string{"-y", "@modelcontextprotocol/server-brave-search"},
				Env: secrets("PATH", "/bin", "APPDATA", `C:\Users\user\AppData\Roaming\`, "BRAVE_API_KEY", "key")},
		},
		warnings: []string{"the file, globalShortcut: unknown member (line 2)"},
	},
	{
		file: "cursor.json", source: "https://cursor.com/docs/mcp",
		servers: []Server{
			{Name: "local-server", Type: TypeStdio, Command: "python", Args: []string{"WORKSPACE/tools/mcp_server.py"},
				Env: secrets("PATH", "/bin", "API_KEY", "api-key", "ROOT", "/home/me"+string(filepath.Separator)+"data", "HOME", "/home/me",
					"LOG_LEVEL", "debug", "REGION", "eu west", "GREETING", "a \"b\"\nc")},
			{Name: "web-api", Type: TypeHTTP, URL: "https://api.example.com/mcp", Headers: secrets("Authorization", "Bearer service-token")},
		},
		warnings: []string{`server "web-api", auth: the OAuth client of another host is not used; see type authorization_code (line 13)`},
	},
	{
		file: "vscode.json", source: "https://code.visualstudio.com/docs/copilot/reference/mcp-configuration",
		servers: []Server{
			{Name: "perplexity", Type: TypeStdio, Command: "npx", Args: []string{"-y", "server-perplexity-ask"}, WorkDir: "/srv",
				Env: secrets("PATH", "/bin", "PERPLEXITY_API_KEY", "", "REGION", "eu", "PORT", "8080", "VERBOSE", "true")},
			{Name: "github", Type: TypeHTTP, URL: "https://api.githubcopilot.com/mcp"},
			{Name: "events", Type: TypeSSE, URL: "https://example.com/sse", Headers: secrets("X-Version", "1")},
			{Name: "fetch", Type: TypeStdio, Command: "uvx", Args: []string{"mcp-server-fetch"}, Env: secrets("PATH", "/bin")},
		},
		warnings: []string{
			`server "perplexity", sandboxEnabled: unknown member (line 13)`,
			`server "fetch", dev: unknown member (line 17)`,
			"the file, inputs: the values of inputs are not asked for; they are those of environment variables, and empty without: set PERPLEXITY_KEY (line 2)",
		},
	},
	{
		file: "windsurf.json", source: "https://docs.windsurf.com/windsurf/cascade/mcp",
		servers: []Server{
			{Name: "github", Type: TypeStdio, Command: "npx", Args: []string{"-y", "@modelcontextprotocol/server-github"},
				Env: secrets("PATH", "/bin", "GITHUB_PERSONAL_ACCESS_TOKEN", "file-token"), DenyTools: []string{"delete_file"}},
			{Name: "remote-http-mcp", Type: TypeHTTP, URL: "https://mcp.example.com/mcp", Headers: secrets("API_KEY", "Bearer service-token")},
		},
	},
	{
		file: "cline.json", source: "https://docs.cline.bot/mcp/configuring-mcp-servers",
		servers: []Server{
			{Name: "local-server", Type: TypeStdio, Command: "node", Args: []string{"/path/to/server.js"}, AutoApprove: []string{"tool1", "tool2"},
				Env: secrets("PATH", "/bin", "API_KEY", "your_api_key")},
			{Name: "remote-server", Type: TypeHTTP, URL: "https://your-server-url.com/mcp", Headers: secrets("Authorization", "Bearer your-token"),
				AutoApprove: []string{"tool3"}, Timeout: time.Minute, Disabled: true},
			{Name: "streamable", Type: TypeHTTP, URL: "https://h.example.com/mcp", Timeout: time.Hour},
		},
	},
	{
		file: "copilot-cli.json", source: "https://docs.github.com/en/copilot/how-tos/copilot-cli/customize-copilot/add-mcp-servers",
		servers: []Server{
			{Name: "playwright", Type: TypeStdio, Command: "npx", Args: []string{"@playwright/mcp@latest"}, Env: secrets("PATH", "/bin"), AllowTools: []string{"*"}},
			{Name: "context7", Type: TypeHTTP, URL: "https://mcp.context7.com/mcp", Headers: secrets("CONTEXT7_API_KEY", "api-key"),
				AllowTools: []string{"resolve-library-id", "get-library-docs"}},
			{Name: "unused", Type: TypeStdio, Command: "node", Env: secrets("PATH", "/bin"), DenyTools: []string{"*"}},
		},
	},
	{
		file: "lm-studio.json", source: "https://lmstudio.ai/docs/app/mcp",
		servers: []Server{
			{Name: "hf-mcp-server", Type: TypeHTTP, URL: "https://huggingface.co/mcp", Headers: secrets("Authorization", "Bearer <YOUR_HF_TOKEN>")},
			{Name: "playwright", Type: TypeStdio, Command: "npx", Args: []string{"@playwright/mcp@latest"}, Env: secrets("PATH", "/bin")},
		},
	},
	{
		file: "fastmcp.json", source: "https://gofastmcp.com/integrations/mcp-json-configuration",
		servers: []Server{
			{Name: "weather", Type: TypeHTTP, URL: "https://weather.example.com/mcp", BearerToken: auth.NewSecret("api-key")},
			{Name: "events", Type: TypeSSE, URL: "https://events.example.com/stream"},
			{Name: "assistant", Type: TypeStdio, Command: "uv", Args: []string{"run", "server.py"}, Env: secrets("PATH", "/bin")},
		},
		warnings: []string{
			`server "events", auth: the sign-in of another host is not used; see type authorization_code (line 7)`,
			`server "events", description: unknown member (line 8)`,
		},
	},
	{
		file: "gemini-cli.json", source: "https://github.com/google-gemini/gemini-cli/blob/main/docs/tools/mcp-server.md",
		servers: []Server{
			{Name: "pythonTools", Type: TypeStdio, Command: "python", Args: []string{"-m", "my_mcp_server", "--port", "8080"}, WorkDir: "./mcp-servers/python",
				Env:     secrets("PATH", "/bin", "DATABASE_URL", "postgres://db", "API_KEY", "external-key", "PRICE", "$UNSET"),
				Timeout: 15 * time.Second, AllowTools: []string{"safe_tool", "file_reader"}, DenyTools: []string{"dangerous_tool"}},
			{Name: "httpServerWithAuth", Type: TypeHTTP, URL: "http://localhost:3000/mcp", Timeout: 5 * time.Second, AutoApprove: []string{"*"},
				Headers: secrets("Authorization", "Bearer service-token", "X-Custom-Header", "custom-value")},
			{Name: "both", Type: TypeHTTP, URL: "https://new.example.com/mcp", Timeout: 10 * time.Minute},
		},
		warnings: []string{
			"the file, theme: unknown member (line 2)",
			`server "httpServerWithAuth", headers: Content-Type is not sent: the transport sets it (line 16)`,
			`server "httpServerWithAuth", description: unknown member (line 19)`,
		},
	},
}

func TestParseReadsFilesOfOtherHosts(t *testing.T) {
	env := map[string]string{
		"PATH": "/bin", "API_KEY": "api-key", "MY_SERVICE_TOKEN": "service-token",
		"DB_CONNECTION_STRING": "postgres://db", "EXTERNAL_API_KEY": "external-key",
	}
	workspace, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hostFiles {
		data, err := os.ReadFile(filepath.Join("testdata", "hosts", h.file))
		if err != nil {
			t.Fatal(err)
		}
		env["HOME"] = ""
		if h.file == "cursor.json" {
			env["HOME"] = "/home/me"
		}
		servers, warnings, err := Parse(data, func(name string) string { return env[name] })
		if err != nil {
			t.Errorf("Parse(%s), see %s: %v", h.file, h.source, err)
			continue
		}

		for i, want := range h.servers {
			for j, arg := range want.Args {
				want.Args[j] = strings.Replace(arg, "WORKSPACE", workspace, 1)
			}
			if i >= len(servers) || !reflect.DeepEqual(servers[i], want) {
				t.Errorf("Parse(%s), see %s:\n got %#v\nwant %#v", h.file, h.source, servers, want)
				break
			}
			for name, value := range want.Env { // secrets print alike
				if got := servers[i].Env[name].Reveal(); got != value.Reveal() {
					t.Errorf("Parse(%s), server %s: %s = %q, want %q", h.file, want.Name, name, got, value.Reveal())
				}
			}
		}

		if len(servers) != len(h.servers) || !slices.Equal(warnings, h.warnings) {
			t.Errorf("Parse(%s): %d servers with warnings\n%s\nwant %d with\n%s", h.file, len(servers), strings.Join(warnings, "\n"), len(h.servers), strings.Join(h.warnings, "\n"))
		}
	}
}

func TestParseWarnsOfUnusedMembers(t *testing.T) {
	for file, want := range map[string]string{
		"{\"mcpServers\":{},\n\"other\":[]}":                                                `the file, other: unknown member (line 2)`,
		"{\"mcpServers\":{},\n// \"a\"\n\"inputs\":[]}":                                     `the file, inputs: the values of inputs are not asked for; they are those of environment variables (line 3)`,
		fileWithHTTPServer(`, "nope": 1`):                                                   `server "crm", nope: unknown member (line 3)`,
		fileWithHTTPServer(`, "transport": {"type": "http"}`):                               `server "crm", transport: unknown member (line 3)`,
		fileWithHTTPServer(`, "env": {"A": "secret"}`):                                      `server "crm", env: is not used: it is for servers of type stdio (line 3)`, // as in Cursor's documentation
		fileWithHTTPServer(`, "a b": 1`):                                                    `server "crm", "a b": unknown member (line 3)`,
		fileWithHTTPServer(`, "tools": {"hide": []}`):                                       `server "crm", tools.hide: unknown member (line 3)`,
		fileWithHTTPServer(`, "auth": {"type": "jwt", "realm": "s3cret"}`):                  `server "crm", auth.realm: unknown member (line 3)`,
		`{"servers":[{"id":"a","source":{"type":"Http","url":"https://h","x":1}}]}`:         `server "a", source.x: unknown member (line 1)`,
		`{"servers":[{"id":"a","prefix":"x","source":{"type":"Http","url":"https://h"}}]}`:  `server "a", prefix: unknown member (line 1)`,
		`{"servers":[],"x":1}`:                                                              `the file, x: unknown member (line 1)`,
		"/* a\n */ {\"mcpServers\":{\"a\":{\"url\":\"https://h//x\",\n\"y\":\"/*\"}}} // z": `server "a", y: unknown member (line 3)`,
	} {
		if _, warnings, err := Parse([]byte(file), testGetenv); err != nil || !slices.Equal(warnings, []string{want}) {
			t.Errorf("Parse(%.100s)\n got %q, %v\nwant %s", file, warnings, err, want)
		}
	}
	file := fileWithHTTPServer(`, "x` + strings.Repeat(`": 1, "x`, 3) + `": 1`)
	if _, _, err := Parse([]byte(file), testGetenv); err == nil {
		t.Error("Parse() of a member that is there twice = nil, want an error")
	}
}

func TestParseBoundsWarnings(t *testing.T) {
	var members strings.Builder
	for i := range 60 {
		members.WriteString(`, "x` + strings.Repeat("y", i) + `": 1`)
	}
	_, warnings, err := Parse([]byte(fileWithHTTPServer(members.String())), testGetenv)
	if err != nil || len(warnings) != maxWarnings+1 || warnings[maxWarnings] != "10 more warnings" {
		t.Errorf("Parse() = %d warnings, %v, want %d and one that counts 10 more", len(warnings), err, maxWarnings)
	}
}

// A number up to 3,600 is seconds, a larger one milliseconds.
func TestParseReadsTimeouts(t *testing.T) {
	for value, want := range map[string]time.Duration{
		`"20s"`: 20 * time.Second, `2.5`: 2500 * time.Millisecond, `3600`: time.Hour, `3601`: 3601 * time.Millisecond,
		`30000`: 30 * time.Second, `600000`: 10 * time.Minute, `86400000`: 24 * time.Hour,
	} {
		servers, _, err := Parse([]byte(fileWithHTTPServer(`, "timeout": `+value)), testGetenv)
		if err != nil || servers[0].Timeout != want {
			t.Errorf("Parse() with timeout %s = %+v, %v, want %s", value, servers, err, want)
		}
	}
	if _, _, err := Parse([]byte(fileWithHTTPServer(`, "timeout": 86400001`)), testGetenv); err == nil {
		t.Error("Parse() with a timeout of more than a day = nil, want an error")
	}
}

// The official SDKs pass these variables on, and no others.
func TestParseInheritsSixVariables(t *testing.T) {
	env := map[string]string{
		"HOME": "/h", "LOGNAME": "l", "PATH": "/bin", "SHELL": "() { :; }", "TERM": "xterm", "USER": "u", "LLM_API_KEY": "secret-token", "TOKEN": "t",
	}
	getenv := func(name string) string { return env[name] }
	for fields, want := range map[string]map[string]auth.Secret{
		`"args": []`: secrets("HOME", "/h", "LOGNAME", "l", "PATH", "/bin", "TERM", "xterm", "USER", "u"),
		`"env": {"PATH": "/own", "A": "${TOKEN}"}`:      secrets("HOME", "/h", "LOGNAME", "l", "PATH", "/own", "TERM", "xterm", "USER", "u", "A", "t"),
		`"inheritEnv": false, "env": {"A": "${TOKEN}"}`: secrets("A", "t"),
		`"inheritEnv": false`:                           nil,
	} {
		servers, _, err := Parse([]byte(fileWithStdioServer(fields)), getenv)
		if err != nil || !reflect.DeepEqual(servers[0].Env, want) {
			t.Errorf("Parse() with %s: env = %d variables, %v, want %d", fields, len(servers[0].Env), err, len(want))
			continue
		}
		for name, value := range want {
			if got := servers[0].Env[name].Reveal(); got != value.Reveal() {
				t.Errorf("Parse() with %s: %s = %q, want %q", fields, name, got, value.Reveal())
			}
		}
	}
}

// TestByteOrderMarkIsIgnored reads files as editors of Windows save them. RFC 8259 section 8.1 allows that for
// JSON, and the other hosts do it.
func TestByteOrderMarkIsIgnored(t *testing.T) {
	const mark = "\ufeff"
	servers, _, err := Parse([]byte(mark+`{"mcpServers":{"a":{"url":"https://h"}}}`), testGetenv)
	if err != nil || len(servers) != 1 {
		t.Errorf("Parse = %+v, %v, want one server", servers, err)
	}
	if _, _, err := Parse([]byte(mark+mark+`{}`), testGetenv); err == nil {
		t.Error("Parse with two marks = no error, want one")
	}
	if env, err := ReadEnv(mark + "A=b\r\nspring.my-app=c\n"); err != nil || env["A"] != "b" || env["spring.my-app"] != "c" {
		t.Errorf("ReadEnv = %q, %v, want A=b and spring.my-app=c", env, err)
	}
}

// TestParseIgnoresTrailingCommas reads files as people write them for VS Code, which accepts a comma before } and ].
func TestParseIgnoresTrailingCommas(t *testing.T) {
	file := "{\"mcpServers\": {\"a\": {\"command\": \"x\", \"args\": [\"a,]\", \"\\\",}\" , /* the last */ ],\n // the end\n},},\n}"
	servers, warnings, err := Parse([]byte(file), testGetenv)
	if want := []string{"a,]", `",}`}; err != nil || len(warnings) > 0 || !slices.Equal(servers[0].Args, want) {
		t.Errorf("Parse(%s) = %+v, %q, %v, want the arguments %q", file, servers, warnings, err, want)
	}
	for _, bad := range []string{`{"mcpServers":{"a":{"command":"x","args":["a",,]}}}`, `{"mcpServers":{"a":{"command":,}}}`, `{"mcpServers":{}},`} {
		if _, _, err := Parse([]byte(bad), testGetenv); err == nil {
			t.Errorf("Parse(%s) = no error, want one", bad)
		}
	}
}

// TestDisabledServersNeedNoVariables reads servers that are disabled because this machine lacks what they need.
func TestDisabledServersNeedNoVariables(t *testing.T) {
	for _, fields := range []string{
		`"command": "x", "env": {"A": "${NOPE}"}, "disabled": true`, `"command": "x", "enabled": false, "envFile": "/absent"`,
		`"disabled": true, "url": "https://${NOPE}/mcp", "bearerToken": "${file:/absent}"`, `"command": "${NOPE}", "type": "stdio", "disabled": true`,
	} {
		servers, _, err := Parse([]byte(`{"mcpServers": {"off": {`+fields+`}, "on": {"url": "https://h"}}}`), testGetenv)
		if err != nil || len(servers) != 2 || !servers[0].Disabled || Check(servers, true) != nil {
			t.Errorf("Parse() with the disabled server {%s} = %+v, %v, want two servers that pass Check", fields, servers, err)
		}
		file := `{"mcpServers": {"off": {` + fields + `}, "on": {"url": "https://${NOPE}"}}}`
		want := `mcp.json: server "on", url: needs the environment variable NOPE, which is not set (line 1)`
		if _, _, err := Parse([]byte(file), testGetenv); err == nil || err.Error() != want {
			t.Errorf("Parse() with an enabled server after it = %v, want %s", err, want)
		}
	}
	if _, _, err := Parse([]byte(`{"mcpServers": {"off": {"url": "ftp://h", "disabled": true}}}`), testGetenv); err == nil {
		t.Error("Parse() of a disabled server with another mistake = no error, want one")
	}
	const seed = `{"servers": [{"id": "off", "enabled": false, "source": {"type": "Http", "url": "https://h", "headers": {"X": "${NOPE}"}}}]}`
	if servers, _, err := Parse([]byte(seed), testGetenv); err != nil || len(servers) != 1 {
		t.Errorf("Parse(%s) = %+v, %v, want one server", seed, servers, err)
	}
}

// TestReadEnvReadsQuotesAndComments checks values as the dotenv packages of other hosts read them.
func TestReadEnvReadsQuotesAndComments(t *testing.T) {
	for line, want := range map[string]string{
		`A=b # c`:               `b`,
		`A=b#c`:                 `b#c`,
		`A="b" # c`:             `b`,
		`A='b' # c`:             `b`,
		`A="b"#c`:               `b`,
		`A="b # c"`:             `b # c`,
		`A="b" # say "c"`:       `b`,
		`A="b \"c\" # d" # "e"`: `b "c" # d`,
		`A='b \' # c`:           `b \`,
		`A="" # none`:           ``,
		`A="C:\"`:               `C:\`,
		`A="b" c`:               `"b" c`,
		`A="b`:                  `"b`,
		`A='it's'`:              `it's`,
		`A="`:                   `"`,
	} {
		env, err := ReadEnv(line + "\n")
		if err != nil || env["A"] != want {
			t.Errorf("ReadEnv(%s) = %q, %v, want %q", line, env["A"], err, want)
		}
	}
}

// Errors about files do not quote them.
func TestParseRefusesUnusableEnvFiles(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "env")
	if err := os.WriteFile(bad, []byte("A=1\nsecret-token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"/absent": "needs a file that does not exist or cannot be read", "/": "needs a file that does not exist or cannot be read",
		bad: "line 2 of that file is not NAME=value",
	} {
		want = `mcp.json: server "crm", envFile: ` + want + ` (line 3)`
		if _, _, err := Parse([]byte(fileWithStdioServer(`"envFile": "`+name+`"`)), testGetenv); err == nil || err.Error() != want {
			t.Errorf("Parse() with envFile %s = %v, want %s", name, err, want)
		}
	}
}
