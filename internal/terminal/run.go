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
	cancelTimeout  = 3 * time.Second        // for the requests that cancel a run
	retryTimeout   = 30 * time.Second       // for all attempts of a request; the default of DISCONNECT_GRACE
	firstPause     = 250 * time.Millisecond // after the first attempt; doubles with each one
	maxPause       = 5 * time.Second
	serversTimeout = time.Minute // long, because npx and uvx may download a server first
)

// exportRun downloads the export of a run that has ended, with an answer or an error, and writes it to the file
// Options.Export, replacing the file's content. Only the user may read the file, because an export has the results of
// tools.
func (s *Session) exportRun(ctx context.Context, runID string) error {
	var resp *http.Response
	err := s.retryRequest(ctx, func() (err error) {
		resp, err = s.client.Open(ctx, http.MethodGet, client.RunPath(runID, "/export"), nil, nil)
		return err
	})
	if err != nil {
		return fmt.Errorf("export the run: %w", err)
	}
	defer resp.Body.Close()
	file, err := os.OpenFile(s.options.Export, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("write -export: %w", err)
	}
	if info, err := file.Stat(); err == nil && info.Mode().IsRegular() { // but not a terminal or pipe such as /dev/stdout
		_ = file.Chmod(0o600) // OpenFile keeps the mode of an existing file; fails on file systems without modes
	}
	_, err = io.Copy(file, resp.Body)
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write -export: %w", err)
	}
	return nil
}

// followRun asks the question of view and shows the run's events until the run ends. It asks the user to answer
// interrupts, and resumes the stream after a lost connection. The error says why the run has no answer: the run failed
// or was cancelled, ctx ended, or the stream cannot be resumed.
//
// A stream that ends before its first event cannot be resumed, because it has no position. If the run has started
// anyway, answerd cancels it after the disconnect grace.
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
		case end.failure != nil:
			return event.FinalAnswer{}, end.failure
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

// resume opens a stream of the run's events after view.lastID, if necessary in several attempts (retryRequest).
func (s *Session) resume(ctx context.Context, view *runView) (stream *client.Stream, err error) {
	err = s.retryRequest(ctx, func() error {
		stream, err = s.client.Stream(ctx, http.MethodGet, client.RunPath(view.runID, "/events"), nil, http.Header{"Last-Event-ID": {view.lastID}})
		return err
	})
	return stream, err
}

// retryRequest calls send, which sends a request. While answerd cannot be reached, is too busy or answers with a status
// of 500 or more, it calls send again after growing pauses, until ctx ends or retryTimeout has passed. It returns the
// last error. Any other status, such as 410 for events that the log no longer has, is returned at once. At the end,
// retryRequest hides the status line.
func (s *Session) retryRequest(ctx context.Context, send func() error) error {
	defer s.status.set("")
	deadline := time.Now().Add(retryTimeout)
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		err := send()
		if err == nil {
			return nil
		}
		p, isProblem := errors.AsType[*client.Problem](err)
		isPermanent := isProblem && p.Status < http.StatusInternalServerError && !p.IsBusy()
		isTimeUp := time.Now().Add(pause).After(deadline)
		if isPermanent || isTimeUp || ctx.Err() != nil {
			return err
		}
		s.status.set("answerd cannot be reached or is too busy; trying again")
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
}

// streamEnd says how a stream ended. One field is set, or none if the stream ended before the run.
type streamEnd struct {
	final      *event.FinalAnswer // the run's answer
	failure    error              // the run failed or was cancelled, or its events cannot be shown
	interrupts []event.Interrupt  // the run is suspended and waits for answers to these
}

// readStream shows the events of a stream until the run ends or is suspended. It keeps view.lastID up to date. If the
// stream ends earlier, end is zero and err says why. If an event cannot be decoded or shown, readStream cancels the run
// and sets end.failure.
func (s *Session) readStream(view *runView, stream *client.Stream) (end streamEnd, err error) {
	for {
		frame, err := stream.Next()
		if err != nil {
			return streamEnd{}, err
		}
		if frame.ID != "" {
			view.lastID = frame.ID
		}
		e, err := event.Decode(bytes.Clone(frame.Data)) // the next call of Next overwrites frame
		if err == nil {
			err = view.showEvent(e)
		}
		if err != nil { // for example, Out is closed
			s.cancelRun(view)
			return streamEnd{failure: err}, nil
		}
		switch body := e.Body.(type) {
		case event.FinalAnswer:
			end.final = &body
		case event.RunError:
			end.failure = fmt.Errorf("%s (%s)", body.MessageWithErrors(), body.Code)
		case event.Cancelled:
			end.failure = errors.New("the run was cancelled")
		case event.Suspended:
			end.interrupts = body.Interrupts
		default:
			continue
		}
		view.endText()
		return end, nil
	}
}

// ask sends the question of view and returns the stream of the run's events. If the question was sent before, the
// idempotency key attaches to the same run.
func (s *Session) ask(ctx context.Context, view *runView) (*client.Stream, error) {
	return s.client.Stream(ctx, http.MethodPost, "/answer/stream", view.question, http.Header{"Idempotency-Key": {view.key}})
}

// cancelRun cancels the run of view within cancelTimeout. It uses its own context, because the caller's has usually
// ended. If it fails, it says so on Err, and the run continues until its disconnect grace ends.
func (s *Session) cancelRun(view *runView) {
	ctx, stop := context.WithTimeout(context.Background(), cancelTimeout)
	defer stop()
	err := s.fetchRunID(ctx, view)
	if err == nil {
		err = s.retryRequest(ctx, func() error {
			_, err := s.client.Send(ctx, http.MethodPost, client.RunPath(view.runID, "/cancel"), nil, nil, nil)
			return err
		})
	}
	if err != nil {
		fmt.Fprintln(s.options.Err, "the run could not be cancelled:", PlainText(err.Error()))
	}
}

// fetchRunID sets view.runID if the stream broke off before the first event. It sends the question again and
// shows the first event. If answerd had not received the question yet, that starts the run.
func (s *Session) fetchRunID(ctx context.Context, view *runView) error {
	if view.runID != "" {
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

// WaitForServers waits until no MCP server is connecting for the first time. A question to an answerd that has just
// started can then use the tools of all servers. It returns nil if servers are still connecting after serversTimeout,
// and an error if answerd does not return the state of the servers.
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

// connectingServers returns the names of the MCP servers that are connecting for the first time. Callers must poll,
// because the API has no event for a change of state.
func (s *Session) connectingServers(ctx context.Context) (names []string, _ error) {
	var list struct {
		Servers []struct{ Name, State string }
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
