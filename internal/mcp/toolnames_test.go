package mcp

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/mcp/config"
	"answerd/internal/values"
)

// namesStore is a store of values that a test makes fail.
type namesStore struct {
	values.Memory
	down   atomic.Bool
	writes atomic.Int64
}

func (s *namesStore) Value(ctx context.Context, key values.Key) ([]byte, uint64, error) {
	if s.down.Load() {
		return nil, 0, context.DeadlineExceeded
	}
	return s.Memory.Value(ctx, key)
}

func (s *namesStore) SetValue(ctx context.Context, key values.Key, value []byte, revision uint64, ttl time.Duration) (uint64, error) {
	s.writes.Add(1)
	return s.Memory.SetValue(ctx, key, value, revision, ttl)
}

// storedNames returns the names that the store has of a server.
func (s *namesStore) storedNames(t *testing.T, server string) string {
	t.Helper()
	data, _, err := s.Value(t.Context(), toolNamesKey(server))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// waitUntilStored waits until the store has want of a server: names are stored after they are offered.
func (s *namesStore) waitUntilStored(t *testing.T, server, want string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for s.storedNames(t, server) != want {
		if time.Now().After(deadline) {
			t.Fatalf("the store has %s of %s, want %s", s.storedNames(t, server), server, want)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// TestNameStaysWithAServerThatIsDownAfterARestart starts two servers with a tool of the same name, and then
// another process with the first server down: the second server's tool does not take the name.
func TestNameStaysWithAServerThatIsDownAfterARestart(t *testing.T) {
	store := &namesStore{}
	first, second := serveHTTP(t, streamableHandler(t, newToolServer(nil), nil)), serveHTTP(t, streamableHandler(t, newToolServer(nil), nil))
	servers := []config.Server{{Name: "a", URL: first.URL}, {Name: "b", URL: second.URL}}
	before := newClient(t, Options{ToolNames: store}, servers...)
	if got := namesOf(before.Tools(t.Context())); got != "echo b_echo" {
		t.Fatalf("tools %q, want echo of a and b_echo", got)
	}
	store.waitUntilStored(t, "a", `["echo"]`)
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	servers[0].URL = "http://127.0.0.1:1/"
	after := newClient(t, Options{ToolNames: store}, servers...)
	if got := namesOf(after.Tools(t.Context())); got != "b_echo" {
		t.Errorf("tools after a restart with a down: %q, want b_echo alone", got)
	}
	if tool, ok := after.Tool("echo"); ok {
		t.Errorf("the tool echo is that of %s, want none", tool.Server)
	}

	// A server that is added later has its names read too, and one that is known keeps them.
	if err := after.Reload(slices.Insert(slices.Clone(servers), 1, config.Server{Name: "c", URL: "http://127.0.0.1:1/"})); err != nil {
		t.Fatal(err)
	}
	if got := namesOf(after.Tools(t.Context())); got != "b_echo" {
		t.Errorf("tools after a reload: %q, want b_echo alone", got)
	}

	// Without the store nothing is known of the server, as with the log in memory.
	if got := namesOf(newClient(t, Options{}, servers...).Tools(t.Context())); got != "echo" {
		t.Errorf("tools without a store: %q, want echo", got)
	}
}

// TestToolNamesAreStoredWhenTheyChange checks what is written, and that a store that is down delays nothing
// but a log line.
func TestToolNamesAreStoredWhenTheyChange(t *testing.T) {
	store, log := &namesStore{}, &bytes.Buffer{}
	server := newToolServer(nil)
	web := serveHTTP(t, streamableHandler(t, server, nil))
	c := newClient(t, Options{ToolNames: store, Logger: textLog(log)}, config.Server{Name: "a", URL: web.URL})
	c.Tools(t.Context())
	store.waitUntilStored(t, "a", `["echo"]`)

	for range 3 {
		if err := c.Refresh(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}

	if n := store.writes.Load(); n != 1 {
		t.Errorf("%d writes of the same names, want 1", n)
	}
	addRawTool(server, "add", func(context.Context, *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{}, nil
	})
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	store.waitUntilStored(t, "a", `["add","echo"]`)
	store.down.Store(true)
	down := newClient(t, Options{ToolNames: store, Logger: textLog(log)}, config.Server{Name: "a", URL: web.URL})
	if got := namesOf(down.Tools(t.Context())); got != "add echo" {
		t.Errorf("tools with the store down: %q, want add echo", got)
	}
	if err := down.Close(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "cannot be read") {
		t.Errorf("log %s, want a line about the store", log)
	}
}

// TestToolNamesAreBounded stores more names than a value may have.
func TestToolNamesAreBounded(t *testing.T) {
	store := &namesStore{}
	c := newClient(t, Options{ToolNames: store})

	var names []string
	for n := range 512 {
		names = append(names, fmt.Sprintf("%0*d", 600, n))
	}

	if err := c.saveToolNames(t.Context(), "a", names); err != nil {
		t.Fatal(err)
	}
	got, _, err := c.loadToolNames(t.Context(), "a")
	if size := len(store.storedNames(t, "a")); err != nil || len(got) == 0 || len(got) == len(names) || size > values.MaxSize || got[0] != names[0] {
		t.Errorf("%d names in %d bytes, %v, want the first ones within %d bytes", len(got), size, err, values.MaxSize)
	}
	if _, err := store.SetValue(t.Context(), toolNamesKey("b"), []byte(`{"another":"version"}`), 0, time.Hour); err != nil {
		t.Fatal(err)
	}
	if got, _, err := c.loadToolNames(t.Context(), "b"); err != nil || got != nil {
		t.Errorf("names of another version = %q, %v, want none", got, err)
	}
}
