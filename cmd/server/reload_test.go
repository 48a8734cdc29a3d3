package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"answerd/internal/demo"
)

// writeFile replaces a file.
func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestFileWatchNoticesEveryChange(t *testing.T) {
	dir := t.TempDir()
	path, other := filepath.Join(dir, "mcp.json"), filepath.Join(dir, "other")
	long := time.Now().Add(-time.Hour)
	replaceKeepingTime := func(path, content string) { // as old as ever
		writeFile(t, path, content)
		if err := os.Chtimes(path, long, long); err != nil {
			t.Fatal(err)
		}
	}

	w := newFileWatch(path, "")
	for _, step := range []struct {
		what    string
		do      func()
		changed bool
	}{
		{"nothing", func() {}, false},
		{"created", func() { replaceKeepingTime(path, "a") }, true},
		{"another file", func() { replaceKeepingTime(other, "b") }, false},
		{"touched", func() { writeFile(t, path, "a") }, true},
		{"longer", func() { replaceKeepingTime(path, "aa") }, true},
		{"replaced by one of the same size and time", func() {
			replaceKeepingTime(other, "bb")
			if err := os.Rename(other, path); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"gone", func() { _ = os.Remove(path) }, true},
		{"still gone", func() {}, false},
	} {
		step.do()
		if got := w.hasChanged(); got != step.changed {
			t.Errorf("%s: changed %v, want %v", step.what, got, step.changed)
		}
	}
}

// serverStates returns GET /servers as "name state tools", and so on.
func serverStates(t *testing.T, c *http.Client, url string) string {
	t.Helper()
	resp, err := c.Get(url + "/servers")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var list struct {
		Servers []struct {
			Name     string
			Type     string
			State    string
			Disabled []string `json:"disabled_tools"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, s := range list.Servers {
		out = append(out, fmt.Sprintf("%s %s %d", s.Name, s.State, len(s.Disabled)))
	}
	return strings.Join(out, ", ")
}

// S4.9, F36: mcp.json is read again on SIGHUP and when it changes; a bad one is
// refused with its line; tools that are accepted meanwhile can be used.
func TestMCPConfigIsReloaded(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	path := filepath.Join(t.TempDir(), "mcp.json")
	serverEntry := func(name, more string) string {
		return fmt.Sprintf("\n  %q: {\"url\": %q, \"auth\": {\"type\": \"jwt\"}, \"toolPrefix\": %q%s}", name, w.tools.url+demo.MCPPath, name, more)
	}
	configFile := func(servers ...string) string { return `{"mcpServers": {` + strings.Join(servers, ",") + "\n}}" }
	writeFile(t, path, configFile(serverEntry("one", "")))
	env := append(w.environ(), "MCP_URL=", "MCP_CONFIG_PATH="+path)
	p := spawnAnswerd(t, env)
	url, c := p.url(t), newClient(t)

	writeFile(t, path, configFile(serverEntry("one", ""), serverEntry("two", `, "pin": true`)))
	p.signal(t, syscall.SIGHUP)
	if line := p.waitForLine(t, "read again"); !strings.Contains(line, `"servers":2`) {
		t.Errorf(`line %q, want it to contain "servers":2`, line)
	}
	listServers := func() {
		resp, err := c.Get(url + "/tools") // waits for servers that are new
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	listServers()
	if got, want := serverStates(t, c, url), "one connected 0, two connected 10"; got != want {
		t.Errorf("server states %q, want %q", got, want)
	}

	writeFile(t, path, configFile(serverEntry("one", ""), serverEntry("two", `, "pin": "yes"`)))
	p.signal(t, syscall.SIGHUP)
	if line, want := p.waitForLine(t, "refused"), `server \"two\", pin: must be a boolean, not a string (line 3)`; !strings.Contains(line, want) {
		t.Errorf("line %q, want it to contain %q", line, want)
	}
	if got, want := serverStates(t, c, url), "one connected 0, two connected 10"; got != want {
		t.Errorf("server states %q, want %q", got, want)
	}

	// No signal from here on.
	writeFile(t, path, configFile(serverEntry("two", `, "pin": true`)))
	p.waitForLine(t, "read again")
	if err := run(t.Context(), []string{"check", "-accept"}, newEnvironment(env), io.Discard, io.Discard); err != nil {
		t.Error(err)
	}
	p.waitForLine(t, "read again")
	if got := serverStates(t, c, url); got != "two connected 0" {
		t.Errorf(`server states %q, want "two connected 0"`, got)
	}
	if n := strings.Count(w.lines.String(), `"msg":"session opened"`); n != 3 { // one, two, check's
		t.Errorf("%d sessions, want 3", n)
	}
}

// F22: check shows what waits for acceptance, fails until it is accepted, and the
// file of accepted definitions is beside mcp.json.
func TestCheckShowsAndAcceptsDefinitions(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	path := filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, path, fmt.Sprintf(`{"mcpServers": {"crm": {"url": %q, "auth": {"type": "jwt"}, "pin": true}}}`, w.tools.url+demo.MCPPath))
	settings := w.environment("MCP_URL", "", "MCP_CONFIG_PATH", path)
	out := &syncBuffer{}
	err := run(t.Context(), []string{"check"}, settings, out, io.Discard)
	if reportError(err, io.Discard) != 1 || !strings.Contains(out.String(), "new: \"book_table\" of server crm\n  + endpoint: http://127.0.0.1") ||
		!strings.Contains(out.String(), "disabled until you accept them with answerd check -accept: 10") {
		t.Errorf("error %v\n%s\nwant exit code 1, book_table of crm as new, disabled until it is accepted", err, out)
	}

	for _, args := range [][]string{{"check", "-accept"}, {"check"}} {
		if err := run(t.Context(), args, settings, out, io.Discard); err != nil {
			t.Errorf("%v: %v\n%s, want no error", args, err, out)
		}
	}

	pins := filepath.Join(filepath.Dir(path), "mcp.pins.json")
	data, err := os.ReadFile(pins)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, pins, strings.Replace(string(data), "Evaluates", "Guesses", 1))
	out = &syncBuffer{}
	if err := run(t.Context(), []string{"check"}, settings, out, io.Discard); err != nil {
		t.Errorf("the digests decide: %v\n%s, want no error", err, out)
	}

	for _, args := range [][]string{{"check", "now"}, {"check", "-x"}} {
		if err := run(t.Context(), args, settings, io.Discard, io.Discard); reportError(err, io.Discard) != 2 {
			t.Errorf("%v: %v, want exit code 2", args, err)
		}
	}
}

// An unknown member is logged with its name and line; only check -strict refuses it.
func TestCheckStrictRefusesUnknownMembers(t *testing.T) {
	t.Parallel()
	w := newTestWorld(t, newTwoCallScript())
	path := filepath.Join(t.TempDir(), "mcp.json")
	writeFile(t, path, fmt.Sprintf("{\"mcpServers\": {\"crm\": {\"url\": %q,\n\"auth\": {\"type\": \"jwt\"}, \"colour\": 1}}}", w.tools.url+demo.MCPPath))
	settings := w.environment("MCP_URL", "", "MCP_CONFIG_PATH", path)
	stderr := &syncBuffer{}
	want := `server \"crm\", colour: unknown member (line 2)`
	if err := run(t.Context(), []string{"check"}, settings, io.Discard, stderr); err != nil || strings.Count(stderr.String(), want) != 1 {
		t.Errorf("check = %v with the log\n%s\nwant no error and one line with %s", err, stderr, want)
	}
	err := run(t.Context(), []string{"check", "-strict"}, settings, io.Discard, io.Discard)
	if reportError(err, io.Discard) != 2 || !strings.Contains(err.Error(), `MCP_CONFIG_PATH: mcp.json: server "crm", colour: unknown member (line 2)`) {
		t.Errorf("check -strict = %v, want exit 2 that names the member", err)
	}
}

// A declared authentication that answerd cannot apply would leave calls without a token.
func TestServeRefusesAuthJWTWithoutAServiceToken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "mcp.json")
	for _, c := range []struct {
		disabled string
		want     int
	}{{"", 2}, {`, "enabled": false`, 0}} {
		writeFile(t, path, `{"mcpServers": {"crm": {"url": "http://127.0.0.1:9/mcp", "auth": {"type": "jwt"}`+c.disabled+`}}}`)
		w := newTestWorld(t, newTwoCallScript())
		stderr := &syncBuffer{}
		err := run(t.Context(), []string{"check"}, w.environment("MCP_URL", "", "MCP_CONFIG_PATH", path, "ENABLE_JWT_TOKEN", "false"), io.Discard, stderr)
		if code := reportError(err, stderr); code != c.want || c.want == 2 && !strings.Contains(stderr.String(), `MCP_CONFIG_PATH: server "crm", auth: type jwt needs ENABLE_JWT_TOKEN=true`) {
			t.Errorf("crm%s: exit code %d, want %d: %s", c.disabled, code, c.want, stderr)
		}
	}
}

// F32: a file that trips us up is refused like any other bad one.
func TestReloadTurnsAPanicIntoARefusal(t *testing.T) {
	hangup, lines := make(chan os.Signal), make(chan string, 2)
	ctx, end := context.WithCancel(t.Context())
	bugs := 0
	over := make(chan struct{})
	go func() {
		defer close(over)
		followFiles(ctx, newFileWatch(), hangup, "rules", slog.New(slog.NewTextHandler(logSignal(lines), nil)), func() (slog.Attr, error) {
			if bugs++; bugs == 1 {
				panic("a bug")
			}
			return slog.Int("rules", 1), nil
		})
	}()

	for _, want := range []string{"rules refused", "rules read again"} {
		hangup <- syscall.SIGHUP
		if line := <-lines; !strings.Contains(line, want) {
			t.Errorf("line %q, want it to contain %q", line, want)
		}
	}

	end()
	<-over
}

// An AGENTS_FILE may be replaced a moment before the mcp.json with the servers that it names.
func TestRefusedFileIsReadAgainWithoutAChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, end := context.WithCancel(t.Context())
		hangup, log := make(chan os.Signal), new(syncBuffer)

		var readings atomic.Int64
		var complete atomic.Bool // the mcp.json has been replaced too
		var follower sync.WaitGroup
		follower.Go(func() {
			followFiles(ctx, newFileWatch(), hangup, "AGENTS_FILE", slog.New(slog.NewTextHandler(log, nil)), func() (slog.Attr, error) {
				if readings.Add(1); !complete.Load() {
					return slog.Attr{}, errors.New("no MCP server is named extra")
				}
				return slog.Int("agents", 1), nil
			})
		})

		hangup <- syscall.SIGHUP
		<-time.After(2 * (retryInterval + watchInterval))
		synctest.Wait()
		if refusals := strings.Count(log.String(), "AGENTS_FILE refused"); readings.Load() < 3 || refusals != 1 {
			t.Errorf("got %d readings and %d refusals in the log, want at least 3 and 1:\n%s", readings.Load(), refusals, log)
		}
		complete.Store(true)
		<-time.After(retryInterval + watchInterval)
		synctest.Wait()
		if !strings.Contains(log.String(), "AGENTS_FILE read again") {
			t.Errorf("got the log\n%s\nwant the file read again", log)
		}
		end()
		follower.Wait()
	})
}

type logSignal chan<- string

func (c logSignal) Write(p []byte) (int, error) {
	c <- string(p)
	return len(p), nil
}
