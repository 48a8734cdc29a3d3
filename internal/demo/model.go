package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// ModelID is the id of the stand-in, whatever model a request asks for.
const ModelID = "answerd-stand-in"

// Times of a stream.
const (
	defaultTokenDelay = 15 * time.Millisecond
	writeTime         = 10 * time.Second // for one chunk to a slow reader
)

// ModelConfig is the stand-in's only knob.
type ModelConfig struct {
	// TokenDelay is the pause before each word of a stream, so that it can be seen
	// streaming; 0 is 15 ms, negative is none.
	TokenDelay time.Duration
}

// Model is an OpenAI-compatible endpoint under /v1 without a language model behind
// it. The same request gets the same answer, call ids included; only "created" moves.
type Model struct {
	delay time.Duration
	mux   *http.ServeMux
}

// NewModel makes the stand-in.
func NewModel(c ModelConfig) *Model {
	m := &Model{delay: c.TokenDelay, mux: http.NewServeMux()}
	if m.delay == 0 {
		m.delay = defaultTokenDelay
	}
	m.mux.HandleFunc("POST /v1/chat/completions", m.complete)
	m.mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{
			map[string]any{"id": ModelID, "object": "model", "created": 0, "owned_by": "answerd"},
		}})
	})
	m.mux.HandleFunc("GET /healthz", healthz)
	m.mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		refuseChat(w, http.StatusNotFound, fmt.Sprintf("There is no %s %s here.", r.Method, r.URL.Path))
	})
	return m
}

// ServeHTTP implements http.Handler.
func (m *Model) ServeHTTP(w http.ResponseWriter, r *http.Request) { m.mux.ServeHTTP(w, r) }

// complete answers one request. The body is read to its end first: until then
// net/http does not notice that a client has gone (facts/reliability.md, section 0).
func (m *Model) complete(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxChatBody))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			refuseChat(w, http.StatusRequestEntityTooLarge, "The request is too large.")
		}
		return
	}
	req, err := decodeChat(body)
	if err != nil {
		refuseChat(w, http.StatusBadRequest, err.Error())
		return
	}
	answer := respond(req)
	if !req.Stream {
		writeJSON(w, http.StatusOK, answer.completion(time.Now().Unix()))
		return
	}
	// An error is a client that has gone or does not read; nobody is left to tell.
	_ = m.stream(r.Context(), w, answer, req.StreamOptions.IncludeUsage)
}

// refuseChat answers with an error in OpenAI's shape.
func refuseChat(w http.ResponseWriter, status int, message string) {
	writeJSON(w, status, map[string]any{"error": map[string]any{
		"message": message, "type": "invalid_request_error", "param": nil, "code": nil,
	}})
}

// stream sends the reply chunk by chunk, and stops when the client is gone.
func (m *Model) stream(ctx context.Context, w http.ResponseWriter, r *reply, withUsage bool) error {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	s := &chunkWriter{w: w, rc: http.NewResponseController(w)}
	created := time.Now().Unix()
	choice := func(delta map[string]any, finish any) []any {
		return []any{map[string]any{"index": 0, "delta": delta, "finish_reason": finish, "logprobs": nil}}
	}
	for i, delta := range r.deltas() {
		if i > 0 {
			if err := m.pause(ctx); err != nil {
				return err
			}
		}
		if err := s.write(r.chunk(created, choice(delta, nil), nil, withUsage)); err != nil {
			return err
		}
	}
	if err := s.write(r.chunk(created, choice(map[string]any{}, r.finishReason()), nil, withUsage)); err != nil {
		return err
	}
	if withUsage {
		if err := s.write(r.chunk(created, []any{}, r.usage, true)); err != nil {
			return err
		}
	}
	return s.write([]byte("[DONE]"))
}

// pause waits for the next word's turn.
func (m *Model) pause(ctx context.Context) error {
	if m.delay < 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(m.delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// chunkWriter writes data lines, each flushed and each within writeTime.
type chunkWriter struct {
	w  http.ResponseWriter
	rc *http.ResponseController
}

// write sends one data line. A reader that takes nothing for writeTime ends the stream
// instead of holding this goroutine for ever.
func (s *chunkWriter) write(data []byte) error {
	if err := s.rc.SetWriteDeadline(time.Now().Add(writeTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("set the deadline of a chunk: %w", err)
	}
	var line strings.Builder
	line.WriteString("data: ")
	line.Write(data)
	line.WriteString("\n\n")
	if _, err := io.WriteString(s.w, line.String()); err != nil {
		return fmt.Errorf("write a chunk: %w", err)
	}
	return s.rc.Flush()
}
