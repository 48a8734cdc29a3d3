package terminal

import (
	"bytes"
	"context"
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

// exportRun downloads the export of a run that has ended, also of one that failed, and replaces the contents of the file
// Options.Export by it. The file becomes private, because an export has the results of tools.
func (s *Session) exportRun(ctx context.Context, run string) error {
	resp, err := s.client.Open(ctx, http.MethodGet, client.RunPath(run, "/export"), nil, nil)
	if err != nil {
		return fmt.Errorf("export the run: %w", err)
	}
	defer resp.Body.Close()
	file, err := os.OpenFile(s.options.Export, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write -export: %w", err)
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() { // not a terminal or a pipe, such as /dev/stdout
		_ = file.Chmod(0o600) // for a file that existed before; an error means that the file system has no modes
	}
	_, err = io.Copy(file, resp.Body)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write -export: %w", err)
	}
	return nil
}

// followRun asks the question of view and shows the events of the run until the run ends. It asks the person to answer
// interrupts, and resumes the stream after a lost connection. The error says why there is no answer: the run failed or
// was cancelled, ctx ended, or the stream cannot be resumed. A stream that ends before its first event has no position
// to resume from. If a run has started, the service cancels it for lack of readers.
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

// resume opens a stream of the run's events after view.lastID. While answerd cannot be reached or answers with a status
// from 500, resume tries again with growing pauses, until ctx ends or for resumeTimeout. It returns the last error. A
// status below 500, such as 410 for events that are no longer kept, is returned at once.
func (s *Session) resume(ctx context.Context, view *runView) (*client.Stream, error) {
	deadline := time.Now().Add(resumeTimeout)
	for wait := 250 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) {
		stream, err := s.client.Stream(ctx, http.MethodGet, client.RunPath(view.start.runID, "/events"), nil, http.Header{"Last-Event-ID": {view.lastID}})
		if err == nil {
			return stream, nil
		}
		p, isProblem := errors.AsType[*client.Problem](err)
		isPermanent := isProblem && p.Status < http.StatusInternalServerError
		if isPermanent || time.Now().Add(wait).After(deadline) || ctx.Err() != nil {
			return nil, err
		}
		s.status.set("no connection to answerd; trying again")
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

// streamEnd says how a stream ended. One field is set; all are nil if the stream ended before the run did.
type streamEnd struct {
	final      *event.FinalAnswer // the answer of the run
	failed     error              // the run failed or was cancelled, or its events cannot be shown
	interrupts []event.Interrupt  // of a run that is suspended
}

// readStream shows the events of a stream until the run ends or is suspended, and sets view.lastID after each. If the
// stream ends earlier, end is zero and err says why. If an event cannot be decoded or shown, readStream cancels the run.
func (s *Session) readStream(view *runView, stream *client.Stream) (end streamEnd, err error) {
	for {
		frame, err := stream.Next()
		if err != nil {
			return streamEnd{}, err
		}
		if frame.ID != "" {
			view.lastID = frame.ID
		}
		e, err := event.Decode(bytes.Clone(frame.Data)) // the frame is valid only until the next one
		if err == nil {
			err = view.showEvent(e)
		}
		if err != nil { // for example, Out is closed
			s.cancelRun(view)
			return streamEnd{failed: err}, nil
		}
		switch body := e.Body.(type) {
		case event.FinalAnswer:
			end.final = &body
		case event.RunError:
			end.failed = fmt.Errorf("%s (%s)", body.Message, body.Code)
		case event.Cancelled:
			end.failed = errors.New("the run was cancelled")
		case event.Suspended:
			end.interrupts = body.Interrupts
		default:
			continue
		}
		view.endText()
		return end, nil
	}
}

// ask sends the question of view and returns the stream of the run's events. If the question was sent before, its
// idempotency key makes answerd return the events of the same run.
func (s *Session) ask(ctx context.Context, view *runView) (*client.Stream, error) {
	return s.client.Stream(ctx, http.MethodPost, "/answer/stream", view.question, http.Header{"Idempotency-Key": {view.key}})
}

// cancelRun cancels the run of view, within cancelTimeout. It uses its own context, because that of the caller may have
// ended. It reports a failure on Err: the run then continues until its disconnect grace ends.
func (s *Session) cancelRun(view *runView) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTimeout)
	defer stop()
	err := s.fetchRunID(ctx, view)
	if err == nil {
		_, err = s.client.Send(ctx, http.MethodPost, client.RunPath(view.start.runID, "/cancel"), nil, nil, nil)
	}
	if err != nil {
		fmt.Fprintln(s.options.Err, "the run could not be cancelled:", PlainText(err.Error()))
	}
}

// fetchRunID sets view.start.runID if the stream was interrupted before its first event. To get the id, it asks the
// question again and shows the first event. If answerd did not get the question before, that starts the run.
func (s *Session) fetchRunID(ctx context.Context, view *runView) error {
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
	e, err := event.Decode(bytes.Clone(first.Data))
	if err != nil {
		return err
	}
	return view.showEvent(e)
}

// WaitForServers waits until no MCP server is connecting for the first time, so that a question to a process that has
// just started can use the tools of all servers. It returns nil if servers are still connecting after serversTimeout,
// and an error if a request for the state of the servers fails.
func (s *Session) WaitForServers(ctx context.Context) error {
	ctx, stop := context.WithTimeout(ctx, serversTimeout)
	defer stop()
	for {
		connecting, err := s.connectingServers(ctx)
		if err != nil || len(connecting) == 0 {
			s.status.set("")
			return err
		}
		s.status.set("connecting to " + strings.Join(connecting, ", "))
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil // the start event of a run names the servers that are unavailable
		}
	}
}

// connectingServers requests the state of all MCP servers and returns the names of those that are connecting for the
// first time. Callers must poll, because the API has no event for a change.
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
