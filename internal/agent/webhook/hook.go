// Package webhook asks an operator's own service about tool calls: before a call is made, after it failed, and after it
// succeeded. If Options.Events says so, it also asks about runs: before and after a model call, when a person is asked,
// and at the run's end (docs/hooks.md).
//
//	hooks, err := webhook.New(webhook.Options{URL: "https://hooks.example.com/answerd", Secret: secret})
//	reply, err := hooks.Ask(ctx, webhook.Call{Hook: webhook.PreToolCall, Tool: "delete_file", Args: args})
//	if err != nil {
//		// no reply, or one that cannot be used: what that means depends on the hook
//	}
//
// Each question is one signed POST. If there is no reply, it is not repeated, because the service may have acted on it.
// There is one exception: if an HTTP/2 connection ends before the service has accepted the question, net/http sends the
// same bytes again; the service can recognize them by their delivery_id. Over HTTP/1.1, each question has its own
// connection. Ask waits for the reply for up to 5 seconds, or until ctx ends. Questions may be asked concurrently.
package webhook

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	metricnoop "go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	tracenoop "go.opentelemetry.io/otel/trace/noop"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
)

const (
	replyTimeout = 5 * time.Second // from dialling to the last byte of the reply
	maxReply     = 4 << 20         // bytes after decompression, as for an MCP server's result
)

// Options say which service to ask, and about what. URL and Secret are required.
type Options struct {
	URL    string      // https, or http to a loopback address
	Secret auth.Secret // signs the questions
	// CurrentSecret, if set, returns the secret for each question, and Secret is ignored.
	CurrentSecret func() auth.Secret
	// Events lists the hooks about runs to ask about. Hooks about tool calls are always asked.
	Events []Event

	// Transport, if set, wraps the transport that sends the questions. Redirects are never followed.
	Transport func(http.RoundTripper) http.RoundTripper
	Tracer    trace.Tracer // nil records nothing
	Meter     metric.Meter // nil records nothing
}

// Client asks one operator's service.
type Client struct {
	Options
	http     *http.Client
	base     *http.Transport // sends for the transport of Options.Transport
	http2    atomic.Bool     // whether the last response came over HTTP/2
	duration metric.Float64Histogram
}

// New checks the options and returns a client. It does not connect to the service. It returns an error if the URL is
// not allowed or the secret is empty.
func New(opts Options) (*Client, error) {
	if err := fetch.CheckEndpoint("the URL", opts.URL); err != nil {
		return nil, err
	}
	if opts.Secret.IsZero() {
		return nil, errors.New("there is no secret to sign with")
	}
	// The cloned transport uses the proxy that the environment configures (S3.7).
	base := fetch.NewTransport()
	var transport http.RoundTripper = fetch.Transport{RoundTripper: base} // so that spans do not quote replies
	if opts.Transport != nil {
		transport = opts.Transport(transport)
	}
	if opts.CurrentSecret == nil {
		opts.CurrentSecret = func() auth.Secret { return opts.Secret }
	}
	opts.Tracer = cmp.Or[trace.Tracer](opts.Tracer, tracenoop.NewTracerProvider().Tracer(""))
	opts.Meter = cmp.Or[metric.Meter](opts.Meter, metricnoop.NewMeterProvider().Meter(""))
	client := &Client{Options: opts, base: base}
	client.http = &http.Client{
		Transport: transport,
		// A redirect could send arguments and results to another host (F19).
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var err error
	client.duration, err = opts.Meter.Float64Histogram("answerd.hook.duration", metric.WithUnit("s"),
		metric.WithDescription("Webhooks to HOOKS_URL, by hook and by what the reply does."))
	if err != nil {
		return nil, fmt.Errorf("create the hooks' metric: %w", err)
	}
	return client, nil
}

// Close closes idle connections. It does not affect questions in flight.
func (c *Client) Close() { c.base.CloseIdleConnections() }

// Asks reports whether the service is to be asked about hook. A nil Client asks about nothing.
func (c *Client) Asks(hook Event) bool {
	return c != nil && (hook.isToolEvent() || slices.Contains(c.Events, hook))
}

// Ask sends one question and returns the reply. An error means that there is no valid reply, but the service may still
// have received the question. The error's text never contains the URL, or parts of the question or the reply.
func (c *Client) Ask(ctx context.Context, call Call) (Reply, error) {
	attributes := []attribute.KeyValue{attribute.String("answerd.hook", string(call.Hook))}
	if call.Hook.isToolEvent() {
		attributes = append(attributes,
			attribute.String("gen_ai.tool.name", call.Tool), attribute.String("gen_ai.tool.call.id", call.CallID))
	}
	ctx, span := c.Tracer.Start(ctx, "hook", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attributes...))
	defer span.End()
	started := time.Now()
	reply, err := c.postCall(ctx, call)
	outcome := reply.String()
	if err != nil {
		outcome = "error"
		span.SetStatus(codes.Error, err.Error())
	}
	span.SetAttributes(attribute.String("answerd.hook.reply", outcome))
	c.duration.Record(ctx, time.Since(started).Seconds(), metric.WithAttributes(
		attribute.String("hook", string(call.Hook)), attribute.String("reply", outcome)))
	return reply, err
}

// postCall does the work of Ask, without telemetry.
func (c *Client) postCall(ctx context.Context, call Call) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	var usedBefore bool // the connection was used for another request before
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(conn httptrace.GotConnInfo) { usedBefore = conn.Reused },
	})
	req, err := c.newRequest(traced, call)
	if err != nil {
		return Reply{}, err
	}

	// An HTTP/1.1 reply does not say which question it answers. If a proxy or the service sends a reply twice, net/http
	// may take the second copy for the reply to the next question on this connection, which is about another call
	// (F51). So a connection that may be HTTP/1.1 is used only once.
	req.Close = !c.http2.Load()
	resp, err := c.http.Do(req)
	if err != nil {
		return Reply{}, transportError(ctx)
	}
	defer resp.Body.Close()
	isHTTP2 := resp.ProtoMajor >= 2
	c.http2.Store(isHTTP2)
	if usedBefore && !isHTTP2 { // req.Close was false, because the previous response came over HTTP/2
		return Reply{}, errors.New("the service changed to HTTP/1.1 on a connection in use")
	}
	if resp.StatusCode/100 != 2 {
		return Reply{}, fmt.Errorf("the service answered HTTP %d", resp.StatusCode)
	}

	text, err := io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
	switch {
	case err != nil:
		return Reply{}, transportError(ctx)
	case len(text) > maxReply:
		return Reply{}, fmt.Errorf("the reply is longer than %d bytes", maxReply)
	}
	return parseReply(call.Hook, text)
}

// newRequest returns the signed HTTP request for a question.
func (c *Client) newRequest(ctx context.Context, call Call) (*http.Request, error) {
	delivery := call.deliveryID()
	body, err := call.encodeBody(time.Now(), delivery)
	if err != nil {
		return nil, fmt.Errorf("encode the question: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.URL, bytes.NewReader(body))
	if err != nil {
		return nil, errors.New("the question cannot be sent")
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set(SignatureHeader, Sign(c.CurrentSecret(), body))
	req.Header.Set("Idempotency-Key", delivery)
	return req, nil
}

// transportError returns the error for a question that got no reply. If ctx, the request's context, has ended, the
// error says why. It does not wrap the error of net/http, which contains the URL, which may contain a key.
func transportError(ctx context.Context) error {
	err := ctx.Err()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("the service did not answer within %s: %w", replyTimeout, err)
	case err != nil:
		return fmt.Errorf("the reply was not waited for: %w", err)
	}
	return errors.New("the service cannot be reached, or broke the connection")
}
