package terminal

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"answerd/internal/event"
	"answerd/internal/sse"
)

const (
	maxEventBytes  = 8 << 20          // of one event of a stream
	maxAnswerBytes = 1 << 20          // of an answer that is not a stream
	cancelTimeout  = 3 * time.Second  // of the request that cancels a run
	resumeTimeout  = 30 * time.Second // of all attempts to resume a stream; DISCONNECT_GRACE is as long by default
	serversTimeout = time.Minute      // npx and uvx may download a server first
)

// client sends requests to the native API.
type client struct {
	url   string
	token func() (string, error)
	http  *http.Client
}

// problem is an error of the API (RFC 9457).
type problem struct {
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Code   string `json:"code"`
	Errors []struct {
		Pointer string `json:"pointer"`
		Detail  string `json:"detail"`
	} `json:"errors"`
}

// Error implements error. It names the wrong fields, and what to do where that is known.
func (p *problem) Error() string {
	text := p.Detail
	for _, field := range p.Errors {
		text += fmt.Sprintf(" %s: %s.", field.Pointer, field.Detail)
	}
	if p.Code == "unauthenticated" {
		text += " Pass a token with -token-file."
	}
	return fmt.Sprintf("%s (%s)", text, p.Code)
}

// send sends a request and returns its response, whose body the caller must close. A status of
// 400 or more is returned as a *problem.
func (c *client) send(ctx context.Context, method, path string, body []byte, header http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("build a request to answerd: %w", err)
	}
	if header != nil {
		req.Header = header.Clone()
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != nil {
		token, err := c.token()
		if err != nil {
			return nil, err
		}
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask answerd at %s: %w", c.url, err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	p := &problem{}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil || json.Unmarshal(text, p) != nil || p.Code == "" {
		return nil, fmt.Errorf("%s answered with HTTP status %s, which is not an answer of answerd", c.url, resp.Status)
	}
	p.Status = resp.StatusCode
	return nil, p
}

// exportRun writes the export of a run that has ended into a file, also if the run failed.
func (s *Session) exportRun(ctx context.Context, run string) error {
	resp, err := s.client.send(ctx, http.MethodGet, "/runs/"+url.PathEscape(run)+"/export", nil, nil)
	if err != nil {
		return fmt.Errorf("export the run: %w", err)
	}
	defer resp.Body.Close()
	file, err := os.OpenFile(s.options.Export, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600) // it has what the tools returned
	if err != nil {
		return fmt.Errorf("write -export: %w", err)
	}
	_, err = io.Copy(file, resp.Body)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write -export: %w", err)
	}
	return nil
}

// follow starts a run with the body of a question and handles its events until it ends. It answers
// interrupts of the run, and resumes the stream after a lost connection.
func (s *Session) follow(ctx context.Context, r *runView, body []byte) (event.FinalAnswer, error) {
	r.question, r.key = body, rand.Text()
	resp, err := s.ask(ctx, r)
	if err != nil {
		return event.FinalAnswer{}, err
	}
	for {
		end, err := s.readStream(r, resp.Body)
		resp.Body.Close()
		switch {
		case end.final != nil:
			return *end.final, nil
		case end.failed != nil:
			return event.FinalAnswer{}, end.failed
		case ctx.Err() != nil:
			return event.FinalAnswer{}, ctx.Err()
		case r.lastID == "":
			return event.FinalAnswer{}, fmt.Errorf("the stream ended before its first event: %w", err)
		case end.interrupts != nil:
			if err := s.answerInterrupts(ctx, r, end.interrupts); err != nil {
				return event.FinalAnswer{}, err
			}
		}
		if resp, err = s.resume(ctx, r); err != nil {
			return event.FinalAnswer{}, err
		}
	}
}

// resume opens the events of the run after the last one that was read. It tries again while
// answerd cannot be reached.
func (s *Session) resume(ctx context.Context, r *runView) (*http.Response, error) {
	ctx, stop := context.WithCancel(ctx) // the stream outlives this function, so no time-out here
	deadline := time.Now().Add(resumeTimeout)
	path := "/runs/" + url.PathEscape(r.start.runID) + "/events"
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		resp, err := s.client.send(ctx, http.MethodGet, path, nil, http.Header{"Accept": {"text/event-stream"}, "Last-Event-ID": {r.lastID}})
		if err == nil && resp.StatusCode == http.StatusNoContent {
			resp.Body.Close()
			err = errors.New("the run ended, and its last event was lost")
		}
		if err == nil {
			resp.Body = &stoppedBody{resp.Body, stop}
			return resp, nil
		}
		var p *problem
		if errors.As(err, &p) && p.Status < http.StatusInternalServerError || time.Now().Add(wait).After(deadline) || ctx.Err() != nil {
			stop()
			return nil, err
		}
		s.status.set("no connection to answerd; trying again")
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// stoppedBody ends the context of its request when it is closed.
type stoppedBody struct {
	io.ReadCloser
	stop context.CancelFunc
}

func (b *stoppedBody) Close() error {
	defer b.stop()
	return b.ReadCloser.Close()
}

// streamEnd says how a stream ended; all fields are nil if the connection was lost.
type streamEnd struct {
	final      *event.FinalAnswer
	failed     error             // the run failed or was cancelled
	interrupts []event.Interrupt // the run is suspended
}

// readStream handles the events of a stream until the run ends, is suspended, or the stream
// breaks. err says why it broke.
func (s *Session) readStream(r *runView, body io.Reader) (end streamEnd, err error) {
	events := sse.NewReader(body, maxEventBytes)
	for {
		frame, err := events.Next()
		if err != nil {
			return streamEnd{}, err
		}
		if frame.ID != "" {
			r.lastID = frame.ID
		}
		switch frame.Event {
		case "final_answer":
			var final event.FinalAnswer
			if err := json.Unmarshal(frame.Data, &final); err != nil {
				return streamEnd{}, fmt.Errorf("decode the answer: %w", err)
			}
			r.endText()
			return streamEnd{final: &final}, nil
		case "run_error":
			var failed event.RunError
			if err := json.Unmarshal(frame.Data, &failed); err != nil {
				return streamEnd{}, fmt.Errorf("decode the error: %w", err)
			}
			r.endText()
			return streamEnd{failed: fmt.Errorf("%s (%s)", failed.Message, failed.Code)}, nil
		case "cancelled":
			r.endText()
			return streamEnd{failed: errors.New("the run was cancelled")}, nil
		case "suspended":
			var suspended event.Suspended
			if err := json.Unmarshal(frame.Data, &suspended); err != nil {
				return streamEnd{}, fmt.Errorf("decode the interrupts: %w", err)
			}
			r.endText()
			return streamEnd{interrupts: suspended.Interrupts}, nil
		}
		if err := r.show(frame); err != nil {
			return streamEnd{}, err
		}
	}
}

// ask sends the question of a run. Repeated, it attaches to the same run, because of its key.
func (s *Session) ask(ctx context.Context, r *runView) (*http.Response, error) {
	header := http.Header{"Accept": {"text/event-stream"}, "Idempotency-Key": {r.key}}
	return s.client.send(ctx, http.MethodPost, "/answer/stream", r.question, header)
}

// cancelRun cancels a run whose caller has interrupted it. It has a context of its own, because
// the caller's has ended.
func (s *Session) cancelRun(r *runView) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTimeout)
	defer stop()
	err := s.findRun(ctx, r)
	if err == nil {
		var resp *http.Response
		if resp, err = s.client.send(ctx, http.MethodPost, "/runs/"+url.PathEscape(r.start.runID)+"/cancel", nil, nil); err == nil {
			resp.Body.Close()
		}
	}
	if err != nil {
		fmt.Fprintln(s.options.Err, "the run could not be cancelled:", plainText(err.Error()))
	}
}

// findRun learns the id of the run if the stream was interrupted before its first event.
func (s *Session) findRun(ctx context.Context, r *runView) error {
	if r.start.runID != "" {
		return nil
	}
	resp, err := s.ask(ctx, r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	first, err := sse.NewReader(resp.Body, maxEventBytes).Next()
	if err != nil {
		return fmt.Errorf("read the first event: %w", err)
	}
	return r.show(first)
}

// WaitForServers waits until no MCP server is connecting for the first time, a minute at most, so
// that a question to a process that has just started can use their tools.
func (s *Session) WaitForServers(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, serversTimeout)
	defer stop()
	for {
		waiting, err := s.connectingServers(ctx)
		if err != nil || len(waiting) == 0 {
			s.status.set("")
			return err
		}
		s.status.set("connecting to " + strings.Join(waiting, ", "))
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil // the answer names the servers that are unavailable
		}
	}
}

// connectingServers returns the names of the servers that have never been connected and are
// being tried.
func (s *Session) connectingServers(ctx context.Context) (names []string, _ error) {
	resp, err := s.client.send(ctx, http.MethodGet, "/servers", nil, nil)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var list struct {
		Servers []struct {
			Name  string `json:"name"`
			State string `json:"state"`
		} `json:"servers"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxAnswerBytes)).Decode(&list); err != nil {
		return nil, fmt.Errorf("read the MCP servers: %w", err)
	}
	for _, server := range list.Servers {
		if server.State == "connecting" {
			names = append(names, server.Name)
		}
	}
	return names, nil
}
