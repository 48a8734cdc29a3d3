package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"answerd/internal/llm/llmtest"
)

// A key that is rotated in its file is sent with the next request, without a restart.
func TestModelKeyFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	key := filepath.Join(t.TempDir(), "key")
	writeKey := func(text string, modified time.Time) {
		t.Helper()
		if err := os.WriteFile(key, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(key, modified, modified); err != nil { // file systems may count in seconds
			t.Fatal(err)
		}
	}

	now := time.Now()
	writeKey("first-key", now)
	model := llmtest.New(t, llmtest.Turns(llmtest.Says("Hello.")))
	file := modelsFile(t, fmt.Sprintf(`[{"id":"m","base_url":%q,"api_key_file":%q}]`, model.URL, key))

	s := startAnswerd(t, newTestEnvironment("ADDR", "127.0.0.1:0", "LLM_BASE_URL", "http://127.0.0.1:1", "LLM_API_KEY", "key-of-the-setting", "MODELS_FILE", file))
	c := newClient(t)
	ask := func() {
		t.Helper()
		resp := post(t, c, s.url+"/answer", `{"question":"Hi"}`)
		if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
			t.Fatalf("got %s %s, want 200", resp.Status, body)
		}
	}

	ask()
	writeKey("second-key", now.Add(2*time.Second))
	ask()

	for i, want := range []string{"Bearer first-key", "Bearer second-key"} {
		if got := model.Requests()[i].Header.Get("Authorization"); got != want {
			t.Errorf("request %d: got Authorization %q, want %q", i, got, want)
		}
	}
}
