package telemetry

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// logLine gives the one JSON line that write logged.
func logLine(t *testing.T, write func(*slog.Logger)) (map[string]any, string) {
	t.Helper()
	var out bytes.Buffer
	log, err := NewLogger(&out, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	write(log)
	var fields map[string]any
	if err := json.Unmarshal(out.Bytes(), &fields); err != nil {
		t.Fatalf("%q: %v", out.String(), err)
	}
	return fields, out.String()
}

// Secrets are never logged, whatever the name of their key.
func TestLoggerRedactsSecrets(t *testing.T) {
	header := http.Header{"Authorization": {"Bearer CANARY"}, "Mcp-Session-Id": {"CANARY"}, "Accept": {"text/plain"}}
	fields, text := logLine(t, func(l *slog.Logger) {
		l.With("client_secret", "CANARY").Info("asked",
			"token", "CANARY", "access_token", "CANARY", "LLM_API_KEY", "CANARY", "X-Api-Key", "CANARY",
			"Set-Cookie", "CANARY", "password", []string{"CANARY"}, "session_id", "CANARY",
			"headers", header, "env", map[string]string{"OCI_APM_DATA_KEY": "CANARY", "A": "b"},
			"any", map[string]any{"secret": "CANARY", "n": 1},
			slog.Group("authorization", "scheme", "CANARY"),
			"total_tokens", 7, "token_url", "https://iam/token", "err", "bad\nline",
		)
	})

	if strings.Contains(text, "CANARY") {
		t.Errorf("got a line with a secret, want it redacted: %s", text)
	}
	if fields["total_tokens"] != 7.0 || fields["token_url"] != "https://iam/token" || !strings.Contains(text, "text/plain") {
		t.Errorf("got a line without its other values, want them: %s", text)
	}
	if header.Get("Authorization") != "Bearer CANARY" {
		t.Error("got the header changed by logging, want it unchanged")
	}
}

func TestLoggerAddsTheTraceID(t *testing.T) {
	ctx := trace.ContextWithSpanContext(t.Context(), randomSpanContext())
	id := TraceID(ctx)
	for name, write := range map[string]func(*slog.Logger){
		"plain":     func(l *slog.Logger) { l.InfoContext(ctx, "m") },
		"with":      func(l *slog.Logger) { l.With("a", 1).InfoContext(ctx, "m", "b", 2) },
		"in group":  func(l *slog.Logger) { l.WithGroup("g").InfoContext(ctx, "m", "b", 2) },
		"all mixed": func(l *slog.Logger) { l.With("a", 1).WithGroup("g").With("c", 3).InfoContext(ctx, "m", "b", 2) },
	} {
		fields, text := logLine(t, write)
		if fields["trace_id"] != id {
			t.Errorf("%s: got %s, want trace_id at its top", name, text)
		}
		if name == "all mixed" && (fields["a"] != 1.0 || !reflect.DeepEqual(fields["g"], map[string]any{"b": 2.0, "c": 3.0})) {
			t.Errorf("%s: got %s, want the fields in their groups", name, text)
		}
	}
	if fields, text := logLine(t, func(l *slog.Logger) { l.Info("m") }); fields["trace_id"] != nil {
		t.Errorf("got a trace_id outside of a trace, want none: %s", text)
	}
}

func TestLoggerLevel(t *testing.T) {
	for _, c := range []struct {
		level string
		debug bool
		want  slog.Level
	}{
		{"debug", false, slog.LevelDebug}, {"info", false, slog.LevelInfo}, {"WARN", false, slog.LevelWarn},
		{"error", false, slog.LevelError}, {"error", true, slog.LevelDebug},
	} {
		l, err := NewLogger(&bytes.Buffer{}, c.level, c.debug)
		if err != nil {
			t.Fatal(err)
		}
		if !l.Enabled(t.Context(), c.want) || l.Enabled(t.Context(), c.want-1) {
			t.Errorf("%s, debug %t: the lowest level is not %s", c.level, c.debug, c.want)
		}
	}
	if _, err := NewLogger(&bytes.Buffer{}, "loud", false); err == nil || !strings.Contains(err.Error(), "LOG_LEVEL") {
		t.Errorf("a bad level: %v, want an error that names LOG_LEVEL", err)
	}
}
