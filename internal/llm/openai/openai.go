// Package openai is an llm.Model behind any endpoint that speaks Chat Completions.
//
//	model := openai.New(openai.Config{BaseURL: "http://127.0.0.1:11434/v1", MaxRetries: 2})
//	defer model.Close()
//	question := llm.Request{Model: "qwen3", Messages: []llm.Message{{Role: llm.User, Text: "Hi"}}}
//	for part, err := range model.Stream(ctx, question) {
//		if err != nil {
//			return err
//		}
//		if text, ok := part.(llm.Text); ok {
//			fmt.Print(text.Delta)
//		}
//	}
//
// openai-go sends the requests. The chunks are decoded here, because endpoints vary in what
// they send, and the SDK needs at least 25 times as long for each. A request is retried only while
// no part of its answer was emitted. Of what an endpoint writes about an error, the text of the
// error has its codes only; the log has the message, without keys.
package openai

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"answerd/internal/llm"
	"answerd/internal/tlsconfig"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Config says which endpoint to ask and how patiently. Its zero value asks
// OpenAI's own without a key.
type Config struct {
	BaseURL string            // up to and including /v1; empty is OpenAI's
	APIKey  string            // sent as a bearer token to BaseURL alone; empty sends none
	Key     func() string     // in place of APIKey, asked for each request; nil is APIKey
	Headers map[string]string // sent with every request; an Authorization replaces the key
	Query   map[string]string // added to the query of BaseURL
	TLS     *tlsconfig.Source // roots and client certificate; nil means the system's roots alone

	FirstByteTimeout time.Duration // until the reply's first byte, for each try; 0 or less is 60 s
	IdleTimeout      time.Duration // between two bytes of a reply; 0 or less is 30 s
	MaxRetries       int           // tries after the first; 0 or less is none

	// Transport, if set, wraps the transport that sends the requests, such as with
	// otelhttp. Redirects are refused with any.
	Transport func(http.RoundTripper) http.RoundTripper
	Tracer    trace.Tracer // nil records nothing
	Meter     metric.Meter // nil records nothing
	Logger    *slog.Logger // nil discards
	System    string       // gen_ai.provider.name; empty is "openai"
	// MetricModels are the ids that metrics name, as requests and replies have them. Any other
	// model is "_other" there: callers and endpoints make names up, and each would be a series.
	MetricModels []string

	ShowErrors bool // the public text of an error ends with what the endpoint says
}

// Times and sizes that Config leaves open.
const (
	defaultBaseURL          = "https://api.openai.com/v1"
	defaultFirstByteTimeout = 60 * time.Second
	defaultIdleTimeout      = 30 * time.Second
	idleConnsPerHost        = 1024 // Go's default of 2 leaves sockets in TIME_WAIT under load
	// Go's default of 4 KiB sends a request with ten tools in two pieces, the second of them
	// copied once more.
	writeBuffer = 16 << 10
)

// OpenAI is a model behind an endpoint that speaks Chat Completions. It is safe for
// any number of streams at once.
type Model struct {
	chat             sdk.ChatCompletionService
	transport        roundTripper // below chat
	firstByteTimeout time.Duration
	idleTimeout      time.Duration
	retries          int
	log              *slog.Logger
	telemetry        *instruments
	tools            toolCache
	endpoint         string // names it in llm.Extensions
	key              func() string
	options          []option.RequestOption // of every request: query and headers
	secrets          []string               // values of headers and of URLs, which no log may have
	dialect          dialectStore
	showErrors       bool
}

// New returns a model for cfg. It asks nothing of the endpoint; a BaseURL that is
// no URL fails every Stream.
func New(cfg Config) *Model {
	own := http.DefaultTransport.(*http.Transport).Clone()
	own.MaxIdleConns, own.MaxIdleConnsPerHost = idleConnsPerHost, idleConnsPerHost
	own.WriteBufferSize = writeBuffer
	own.DisableCompression = true // compressed streams are held back by whoever compresses
	var lowest roundTripper = own
	if cfg.TLS != nil {
		lowest = cfg.TLS.Transport(own)
	}
	var transport http.RoundTripper = endpointTransport{lowest}
	if cfg.Transport != nil {
		transport = cfg.Transport(transport)
	}
	base, query := splitQuery(cmp.Or(cfg.BaseURL, defaultBaseURL))
	key := cfg.Key
	if key == nil {
		key = func() string { return cfg.APIKey }
	}
	options := []option.RequestOption{}
	for name, values := range query {
		for _, v := range values {
			options = append(options, option.WithQueryAdd(name, v))
		}
	}
	for name, v := range cfg.Query {
		options = append(options, option.WithQuery(name, v))
	}
	for name, v := range cfg.Headers {
		options = append(options, option.WithHeader(name, v))
	}
	return &Model{
		// The service and not openai.NewClient, which reads OPENAI_* from the environment:
		// a key meant for OpenAI would go to whatever endpoint is configured here.
		chat: sdk.NewChatCompletionService(
			option.WithBaseURL(base),
			option.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: refuseRedirect}),
			// Retries are made by stream and not by the SDK: whether a request may be sent
			// again depends on whether a part of its answer was handed out.
			option.WithMaxRetries(0),
		),
		transport:        lowest,
		firstByteTimeout: cmp.Or(max(cfg.FirstByteTimeout, 0), defaultFirstByteTimeout),
		idleTimeout:      cmp.Or(max(cfg.IdleTimeout, 0), defaultIdleTimeout),
		retries:          max(cfg.MaxRetries, 0),
		log:              cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		telemetry:        newTelemetry(cfg, base),
		endpoint:         endpointID(base),
		key:              key,
		options:          options,
		secrets:          requestSecrets(cfg, base, query),
		showErrors:       cfg.ShowErrors,
	}
}

// splitQuery returns a base URL without its query, which openai-go would drop, and the query.
func splitQuery(base string) (string, url.Values) {
	u, err := url.Parse(base)
	if err != nil || u.RawQuery == "" {
		return base, nil
	}
	query := u.Query()
	u.RawQuery = ""
	return u.String(), query
}

// requestSecrets returns what the operator has configured of each request, as it is and as it
// stands in a URL: an endpoint may repeat it in an error.
func requestSecrets(cfg Config, base string, query url.Values) []string {
	secrets := slices.Concat(slices.Collect(maps.Values(cfg.Headers)), slices.Collect(maps.Values(cfg.Query)))
	for _, values := range query {
		secrets = append(secrets, values...)
	}
	if u, err := url.Parse(base); err == nil && u.User != nil {
		password, _ := u.User.Password()
		secrets = append(secrets, password)
	}
	for _, s := range slices.Clone(secrets) {
		secrets = append(secrets, url.QueryEscape(s), url.PathEscape(s))
	}
	// The longest first, since one may be a part of another.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(secrets)
}

// refuseRedirect returns a redirect as the reply: following it would send the key and the
// prompt to another host.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes idle connections. Running streams are not affected, and the model stays
// usable.
func (m *Model) Close() { m.transport.CloseIdleConnections() }

// Stream asks the endpoint and yields the answer's parts as they arrive. If ctx ends,
// it yields ctx's error; every other error is an *Error.
func (m *Model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		// The requests are made under the span, so that a tracing transport nests below it
		// and sends it on as the parent.
		ctx, call := m.telemetry.startCall(ctx, r.Model)
		err := m.streamWithRetries(ctx, &r, func(p llm.Part) bool {
			call.recordPart(ctx, p)
			return yield(p, nil)
		})
		call.recordEnd(ctx, err)
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// streamWithRetries produces one answer within the allowed number of attempts.
func (m *Model) streamWithRetries(ctx context.Context, r *llm.Request, emit emitter) error {
	dialect := m.dialect.Load()
	body, err := m.encode(r, dialect)
	if err != nil {
		return err
	}
	// One budget for all reasons. Only what try marks as a failure comes back here, and it
	// does so only while no part has been handed out.
	for try := 0; ; try++ {
		err := m.attempt(ctx, body, emit)
		if failed, ok := errors.AsType[*llm.Error](err); ok {
			m.reportError(ctx, r.Model, failed, slices.Concat(m.secrets, []string{m.key()}))
		}
		var f *retryableError
		if !errors.As(err, &f) {
			return err
		}
		if other := dialect.without(f.err, body); other != dialect {
			dialect = other
			if m.dialect.Store(dialect.remembered()); ctx.Err() != nil {
				return ctx.Err()
			}
			if body, err = m.encode(r, dialect); err != nil {
				return err
			}
			try--
			continue
		}
		if err := m.waitForRetry(ctx, r.Model, try, f); err != nil {
			return err
		}
	}
}

// encode renders r for the endpoint.
func (m *Model) encode(r *llm.Request, d dialect) ([]byte, error) {
	body, err := encodeRequest(r, &m.tools, m.endpoint, d)
	if err != nil {
		return nil, newError(llm.ModelError, publicRefused, err)
	}
	return body, nil
}

// waitForRetry waits until it is time for another attempt. Its error ends the answer; if
// another attempt is useless, it is that of f.
func (m *Model) waitForRetry(ctx context.Context, model string, try int, f *retryableError) error {
	delay, ok := retryDelay(try, f.retryAfter, time.Now())
	if !f.retry || !ok || try >= m.retries {
		return f.err
	}
	m.log.LogAttrs(ctx, slog.LevelWarn, "model call failed, trying again",
		slog.String("model", model), slog.Int("status", f.err.Status), slog.Int("try", try+1), slog.Duration("delay", delay))
	return sleepContext(ctx, delay)
}
