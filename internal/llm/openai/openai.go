// Package openai implements llm.Model for any endpoint with the Chat Completions API.
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
// openai-go sends the requests. The chunks are decoded here, because endpoints deviate from the specification, and
// because the SDK needs at least 25 times as long for each chunk. A request is retried only while no part of its answer
// was emitted. An error returned to the caller contains the codes of an endpoint's error but not its message. The log
// gets the message, without keys.
//
// Stream makes one attempt after the other (openai.go). An attempt sends the request, with an idleTimer that can cut
// the connection (attempt.go, timeout.go), and reads the reply, which is a stream, a whole completion or an error
// (response.go). A jsonScanner reads each chunk into a chunk (scanner.go, chunk.go), and an assembler converts it to
// llm.Parts (assembler.go, calls.go). In the other direction, encodeRequest builds the body (request.go, message.go,
// tools.go, schema.go). The dialect says which parts of a request this endpoint refuses (dialect.go). It is learned
// from the endpoint's errors (errors.go).
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

	"answerd/internal/auth/fetch"
	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/tlsconfig"

	sdk "github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"
)

// Config says which endpoint to ask and how long to wait. The zero value asks OpenAI without a key.
type Config struct {
	BaseURL string            // up to and including /v1; "" means OpenAI's
	APIKey  string            // sent as a bearer token, and only to BaseURL; "" sends none
	Key     func() string     // returns the key for a request and replaces APIKey; nil means APIKey
	Headers map[string]string // sent with every request; an Authorization header replaces the key
	Query   map[string]string // added to the query of BaseURL
	TLS     *tlsconfig.Source // certificates; nil means the system's roots and no client certificate

	FirstByteTimeout time.Duration // until the first byte of the reply, for each attempt; 0 or less means 60 s
	IdleTimeout      time.Duration // between two bytes of a reply; 0 or less means 30 s
	MaxRetries       int           // attempts after the first; 0 or less means no retries

	// Transport, if not nil, wraps the transport that sends the requests, for example with otelhttp. Redirects are
	// refused in any case.
	Transport func(http.RoundTripper) http.RoundTripper
	Tracer    trace.Tracer // nil records nothing
	Meter     metric.Meter // nil records nothing
	Logger    *slog.Logger // nil discards the log
	// MetricModels lists the model ids that metrics may name, as they appear in requests and replies. Metrics call any
	// other model "_other", because callers and endpoints can make up names, and each name would be a separate series.
	MetricModels []string
	// Price returns the price of a model, by the id that is sent to the endpoint, or nil if the price is unknown. If
	// the price is known, the span of a call includes the cost.
	Price func(model string) *llm.Price
	// TraceContent adds prompts and answers to spans.
	TraceContent bool

	ShowErrors bool // append the endpoint's message to the public text of an error
}

// Defaults of Config, and sizes that Config does not set.
const (
	defaultBaseURL          = "https://api.openai.com/v1"
	defaultFirstByteTimeout = 60 * time.Second
	defaultIdleTimeout      = 30 * time.Second
	idleConnsPerHost        = 1024 // Go's default of 2 leaves sockets in TIME_WAIT under load
	// With Go's default of 4 KiB, a request with ten tools needs two writes, and its second part is copied once more.
	writeBuffer = 16 << 10
)

// Model asks an endpoint with the Chat Completions API. Any number of streams may run at the same time.
type Model struct {
	chat             sdk.ChatCompletionService
	connections      roundTripper // sends the requests of chat; Close closes its idle connections
	firstByteTimeout time.Duration
	idleTimeout      time.Duration
	retries          int
	log              *slog.Logger
	telemetry        *instruments
	tools            toolCache
	endpoint         string                 // identifies the endpoint in llm.Extensions
	key              func() string          // returns the API key for the next request; "" for none
	options          []option.RequestOption // for every request: query and headers
	secrets          []string               // values of headers and URLs, which are removed from logged messages
	dialects         knownDialects
	showErrors       bool
}

// New returns a Model for cfg. It sends no requests. If cfg.BaseURL is invalid, every Stream returns an error.
func New(cfg Config) *Model {
	connections := newConnections(cfg)
	var transport http.RoundTripper = endpointTransport{connections}
	if cfg.Transport != nil {
		transport = cfg.Transport(transport)
	}
	base, query := splitQuery(cmp.Or(cfg.BaseURL, defaultBaseURL))
	key := cfg.Key
	if key == nil {
		key = func() string { return cfg.APIKey }
	}
	return &Model{
		// Do not use openai.NewClient. It reads OPENAI_* from the environment, and would send a key meant for OpenAI to
		// the endpoint configured here.
		chat: sdk.NewChatCompletionService(
			option.WithBaseURL(base),
			option.WithHTTPClient(&http.Client{Transport: transport, CheckRedirect: refuseRedirect}),
			// streamWithRetries makes the retries instead of the SDK, because a request may only be repeated while no
			// part of its answer was emitted.
			option.WithMaxRetries(0),
		),
		connections:      connections,
		firstByteTimeout: cmp.Or(max(cfg.FirstByteTimeout, 0), defaultFirstByteTimeout),
		idleTimeout:      cmp.Or(max(cfg.IdleTimeout, 0), defaultIdleTimeout),
		retries:          max(cfg.MaxRetries, 0),
		log:              cmp.Or(cfg.Logger, slog.New(slog.DiscardHandler)),
		telemetry:        newTelemetry(cfg, base),
		endpoint:         endpointID(base),
		key:              key,
		options:          requestOptions(cfg, query),
		secrets:          requestSecrets(cfg, base, query),
		showErrors:       cfg.ShowErrors,
	}
}

// newConnections returns a transport with a separate connection pool and the certificates of cfg.
func newConnections(cfg Config) roundTripper {
	pool := fetch.NewTransport()
	pool.MaxIdleConns, pool.MaxIdleConnsPerHost = idleConnsPerHost, idleConnsPerHost
	pool.WriteBufferSize = writeBuffer
	pool.DisableCompression = true // proxies that compress a stream also delay it
	if cfg.TLS != nil {
		return cfg.TLS.Transport(pool)
	}
	return pool
}

// requestOptions returns the options for every request: the query of the base URL, and the query and headers of cfg. A
// parameter in cfg.Query replaces the parameter with the same name in the base URL.
func requestOptions(cfg Config, baseQuery url.Values) []option.RequestOption {
	var options []option.RequestOption
	for name, values := range baseQuery {
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
	return options
}

// splitQuery separates the query from a base URL, because openai-go would drop it. It returns an invalid URL unchanged,
// with a nil query.
func splitQuery(base string) (withoutQuery string, query url.Values) {
	u, err := url.Parse(base)
	if err != nil || u.RawQuery == "" {
		return base, nil
	}
	query = u.Query()
	u.RawQuery = ""
	return u.String(), query
}

// requestSecrets returns the configured values that may be secret and that an endpoint may repeat in an error: headers,
// query parameters and the password of the base URL. Each value is listed unescaped and in both URL escapings, longest
// first. The API key is not included, because Config.Key may return a new one for each request.
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
	// Longest first: if one secret contains another, redacting the shorter one first would leave the rest in the log.
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	return slices.Compact(secrets)
}

// refuseRedirect makes the HTTP client return a redirect as the reply. Following it would send the key and the prompt
// to another host.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// Close closes idle connections. Running streams are not affected, and the Model can still be used.
func (m *Model) Close() { m.connections.CloseIdleConnections() }

// Stream asks the endpoint and yields the parts of the answer as they arrive. It sends the request when the iteration
// begins. If it fails, the last element is the error: ctx's error if ctx ended, and otherwise an *llm.Error.
func (m *Model) Stream(ctx context.Context, request llm.Request) iter.Seq2[llm.Part, error] {
	return func(yield func(llm.Part, error) bool) {
		// Use the span's context for the requests, so that a tracing transport creates child spans of it and sends it
		// as the parent.
		ctx, call := m.telemetry.startCall(ctx, &request)
		err := m.streamWithRetries(ctx, &request, func(p llm.Part) bool {
			call.recordPart(ctx, p)
			return yield(p, nil)
		})
		call.recordEnd(ctx, err)
		if err != nil && !errors.Is(err, errStopped) {
			yield(nil, err)
		}
	}
}

// streamWithRetries asks the endpoint until an attempt succeeds, fails permanently, or uses up the retries. It returns
// the error of the last attempt, or errStopped if emit returned false.
//
// If the endpoint refuses a member of the request, the next attempt uses an adapted dialect. That attempt does not
// count as a retry, because the endpoint works, and the first question after each start would otherwise use up the
// retries. The loop ends, because withoutRefused only sets fields of the dialect and never clears one.
func (m *Model) streamWithRetries(ctx context.Context, request *llm.Request, emit emitter) error {
	dialect := m.dialects.get(request.Model)
	body, err := m.encodeWithDialect(request, dialect)
	if err != nil {
		return err
	}
	retries := 0 // all reasons for a retry share one budget
	for {
		key := m.key() // once per attempt, because an error must be redacted with the key that was sent
		err = m.makeAttempt(ctx, key, body, emit)
		if modelErr, ok := errors.AsType[*llm.Error](err); ok {
			m.reportError(ctx, request.Model, modelErr, slices.Concat(m.secrets, []string{key}))
		}
		failure, ok := errors.AsType[*retryableError](err)
		if !ok {
			return err // or nil after a complete answer
		}

		adapted := dialect.withoutRefused(failure, body, len(request.OutputSchema) > 0)
		if adapted == dialect { // nothing to adapt, so send the same request again
			if err = m.waitForRetry(ctx, request.Model, retries, failure); err != nil {
				return err
			}
			retries++
			continue
		}
		m.rememberDialect(ctx, request.Model, adapted)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		dialect = adapted
		if body, err = m.encodeWithDialect(request, dialect); err != nil {
			return err
		}
	}
}

// rememberDialect stores the refusals in d for later requests to the model. It logs a warning when the model is found
// not to accept images or response_format.
func (m *Model) rememberDialect(ctx context.Context, model string, d dialect) {
	before := m.dialects.get(model)
	after := m.dialects.set(model, d)
	if after.noImages && !before.noImages {
		m.log.LogAttrs(ctx, slog.LevelWarn, "the model takes no images, so it gets a line of text in place of each",
			slog.String("model", model), slog.String("remembered_for", dialectLifetime.String()), help.Images.Attr())
	}
	if after.noFormat && !before.noFormat {
		m.log.LogAttrs(ctx, slog.LevelWarn, "the model takes no response_format, so the schema of an answer is written into its prompt",
			slog.String("model", model), slog.String("remembered_for", dialectLifetime.String()))
	}
}

// encodeWithDialect returns the body of the request in dialect d. Its error is an *llm.Error.
func (m *Model) encodeWithDialect(request *llm.Request, d dialect) ([]byte, error) {
	body, err := encodeRequest(request, &m.tools, m.endpoint, d)
	if err != nil {
		return nil, newError(llm.ModelError, publicRefused, err)
	}
	return body, nil
}

// waitForRetry logs the failure and waits until the next attempt may start. retries is the number of retries so far. If
// another attempt is useless or not allowed, it returns failure's *llm.Error at once. It returns ctx's error if ctx
// ends.
func (m *Model) waitForRetry(ctx context.Context, model string, retries int, failure *retryableError) error {
	delay, isAcceptable := retryDelay(retries, failure.retryAfter, time.Now())
	if !failure.err.Retryable || !isAcceptable || retries >= m.retries {
		return failure.err
	}
	m.log.LogAttrs(ctx, slog.LevelWarn, "model call failed, trying again",
		slog.String("model", model), slog.Int("status", failure.err.Status), slog.Int("try", retries+1),
		slog.String("delay", delay.String()), help.Model.Attr())
	select {
	case <-time.After(delay):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reportError redacts the endpoint's message in modelErr and logs it. With Config.ShowErrors, it also appends the
// redacted message to modelErr.Public. It does nothing if modelErr has no message.
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
