package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"answerd/internal/help"
)

// redacted replaces the value of a secret.
const redacted = "[redacted]"

// NewLogger returns a logger that writes lines of the given level or higher to w, as JSON. level is debug, info, warn
// or error, in any case. If debug is true, the level is debug. For any other level, NewLogger returns an error that
// names LOG_LEVEL.
//
// A line that is logged with the context of a request or run has the member trace_id. A warning or an error has the
// member help, which is the page of the documentation that says what to do about it (see package help). A value whose
// key names a secret is replaced, even in maps and headers. That is only a safeguard, on which callers must not rely.
// If w is a *LogWriter whose buffer is half full, lines below warn are dropped.
func NewLogger(w io.Writer, level string, debug bool) (*slog.Logger, error) {
	var minLevel slog.Level
	if err := minLevel.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("LOG_LEVEL: %q is none of debug, info, warn and error", level)
	}
	if debug {
		minLevel = slog.LevelDebug
	}
	logWriter, _ := w.(*LogWriter) // nil for another writer
	writer := &exportWriter{Writer: w}
	handler := slog.NewJSONHandler(writer, &slog.HandlerOptions{Level: minLevel, ReplaceAttr: redactAttr})
	return slog.New(&logHandler{Handler: handler, root: handler, logWriter: logWriter, writer: writer}), nil
}

// logHandler adds trace_id to lines, and help to warnings and errors, always at the top level.
//
// slog would put an attribute that is added to a record into the current group. logHandler therefore keeps the handler
// from before the first group as root, and the later calls of WithGroup and WithAttrs as steps. To add attributes at
// the top level, it adds them to root and repeats the steps.
type logHandler struct {
	slog.Handler                                   // root with all steps applied
	root         slog.Handler                      // the handler before the first group
	steps        []func(slog.Handler) slog.Handler // WithGroup and WithAttrs since root
	logWriter    *LogWriter                        // the writer that writer wraps; nil if it has another type
	writer       *exportWriter                     // the writer of Handler and root
}

// Handle implements slog.Handler. It adds trace_id and help where they are needed. If the LogWriter has no space for a
// line of the record's level, it drops the record and returns nil.
func (h *logHandler) Handle(ctx context.Context, record slog.Record) error {
	if h.logWriter != nil && !h.logWriter.admitLevel(record.Level) {
		return nil
	}
	var added []slog.Attr
	if traceID := TraceID(ctx); traceID != "" {
		added = append(added, slog.String("trace_id", traceID))
	}
	if needsHelp(record) {
		added = append(added, help.Troubleshooting.Attr())
	}
	if len(added) == 0 {
		return h.Handler.Handle(ctx, record)
	}
	if len(h.steps) == 0 {
		record = record.Clone()
		record.AddAttrs(added...)
		return h.Handler.Handle(ctx, record)
	}
	next := h.root.WithAttrs(added)
	for _, step := range h.steps {
		next = step(next)
	}
	return next.Handle(ctx, record)
}

// needsHelp reports whether a record is a warning or an error that has no attribute help.
func needsHelp(r slog.Record) bool {
	needs := r.Level >= slog.LevelWarn
	r.Attrs(func(a slog.Attr) bool {
		needs = needs && a.Key != help.Key
		return needs
	})
	return needs
}

// WithAttrs implements slog.Handler. Before the first group, the attributes become part of root.
func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(h.steps) == 0 {
		next := h.Handler.WithAttrs(attrs)
		return &logHandler{Handler: next, root: next, logWriter: h.logWriter, writer: h.writer}
	}
	return h.withStep(func(n slog.Handler) slog.Handler { return n.WithAttrs(attrs) })
}

// WithGroup implements slog.Handler.
func (h *logHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.withStep(func(n slog.Handler) slog.Handler { return n.WithGroup(name) })
}

// withStep returns a handler with one more step. It does not append to h.steps in place, because several handlers may
// be derived from h.
func (h *logHandler) withStep(step func(slog.Handler) slog.Handler) slog.Handler {
	return &logHandler{
		Handler:   step(h.Handler),
		root:      h.root,
		steps:     append(slices.Clip(h.steps), step),
		logWriter: h.logWriter,
		writer:    h.writer,
	}
}

// redactAttr replaces an attribute's value if its key, or the name of a group around it, names a secret. NewLogger uses
// it as slog.HandlerOptions.ReplaceAttr.
func redactAttr(groups []string, a slog.Attr) slog.Attr {
	if isSecretKey(a.Key) || slices.ContainsFunc(groups, isSecretKey) {
		return slog.String(a.Key, redacted)
	}
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	switch v := a.Value.Any().(type) {
	case http.Header:
		a.Value = slog.AnyValue(redactMap(v, []string{redacted}))
	case map[string]string:
		a.Value = slog.AnyValue(redactMap(v, redacted))
	case map[string]any:
		a.Value = slog.AnyValue(redactMap(v, any(redacted)))
	}
	return a
}

// redactMap returns a copy of m in which replacement is the value of every key that names a secret. It does not change
// m, because the code that logged m still uses it.
func redactMap[M ~map[string]V, V any](m M, replacement V) M {
	out := make(M, len(m))
	for key, value := range m {
		if isSecretKey(key) {
			value = replacement
		}
		out[key] = value
	}
	return out
}

// secretSuffixes lists how keys that name a secret end, in lower case and without separators. Only the endings are
// compared. Prefixes vary (LLM_API_KEY, X-Api-Key), and keys that contain such a word elsewhere must remain readable
// (total_tokens, token_url).
var secretSuffixes = []string{
	"authorization", "cookie", "token", "secret", "password", "passwd", "apikey", "datakey",
	"privatekey", "sessionid", "assertion",
}

// isSecretKey reports whether key names a secret. It must be fast, because it is called for each attribute of each
// line.
func isSecretKey(key string) bool {
	return slices.ContainsFunc(secretSuffixes, func(suffix string) bool { return hasSuffix(key, suffix) })
}

// hasSuffix reports whether key ends in suffix. It ignores the case of key, and the separators -, _, . and space in
// key. suffix must be in lower case and without separators. It compares from the end, and removes what it has compared.
func hasSuffix(key, suffix string) bool {
	const toLower = 0x20 // this bit makes an ASCII letter lower case
	for suffix != "" {
		if key == "" {
			return false
		}
		last := key[len(key)-1]
		key = key[:len(key)-1]
		if strings.IndexByte("-_. ", last) >= 0 {
			continue
		}
		if last|toLower != suffix[len(suffix)-1] {
			return false
		}
		suffix = suffix[:len(suffix)-1]
	}
	return true
}
