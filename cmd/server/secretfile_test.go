package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"answerd/internal/auth"
	"answerd/internal/tlsconfig/tlstest"
)

// newSecretInFile returns the path of a file with a secret, and a function that replaces it.
func newSecretInFile(t *testing.T, secret string) (path string, replace func(string)) {
	t.Helper()
	path, modified := filepath.Join(t.TempDir(), "secret"), time.Now()
	replace = func(text string) {
		t.Helper()
		tlstest.ReplaceFile(t, path, []byte(text))
		modified = modified.Add(2 * time.Second) // file systems may count in seconds
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	replace(secret)
	return path, replace
}

// Some deployment tools give every version of a file the same time.
func TestSecretFileNoticesAReplacementWithTheSameTime(t *testing.T) {
	t.Parallel()
	modified := time.Now().Add(-time.Hour)
	for how, replace := range map[string]func(path string){
		"another file":          func(path string) { tlstest.ReplaceFile(t, path, []byte("other\n")) },
		"same file, other size": func(path string) { _ = os.WriteFile(path, []byte("another\n"), 0o600) },
	} {
		path, _ := newSecretInFile(t, "first\n")
		setTime := func() {
			if err := os.Chtimes(path, modified, modified); err != nil {
				t.Fatal(err)
			}
		}

		setTime()
		file := &secretFile{path: path, what: "a test", logger: slog.New(slog.DiscardHandler)}
		if got := file.read(); got != "first" {
			t.Fatalf("%s: got %q at first, want first", how, got)
		}
		replace(path)
		setTime()
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := file.read(), strings.TrimSpace(string(text)); got != want {
			t.Errorf("%s: got %q, want %q", how, got, want)
		}
	}
}

// Every request reads the secret, but a missing file is logged only when it begins to be missing.
func TestSecretFileThatIsMissingIsLoggedOnce(t *testing.T) {
	path, replace := newSecretInFile(t, "first\n")
	var log strings.Builder
	file := &secretFile{path: path, what: "a test", logger: slog.New(slog.NewJSONHandler(&log, nil))}
	for n := range 2 {
		replace("first\n")
		file.read()
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		for range 3 { // as for three requests
			if got := file.read(); got != "first" {
				t.Errorf("got %q while the file is missing, want first", got)
			}
		}
		if got := strings.Count(log.String(), "cannot be used"); got != n+1 {
			t.Errorf("got %d warnings after the file was missing %d times, want as many", got, n+1)
		}
	}
}

// A file of white space is an error at the start. Later it must not replace the secret.
func TestSecretFileKeepsItsSecretIfTheFileIsBlank(t *testing.T) {
	t.Parallel()
	path, replace := newSecretInFile(t, "first\n")
	file := &secretFile{path: path, what: "a test", logger: slog.New(slog.DiscardHandler)}
	file.read()
	replace(" \n")
	if got, want := file.read(), "first"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Hooks are signed with the secret that is in HOOKS_SECRET_FILE now. A file that is empty or missing
// for a moment changes nothing.
func TestHooksSecretFileIsReadAgainWhenItChanges(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex // protects signedWith
	var signedWith []string
	hooks := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		found := "another secret"
		for _, secret := range []string{"first", "second", ""} {
			mac := hmac.New(sha256.New, []byte(secret))
			mac.Write(body)
			if r.Header.Get("X-Answerd-Signature") == "sha256="+hex.EncodeToString(mac.Sum(nil)) {
				found = secret
			}
		}
		mu.Lock()
		signedWith = append(signedWith, found)
		mu.Unlock()
		_, _ = io.WriteString(w, `{}`)
	}))
	t.Cleanup(hooks.Close)
	path, replace := newSecretInFile(t, "first\n")
	w := newTestWorld(t, newTwoCallScript())

	s := startAnswerd(t, w.environment("HOOKS_URL", hooks.URL, "HOOKS_SECRET_FILE", path))
	ask := func() {
		t.Helper()
		if status, body := callTool(t, newClient(t), s.url, "calculate", `{"expression":"1+1"}`); status != http.StatusOK {
			t.Fatalf("got %d %s, want 200", status, body)
		}
	}

	ask()
	replace("second\n")
	ask()
	replace("")
	ask()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	ask()
	mu.Lock()
	defer mu.Unlock()

	// Before the call and after it.
	if got, want := strings.Join(signedWith, " "), "first first second second second second second second"; got != want {
		t.Errorf("got questions signed with %s, want %s", got, want)
	}
	if log := s.log.String(); !strings.Contains(log, `"for":"HOOKS_SECRET"`) || strings.Contains(log, "second") {
		t.Errorf("got log %s, want a warning about HOOKS_SECRET and no secret", log)
	}
}

// A client secret that the IAM refuses is read again from IAM_CLIENT_SECRET_FILE.
func TestClientSecretFileIsReadAgainWhenItIsRefused(t *testing.T) {
	var mu sync.Mutex // protects what follows
	good, issued := "first", 0
	iam := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if _, secret, _ := r.BasicAuth(); secret != good {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		issued++
		fmt.Fprintf(w, `{"access_token":"token-%d","token_type":"Bearer","expires_in":3600}`, issued)
	}))
	t.Cleanup(iam.Close)
	path, replace := newSecretInFile(t, "first\n")
	c, err := loadConfig(newTestEnvironment("LLM_BASE_URL", "http://127.0.0.1:9/v1", "ENABLE_JWT_TOKEN", "true", "IAM_BASE_URL", iam.URL, "IAM_CLIENT_ID", "me", "IAM_CLIENT_SECRET_FILE", path))
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := newTokens(c, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tokens.Close)
	first, err := tokens.Token(t.Context())
	if err != nil || first.Reveal() != "token-1" {
		t.Fatalf("got %v, want a first token", err)
	}
	replace("second\n")
	mu.Lock()
	good = "second"
	mu.Unlock()
	var next auth.Secret
	if next, err = tokens.Renew(t.Context(), first); err != nil || next.Reveal() != "token-2" {
		t.Errorf("got %v, want a token for the second secret", err)
	}
}
