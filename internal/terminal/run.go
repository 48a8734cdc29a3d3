package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"answerd/internal/client"
	"answerd/internal/event"
)

const (
	cancelTimeout  = 3 * time.Second  // of the request that cancels a run
	resumeTimeout  = 30 * time.Second // of all attempts to resume a stream; DISCONNECT_GRACE is as long by default
	serversTimeout = time.Minute      // npx and uvx may download a server first
)

// exportRun writes the export of a run that has ended into a file, also if the run failed.
func (s *Session) exportRun(ctx context.Context, run string) error {
	resp, err := s.client.Open(ctx, http.MethodGet, client.RunPath(run, "/export"), nil, nil)
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

// followRun asks the question of a run and handles the run's events until it ends. It answers interrupts of
// the run, and resumes the stream after a lost connection. Without the id of an event there is no position to
// resume from, so a stream that breaks before its first event is an error; the run, if there is one, is then
// cancelled by the service for lack of readers.
func (s *Session) followRun(ctx context.Context, view *runView) (event.FinalAnswer, error) {
	stream, err := s.ask(ctx, view)
	if err != nil {
		return event.FinalAnswer{}, err
	}
	for {
		end, err := s.readStream(view, stream)
		stream.Close()
		switch {
		case end.final != nil:
			return *end.final, nil
		case end.failed != nil:
			return event.FinalAnswer{}, end.failed
		case ctx.Err() != nil:
			return event.FinalAnswer{}, ctx.Err()
		case view.lastID == "":
			return event.FinalAnswer{}, fmt.Errorf("the stream ended before its first event: %w", err)
		case end.interrupts != nil:
			if err := s.answerInterrupts(ctx, view, end.interrupts); err != nil {
				return event.FinalAnswer{}, err
			}
		}
		if stream, err = s.resume(ctx, view); err != nil {
			return event.FinalAnswer{}, err
		}
	}
}

// resume opens the events of the run after the last one that was read. It tries again while
// answerd cannot be reached, for as long as a run waits for a reader by default (resumeTimeout). A problem with a status
// below 500 says that trying again does not help, such as 410 for events that are no longer kept.
func (s *Session) resume(ctx context.Context, r *runView) (*client.Stream, error) {
	deadline := time.Now().Add(resumeTimeout)
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		stream, err := s.client.Stream(ctx, http.MethodGet, client.RunPath(r.start.runID, "/events"), nil, http.Header{"Last-Event-ID": {r.lastID}})
		if err == nil {
			return stream, nil
		}
		var p *client.Problem
		if errors.As(err, &p) && p.Status < http.StatusInternalServerError || time.Now().Add(wait).After(deadline) || ctx.Err() != nil {
			return nil, err
		}
		s.status.set("no connection to answerd; trying again")
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// streamEnd says how a stream ended; all fields are nil if the connection was lost.
type streamEnd struct {
	final      *event.FinalAnswer
	failed     error             // the run failed or was cancelled, or its events cannot be shown
	interrupts []event.Interrupt // the run is suspended
}

// readStream handles the events of a stream until the run ends, is suspended, or the stream
// breaks. err says why it broke.
func (s *Session) readStream(view *runView, stream *client.Stream) (end streamEnd, err error) {
	for {
		frame, err := stream.Next()
		if err != nil {
			return streamEnd{}, err
		}
		if frame.ID != "" {
			view.lastID = frame.ID
		}
		switch frame.Event {
		case "final_answer":
			var final event.FinalAnswer
			if err := json.Unmarshal(frame.Data, &final); err != nil {
				return streamEnd{}, fmt.Errorf("decode the answer: %w", err)
			}
			view.endText()
			return streamEnd{final: &final}, nil
		case "run_error":
			var failed event.RunError
			if err := json.Unmarshal(frame.Data, &failed); err != nil {
				return streamEnd{}, fmt.Errorf("decode the error: %w", err)
			}
			view.endText()
			return streamEnd{failed: fmt.Errorf("%s (%s)", failed.Message, failed.Code)}, nil
		case "cancelled":
			view.endText()
			return streamEnd{failed: errors.New("the run was cancelled")}, nil
		case "suspended":
			var suspended event.Suspended
			if err := json.Unmarshal(frame.Data, &suspended); err != nil {
				return streamEnd{}, fmt.Errorf("decode the interrupts: %w", err)
			}
			view.endText()
			return streamEnd{interrupts: suspended.Interrupts}, nil
		}
		if err := view.showEvent(frame); err != nil { // such as a closed Out: reading on does not help
			s.cancelRun(view)
			return streamEnd{failed: err}, nil
		}
	}
}

// ask sends the question of a run. Repeated, it attaches to the same run, because of its key.
func (s *Session) ask(ctx context.Context, r *runView) (*client.Stream, error) {
	return s.client.Stream(ctx, http.MethodPost, "/answer/stream", r.question, http.Header{"Idempotency-Key": {r.key}})
}

// cancelRun cancels a run whose caller has interrupted it. It has a context of its own, because
// the caller's has ended. If it fails, the person is told: the run continues until its grace period ends.
func (s *Session) cancelRun(r *runView) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTimeout)
	defer stop()
	err := s.findRun(ctx, r)
	if err == nil {
		_, err = s.client.Send(ctx, http.MethodPost, client.RunPath(r.start.runID, "/cancel"), nil, nil, nil)
	}
	if err != nil {
		fmt.Fprintln(s.options.Err, "the run could not be cancelled:", PlainText(err.Error()))
	}
}

// findRun learns the id of the run if the stream was interrupted before its first event.
func (s *Session) findRun(ctx context.Context, view *runView) error {
	if view.start.runID != "" {
		return nil
	}
	stream, err := s.ask(ctx, view)
	if err != nil {
		return err
	}
	defer stream.Close()
	first, err := stream.Next()
	if err != nil {
		return fmt.Errorf("read the first event: %w", err)
	}
	return view.showEvent(first)
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
// being tried. The caller polls it, since the API has no event for a change.
func (s *Session) connectingServers(ctx context.Context) (names []string, _ error) {
	var list struct {
		Servers []struct {
			Name  string `json:"name"`
			State string `json:"state"`
		} `json:"servers"`
	}
	if _, err := s.client.Send(ctx, http.MethodGet, "/servers", nil, nil, &list); err != nil {
		return nil, err
	}
	for _, server := range list.Servers {
		if server.State == "connecting" {
			names = append(names, server.Name)
		}
	}
	return names, nil
}
