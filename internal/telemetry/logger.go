package telemetry

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/trace"
)

const redacted = "[redacted]"

// NewLogger writes JSON lines to w from level on: debug, info, warn or error, in any
// case; debug means level debug whatever level says. A line that is logged with the
// context of a request or run carries its trace_id. Values whose key names a secret
// are replaced, in maps and headers too; that is a safeguard, and no caller may rely on it.
// If w is a *LogWriter whose buffer is full, lines below warn are dropped first. An error
// names LOG_LEVEL.
func NewLogger(w io.Writer, level string, debug bool) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("LOG_LEVEL: %q is none of debug, info, warn and error", level)
	}
	if debug {
		l = slog.LevelDebug
	}
	lines, _ := w.(*LogWriter)
	out := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: l, ReplaceAttr: redactAttr})
	return slog.New(&logHandler{Handler: out, root: out, lines: lines}), nil
}

// logHandler adds trace_id to the lines of its Handler.
type logHandler struct {
	slog.Handler
	// A trace_id that is added to a record lands in the open group. So from the
	// first group on, root and the steps from it are kept, to add it in front.
	root  slog.Handler
	steps []func(slog.Handler) slog.Handler
	lines *LogWriter // nil if the writer is another one
}

func (h *logHandler) Handle(ctx context.Context, r slog.Record) error {
	if h.lines != nil && !h.lines.admitLevel(r.Level) {
		return nil
	}
	sc := trace.SpanContextFromContext(ctx)
	if !sc.HasTraceID() {
		return h.Handler.Handle(ctx, r)
	}
	id := slog.String("trace_id", sc.TraceID().String())
	if len(h.steps) == 0 {
		r = r.Clone()
		r.AddAttrs(id)
		return h.Handler.Handle(ctx, r)
	}
	next := h.root.WithAttrs([]slog.Attr{id})
	for _, step := range h.steps {
		next = step(next)
	}
	return next.Handle(ctx, r)
}

func (h *logHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(h.steps) == 0 {
		next := h.Handler.WithAttrs(attrs)
		return &logHandler{Handler: next, root: next, lines: h.lines}
	}
	return h.withStep(func(n slog.Handler) slog.Handler { return n.WithAttrs(attrs) })
}

func (h *logHandler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return h.withStep(func(n slog.Handler) slog.Handler { return n.WithGroup(name) })
}

func (h *logHandler) withStep(step func(slog.Handler) slog.Handler) slog.Handler {
	return &logHandler{
		Handler: step(h.Handler),
		root:    h.root,
		steps:   append(slices.Clip(h.steps), step),
		lines:   h.lines,
	}
}

// redactAttr implements slog.HandlerOptions.ReplaceAttr for NewLogger.
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

// redactMap returns a copy of m with in instead of the values of secret keys.
func redactMap[M ~map[string]V, V any](m M, in V) M {
	out := make(M, len(m))
	for k, v := range m {
		if isSecretKey(k) {
			v = in
		}
		out[k] = v
	}
	return out
}

// secretSuffixes are the suffixes of keys that name a secret, in lower case and without
// separators. Prefixes vary (LLM_API_KEY, X-Api-Key), and keys that only contain such a word
// must stay readable (total_tokens, token_url).
var secretSuffixes = []string{
	"authorization", "cookie", "token", "secret", "password", "passwd", "apikey", "datakey",
	"privatekey", "sessionid", "assertion",
}

var separators = strings.NewReplacer("-", "", "_", "", ".", "", " ", "")

func isSecretKey(key string) bool {
	key = separators.Replace(strings.ToLower(key))
	return slices.ContainsFunc(secretSuffixes, func(end string) bool { return strings.HasSuffix(key, end) })
}
