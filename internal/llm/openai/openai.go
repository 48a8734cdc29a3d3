// Package openai implements llm.Model for any endpoint that speaks Chat Completions.
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
// openai-go sends the requests. The chunks are decoded here, because endpoints deviate from the
// specification, and the SDK needs at least 25 times as long for each chunk. A request is
// retried only while no part of its answer was emitted. An error returned to the caller contains
// the codes of an endpoint's error and not its message. The log gets the message, without keys.
//
// Stream makes one attempt after the other (openai.go). An attempt sends the request, with an
// idleTimer that cuts the connection (attempt.go, timeout.go), and reads the reply, be it a stream, one
// completion or an error (response.go). Each chunk goes through a jsonScanner into a chunk
// (scanner.go, chunk.go), and an assembler makes the llm.Parts of it (assembler.go, calls.go). In the
// other direction, encodeRequest builds the body (request.go, message.go, tools.go, schema.go). The
// dialect says what this endpoint refuses of it (dialect.go), which is learned from its errors
// (errors.go).
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

	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/tlsconfig"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Config says which endpoint to ask, and bounds how long to wait. Its zero value asks OpenAI
// without a key.
type Config struct {
	BaseURL string            // up to and including /v1; empty means OpenAI's
	APIKey  string            // sent as a bearer token to BaseURL alone; empty sends none
	Key     func() string     // replaces APIKey and is called for each request; nil means APIKey
	Headers map[string]string // sent with every request; an Authorization replaces the key
	Query   map[string]string // added to the query of BaseURL
	TLS     *tlsconfig.Source // roots and client certificate; nil means the system's roots alone

	FirstByteTimeout time.Duration // until the first byte of the reply, for each try; 0 or less means 60 s
	IdleTimeout      time.Duration // between two bytes of a reply; 0 or less means 30 s
	MaxRetries       int           // tries after the first; 0 or less means none

	// Transport, if set, wraps the transport that sends the requests, for example with otelhttp.
	// Redirects are refused in any case.
	Transport func(http.RoundTripper) http.RoundTripper
	Tracer    trace.Tracer // nil records nothing
	Meter     metric.Meter // nil records nothing
	Logger    *slog.Logger // nil discards the log
	// MetricModels are the ids that metrics name, as requests and replies have them. Any other
	// model is "_other" there: callers and endpoints make names up, and each would be a series.
	MetricModels []string
	// Price returns the price of a model, by the id that is sent to the endpoint; nil is unknown. Spans
	// carry the cost of a call whose price is known.
	Price func(model string) *llm.Price
	// TraceContent adds prompts and answers to spans.
	TraceContent bool

	ShowErrors bool // append the endpoint's message to the public text of an error
}

// Defaults of Config, and sizes that it does not set.
const (
	defaultBaseURL          = "https://api.openai.com/v1"
	defaultFirstByteTimeout = 60 * time.Second
	defaultIdleTimeout      = 30 * time.Second
	idleConnsPerHost        = 1024 // Go's default of 2 leaves sockets in TIME_WAIT under load
	// Go's default of 4 KiB sends a request with ten tools in two writes and copies the second
	// part once more.
	writeBuffer = 16 << 10
)

// Model asks an endpoint that speaks Chat Completions. Any number of streams may run at the same
// time.
type Model struct {
	chat             sdk.ChatCompletionService
	transport        roundTripper // below chat
	firstByteTimeout time.Duration
	idleTimeout      time.Duration
	retries          int
	log              *slog.Logger
	telemetry        *instruments
	tools            toolCache
	endpoint         string // identifies the endpoint in llm.Extensions
	key              func() string
	options          []option.RequestOption // of every request: query and headers
	secrets          []string               // values of headers and of URLs, which no log may have
	dialect          dialectStore           // what the endpoint refuses, for all models
	// The models for which it refuses images, a response_format, or strict tools.
	images, formats, strictTools modelRefusals
	showErrors                   bool
}

// New returns a model for cfg. It sends no request; an invalid BaseURL fails every Stream.
func New(cfg Config) *Model {
	own := http.DefaultTransport.(*http.Transport).Clone()
	own.MaxIdleConns, own.MaxIdleConnsPerHost = idleConnsPerHost, idleConnsPerHost
	own.WriteBufferSize = writeBuffer
	own.DisableCompression = true // proxies that compress a stream also delay it
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
		// openai.NewClient would read OPENAI_* from the environment, and a key meant for OpenAI
		// would be sent to the endpoint configured here.
		chat: sdk.NewChatCompletionService(
			option.WithBaseURL(base),
			option.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: refuseRedirect}),
			// streamWithRetries makes the retries instead of the SDK, because a request may only
			// be repeated while no part of its answer was emitted.
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
// is part of a URL: an endpoint may repeat it in an error.
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

// refuseRedirect makes the client return a redirect as the reply. Following it would send the
// key and the prompt to another host.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes idle connections. Running streams are not affected, and the model remains usable.
func (m *Model) Close() { m.transport.CloseIdleConnections() }

// Stream asks the endpoint and yields the parts of the answer as they arrive. If ctx ends, it
// yields ctx's error; every other error is an *llm.Error.
func (m *Model) Stream(ctx context.Context, r llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		// The span's context is used for the requests, so that a tracing transport makes child
		// spans of it and sends it as the parent.
		ctx, call := m.telemetry.startCall(ctx, &r)
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
//
// An attempt that failed because the endpoint refuses a member is made again in another dialect, and
// that does not count as a retry: the endpoint works, and the first question after each start would
// otherwise use up the retries. It ends all the same, because withoutRefused only ever sets members of
// the dialect, and there are few.
func (m *Model) streamWithRetries(ctx context.Context, request *llm.Request, emit emitter) error {
	dialect := m.dialect.Load()
	dialect.noImages, dialect.noFormat = m.images.wasRefused(request.Model), m.formats.wasRefused(request.Model)
	dialect.noStrict = m.strictTools.wasRefused(request.Model)
	body, err := m.encodeWithDialect(request, dialect)
	if err != nil {
		return err
	}

	// All reasons for a retry share one budget. makeAttempt returns a retryableError only while no
	// part of the answer was emitted.
	retries := 0
	for {
		err := m.makeAttempt(ctx, body, emit)
		if failed, ok := errors.AsType[*llm.Error](err); ok {
			m.reportError(ctx, request.Model, failed, slices.Concat(m.secrets, []string{m.key()}))
		}
		var retryable *retryableError
		if !errors.As(err, &retryable) {
			return err
		}
		other := dialect.withoutRefused(retryable, body, len(request.OutputSchema) > 0)
		if other == dialect {
			if err := m.waitForRetry(ctx, request.Model, retries, retryable); err != nil {
				return err
			}
			retries++
			continue
		}
		m.rememberDialect(ctx, request.Model, other)
		dialect = other
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if body, err = m.encodeWithDialect(request, dialect); err != nil {
			return err
		}
	}
}

// rememberDialect remembers what an endpoint has refused of a request for the model.
func (m *Model) rememberDialect(ctx context.Context, model string, d dialect) {
	m.dialect.Store(d.endpointPart())
	if d.noImages && !m.images.wasRefused(model) {
		m.images.add(model)
		m.log.LogAttrs(ctx, slog.LevelWarn, "the model takes no images, so it gets a line of text in place of each",
			slog.String("model", model), slog.Duration("remembered_for", refusalLifetime), help.Images.Attr())
	}
	if d.noStrict && !d.toolRefused && !m.strictTools.wasRefused(model) {
		m.strictTools.add(model)
	}
	if d.noFormat && !d.schemaRefused && !m.formats.wasRefused(model) {
		m.formats.add(model)
		m.log.LogAttrs(ctx, slog.LevelWarn, "the model takes no response_format, so the schema of an answer is written into its prompt",
			slog.String("model", model), slog.Duration("remembered_for", refusalLifetime))
	}
}

// encodeWithDialect encodes the request for the endpoint, in its dialect.
func (m *Model) encodeWithDialect(r *llm.Request, d dialect) ([]byte, error) {
	body, err := encodeRequest(r, &m.tools, m.endpoint, d)
	if err != nil {
		return nil, newError(llm.ModelError, publicRefused, err)
	}
	return body, nil
}

// waitForRetry waits until the next attempt may start. Its error ends the answer. If another
// attempt is useless, it returns the error of f.
func (m *Model) waitForRetry(ctx context.Context, model string, try int, f *retryableError) error {
	delay, ok := retryDelay(try, f.retryAfter, time.Now())
	if !f.retry || !ok || try >= m.retries {
		return f.err
	}
	m.log.LogAttrs(ctx, slog.LevelWarn, "model call failed, trying again",
		slog.String("model", model), slog.Int("status", f.err.Status), slog.Int("try", try+1), slog.Duration("delay", delay), help.Model.Attr())
	return sleepContext(ctx, delay)
}

// reportError redacts the endpoint's message and logs it. If the operator has set ShowErrors, it
// also adds the message to the public text.
func (m *Model) reportError(ctx context.Context, model string, modelErr *llm.Error, secrets []string) {
	if modelErr.Message == "" {
		return
	}
	modelErr.Message = redactMessage(modelErr.Message, secrets)
	m.log.LogAttrs(ctx, slog.LevelWarn, "the model endpoint returned an error",
		slog.String("model", model), slog.Int("status", modelErr.Status), slog.String("message", modelErr.Message), help.Model.Attr())
	if m.showErrors {
		modelErr.Public += " It said: " + modelErr.Message
	}
}
