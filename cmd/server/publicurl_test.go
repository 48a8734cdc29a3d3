package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"answerd/internal/llm/llmtest"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// startProxy starts a proxy that forwards everything below path to the service that to returns, with
// or without that path, and nothing else.
func startProxy(t *testing.T, path string, removesPath bool, to func() string) string {
	t.Helper()
	forward := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		target, err := url.Parse(to())
		if err != nil {
			panic(err)
		}
		r.SetURL(target)
		r.Out.Host = r.In.Host
		if removesPath {
			r.Out.URL.Path = strings.TrimPrefix(r.Out.URL.Path, path)
		}
	}}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, path+"/") && (removesPath || r.URL.Path != path) {
			http.Error(w, "another service", http.StatusTeapot)
			return
		}
		forward.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	return web.URL
}

// Below the path of PUBLIC_URL everything works that refers to another address of the service: the
// console, Location, problems, results, the metadata of the resource and the OAuth callback.
func TestPublicURLWithAPathBehindAProxy(t *testing.T) {
	t.Parallel()
	const path = "/apps/ask"
	for name, removesPath := range map[string]bool{"proxy removes the path": true, "proxy leaves the path": false} {
		t.Run(name, func(t *testing.T) {
			w := newTestWorld(t, llmtest.Turns(llmtest.Calls(llmtest.Call{Name: "large"}), llmtest.Says("Done.")))
			tools := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
			tools.AddTool(&sdk.Tool{Name: "large", InputSchema: map[string]any{"type": "object"}}, func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
				return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: strings.Repeat("words ", 100<<10)}}}, nil
			})
			web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return tools }, &sdk.StreamableHTTPOptions{Stateless: true, JSONResponse: true}))
			t.Cleanup(web.Close) // after answerd has ended
			var service atomic.Value
			host := startProxy(t, path, removesPath, func() string { return service.Load().(string) })
			base := host + path
			s := startAnswerd(t, w.environment(w.withInboundAuth("PUBLIC_URL", base, "MCP_URL", web.URL, "ENABLE_JWT_TOKEN", "false")...))
			service.Store(s.url)
			c, bearer := newClient(t), w.callerToken(t)
			c.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

			// resolveReference returns the address that a reference in a response of from means.
			resolveReference := func(from, reference string) string {
				t.Helper()
				u, err := url.Parse(from)
				if err != nil {
					t.Fatal(err)
				}
				to, err := u.Parse(reference)
				if err != nil {
					t.Fatal(err)
				}
				return to.String()
			}
			if _, page := getBody(t, c, base+"/"); !strings.Contains(page, `href="console/base.css"`) {
				t.Errorf("got console %s, want its style sheet", page)
			}
			for _, asset := range []string{"console/base.css", "console/main.js", "healthz", "openapi.yaml"} {
				if status, _ := getBody(t, c, resolveReference(base+"/", asset)); status != http.StatusOK {
					t.Errorf("%s: got %d, want 200", asset, status)
				}
			}
			if !removesPath {
				if resp := get(t, c, base+"?a=b"); resp.StatusCode != http.StatusPermanentRedirect || resp.Header.Get("Location") != path+"/?a=b" {
					t.Errorf("got %s to %s, want a redirect to the slash", resp.Status, resp.Header.Get("Location"))
				}
			}

			resp := post(t, c, base+"/answer", `{"question":"?","background":true}`, "Authorization", bearer)
			run := resolveReference(base+"/answer", resp.Header.Get("Location"))
			if resp.StatusCode != http.StatusAccepted || !strings.HasPrefix(run, base+"/runs/run_") {
				t.Fatalf("got %s at %s, want 202 below %s", resp.Status, run, base)
			}
			whole := ""
			for _, f := range readStream(t, get(t, c, run+"/events", "Authorization", bearer)) {
				var e struct{ Truncated struct{ URL string } }
				if err := json.Unmarshal(f.Data, &e); err != nil {
					t.Fatal(err)
				}
				if f.Event == "tool_result" {
					whole = e.Truncated.URL
				}
			}
			if status, body := getBody(t, c, resolveReference(run+"/events", whole), "Authorization", bearer); status != http.StatusOK || strings.Count(body, "words") < 100<<10 {
				t.Errorf("the whole result at %s: got %d and %d bytes, want it", whole, status, len(body))
			}
			if !strings.Contains(string(w.model.Requests()[1].Body), path+"/runs/") {
				t.Errorf("got %.3000s, want the model to learn where the whole result is", w.model.Requests()[1].Body)
			}

			var problem struct{ Instance string }
			resp = get(t, c, base+"/runs/run_none", "Authorization", bearer)
			if err := json.NewDecoder(resp.Body).Decode(&problem); err != nil || resolveReference(base+"/runs/run_none", problem.Instance) != base+"/runs/run_none" {
				t.Errorf("got instance %q, %v, want that of the request", problem.Instance, err)
			}

			challenge := get(t, c, base+"/tools").Header.Get("WWW-Authenticate")
			mcp := post(t, c, base+"/mcp", `{}`).Header.Get("WWW-Authenticate")
			for header, resource := range map[string]string{challenge: base, mcp: base + "/mcp"} {
				_, after, _ := strings.Cut(header, `resource_metadata="`)
				address, _, _ := strings.Cut(after, `"`)
				status, body := getBody(t, c, address)
				var metadata struct{ Resource string }
				if err := json.Unmarshal([]byte(body), &metadata); status != http.StatusOK || err != nil || metadata.Resource != resource {
					t.Errorf("%s: got %d %s, want the metadata of %s", header, status, body, resource)
				}
			}
			// Where the host's proxy forwards it, metadata is also where RFC 9728 has it.
			_, body := getBody(t, c, s.url+"/.well-known/oauth-protected-resource"+path+"/mcp", "Host", strings.TrimPrefix(host, "http://"))
			if !strings.Contains(body, `"resource":"`+base+`/mcp"`) {
				t.Errorf("got %s, want the metadata of %s/mcp", body, base)
			}
			if status, page := getBody(t, c, base+"/oauth/callback?state=x"); status != http.StatusBadRequest || !strings.Contains(page, "not valid any more") {
				t.Errorf("callback: got %d %s, want the page for an unknown state", status, page)
			}
			if status, _ := getBody(t, c, host+"/other"); status != http.StatusTeapot {
				t.Errorf("got %d for another service of the host, want it", status)
			}
		})
	}
}
