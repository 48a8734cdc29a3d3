package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"answerd/internal/llm/llmtest"
)

// containerPath is the PATH of a container image: of Debian's, without what a login shell adds.
const containerPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// claudeDesktop are files in the form of Claude Desktop's documentation
// (https://modelcontextprotocol.io/docs/develop/connect-local-servers for npx, and the README of
// mcp-server-time for uvx), and a call of each server. The version is not fixed there; npx has the
// one of package.json.
var claudeDesktop = map[string]struct{ server, tool, args, want string }{
	"npx": {`{"command":"npx","args":["-y","@modelcontextprotocol/server-filesystem","DIR"]}`, "real_list_allowed_directories", `{}`, "DIR"},
	"uvx": {`{"command":"uvx","args":["mcp-server-time","--local-timezone=Europe/Rome"]}`, "real_get_current_time", `{"timezone":"UTC"}`, "UTC"},
}

// answerd itself, a process with a container's PATH and nothing but HOME beside it, starts servers by
// the files of Claude Desktop: npx and uvx are found, and so is what they start.
func TestRealServerOfClaudeDesktop(t *testing.T) {
	t.Parallel()
	modules := realServersDir(t)
	for name, c := range claudeDesktop {
		t.Run(name, func(t *testing.T) {
			path, dir := containerPath, t.TempDir()
			if name == "uvx" {
				interpreter, _ := pythonCommand(t, "uv", "")
				path = filepath.Dir(interpreter) + ":" + path // where pip has put uvx
			} else if _, err := os.Stat("/usr/bin/npx"); err != nil {
				if _, err := os.Stat("/usr/local/bin/npx"); err != nil {
					t.Skip("npx is not in a directory of containerPath")
				}
			}

			server := map[string]any{"toolPrefix": "real"}
			if err := json.Unmarshal([]byte(strings.ReplaceAll(c.server, "DIR", dir)), &server); err != nil {
				t.Fatal(err)
			}

			// What reaches a package registry from here, which each host has to be given under env.
			env := map[string]string{}
			for _, name := range []string{"SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "UV_DEFAULT_INDEX", "NPM_CONFIG_REGISTRY", "HTTPS_PROXY"} {
				if v := os.Getenv(name); v != "" {
					env[name] = v
				}
			}

			server["env"], server["workDir"] = env, filepath.Dir(modules)
			text, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"real": server}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, "mcp.json")
			writeFile(t, file, string(text))
			model := llmtest.New(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: c.tool, Args: c.args}), llmtest.Says("Done.")))
			p := spawnAnswerd(t, []string{"ADDR=127.0.0.1:0", "LLM_BASE_URL=" + model.URL, "DEFAULT_MODEL_ID=scripted", "MCP_CONFIG_PATH=" + file, "PATH=" + path, "HOME=" + os.Getenv("HOME")})
			url, client := p.url(t), newClient(t)
			resp := post(t, client, url+"/servers/real/refresh", "")
			var state struct{ State, Detail string }
			if err := json.NewDecoder(resp.Body).Decode(&state); err != nil || state.State != "connected" {
				t.Fatalf("got %s %+v, %v, want connected\n%s", resp.Status, state, err, p.log)
			}
			want := strings.ReplaceAll(c.want, "DIR", dir)
			if status, body := callTool(t, client, url, c.tool, c.args); status != http.StatusOK || !strings.Contains(body, want) {
				t.Errorf("%s = %d %s, want %s", c.tool, status, body, want)
			}
			if a := postQuestion(t, client, url, `{"question":"?"}`); a.Answer != "Done." || !strings.Contains(string(a.Metadata), c.tool) {
				t.Errorf("got %q with %s, want Done. after a call of %s", a.Answer, a.Metadata, c.tool)
			}
		})
	}
}
