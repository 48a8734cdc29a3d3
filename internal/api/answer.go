package api

import (
	"context"
	"errors"
	"net/http"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// errContextEnded is awaitRun's error if ctx ends before the run does. If ctx is the request's context, the client has
// disconnected, and its text is never sent. cancelAndWait also returns it, when its wait is over.
var errContextEnded = newProblem("timeout", "The caller left.")

// postAnswer serves POST /answer. It waits until the run has ended and answers with the whole result. A background run
// gets 202 with the run's status at once. A suspended run gets it when the time that the client prefers to wait is over
// (Prefer: wait, RFC 7240 section 4.3).
func (h *Handler) postAnswer(w http.ResponseWriter, r *http.Request) error {
	req, err := h.readQuestion(r)
	if err != nil {
		return err
	}
	req.Interactive = true
	req.Awaited = true
	received := time.Now() // the caller's wait includes the time until the run starts
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return err
	}
	if req.Background {
		h.writeAccepted(w, run)
		return nil
	}

	// The wait limits only how long a suspended run is awaited. waitCtx must not end with the request's context: if the
	// client disconnects, awaitRun must cancel the run and not return it as suspended.
	wait, preferenceApplied := preferredWait(r)
	waitCtx, stopWait := context.WithDeadline(context.WithoutCancel(r.Context()), received.Add(wait))
	defer stopWait()
	run, err = h.awaitRun(r.Context(), run.ID, waitCtx.Done(), nil)
	if err != nil {
		return err
	}
	if preferenceApplied != "" {
		w.Header().Set("Preference-Applied", preferenceApplied)
	}

	switch end := run.Last.Body.(type) {
	case event.Suspended:
		h.writeAccepted(w, run)
		return nil
	case event.FinalAnswer:
		writeBody(w, "application/json", native.NewAnswer(run, end).JSON())
		return nil
	}
	return endProblem(run)
}

// readQuestion reads and decodes the body of a question in the native format, and reads the Idempotency-Key.
func (h *Handler) readQuestion(r *http.Request) (agent.Request, error) {
	body, err := h.readBody(r)
	if err != nil {
		return agent.Request{}, err
	}
	req, err := native.Decode(body)
	if err != nil {
		return agent.Request{}, err
	}
	err = readIdempotencyKey(r, body, &req)
	return req, err
}

// writeAccepted answers 202 with the status of a run and its location.
func (h *Handler) writeAccepted(w http.ResponseWriter, run event.Run) {
	w.Header().Set("Location", h.basePath+"/runs/"+run.ID)
	writeJSON(w, http.StatusAccepted, "application/json", h.runStatus(run))
}

// awaitRun blocks until the run has ended, and returns it. It also returns a suspended run as soon as stopWaiting is
// closed; with a nil stopWaiting, it waits until suspensions are over. If observe is not nil, awaitRun calls it with
// each event in order, except for events that the log has dropped.
//
// If ctx ends first because the client has disconnected, awaitRun returns errContextEnded, and cancels the run unless
// it has another reader. If it returns because of a suspension, the run is not cancelled and needs no reader from then
// on: the client can come back for the answer. If this process hands its runs over to another one, awaitRun reads what
// the log has by then, and returns the problem draining, which names the run. After this or any other error, the run
// needs another reader within the disconnect grace.
func (h *Handler) awaitRun(
	ctx context.Context, id string, stopWaiting <-chan struct{}, observe func(event.Event),
) (event.Run, error) {
	reader := h.Agent.OpenReader(id)
	run, suspended, err := h.followRun(ctx, id, stopWaiting, observe)
	switch {
	case errors.Is(err, errContextEnded):
		reader.CloseAndCancel()
	case suspended:
		reader.Detach()
	default:
		reader.Close()
	}
	return run, err
}

// followRun reads the run for awaitRun, which documents the parameters and errors. suspended reports that it returned
// because the run is suspended and stopWaiting is closed.
func (h *Handler) followRun(
	ctx context.Context, id string, stopWaiting <-chan struct{}, observe func(event.Event),
) (run event.Run, suspended bool, err error) {
	var stopIfSuspended <-chan struct{}  // stopWaiting while the event at pos suspends the run, else nil, which blocks
	handingOver := h.Agent.HandingOver() // set to nil when it is closed, so that it is handled once
	handedOver := false                  // this process no longer executes runs
	for pos := int64(0); ; {
		page, err := h.nextPage(ctx, id, pos, observe == nil)
		if errors.Is(err, event.ErrGone) {
			// The log has dropped events of a long run after pos. Continue at the newest event, because the end is what
			// the caller waits for.
			run, err := h.Log.Run(ctx, id)
			if err != nil {
				return run, false, err
			}
			pos = run.Last.Seq - 1
			continue
		}
		if ctx.Err() != nil { // checked before err, which may only be a consequence of it
			return event.Run{}, false, errContextEnded
		}
		if err != nil {
			return event.Run{}, false, err
		}

		for _, e := range page.Events {
			if observe != nil {
				observe(e)
			}
			pos = e.Seq
			stopIfSuspended = nil
			if isSuspended(e) {
				stopIfSuspended = stopWaiting
			}
		}
		if page.Ended {
			run, err := h.Log.Run(ctx, id)
			return run, false, err
		}
		if len(page.Events) > 0 {
			continue // read on until the page is empty
		}
		if handedOver {
			return event.Run{}, false, handedOverProblem(id)
		}

		select {
		case <-page.More:
		case <-stopIfSuspended:
			run, err := h.Log.Run(ctx, id)
			if err != nil || isSuspended(run.Last) {
				return run, true, err
			}
			stopIfSuspended = nil // the run was resumed after the page was read
		case <-handingOver:
			handingOver = nil
			handedOver = true // read once more: the run may have ended just before
		case <-ctx.Done():
			return event.Run{}, false, errContextEnded
		}
	}
}

// handedOverProblem returns the problem for a client that waits for a run that another process continues.
func handedOverProblem(run string) *problem {
	p := newProblem("draining", "The service is shutting down; the run goes on.").withRetryAfter()
	p.Instance = "/runs/" + run
	return p
}

// nextPage returns the run's events after pos. If skipToEnd is true, it returns no events until the run has ended or is
// suspended, and then only the newest one. If the page has no events, wait for its More before the next call.
func (h *Handler) nextPage(ctx context.Context, id string, pos int64, skipToEnd bool) (event.Page, error) {
	if !skipToEnd {
		return h.Log.After(ctx, id, pos)
	}
	settled, err := h.Log.Settled(ctx, id)
	if err != nil {
		return event.Page{}, err
	}
	select {
	case <-settled:
	default:
		// Do not read the run yet: that would fail while the log is unavailable, and the request can simply wait.
		return event.Page{More: settled}, nil
	}
	run, err := h.Log.Run(ctx, id)
	if err != nil || !run.Last.Settled() {
		return event.Page{More: settled}, err
	}
	return h.Log.After(ctx, id, max(pos, run.Last.Seq-1))
}

// isSuspended reports whether e suspends its run. If e is the run's newest event, the run is still suspended.
func isSuspended(e event.Event) bool {
	_, ok := e.Body.(event.Suspended)
	return ok
}

// postAnswerStream serves POST /answer/stream: it starts a run and streams it. With Last-Event-ID it resumes the stream
// of an earlier run instead, and ignores the body: clients repeat the question when they reconnect.
func (h *Handler) postAnswerStream(w http.ResponseWriter, r *http.Request) error {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		if _, err := h.readBody(r); err != nil { // net/http notices a disconnect only after the body was read
			return err
		}
		return h.resumeFromEventID(w, r, id)
	}
	req, err := h.readQuestion(r)
	if err != nil {
		return err
	}
	if req.Background {
		return native.NewInvalid("/background", "a stream is not a background run; use POST /answer")
	}
	return h.startStream(w, r, req)
}

// getAnswerStream serves GET /answer/stream, for an EventSource, which can send neither a body nor its own headers. It
// reconnects with the same URL and adds Last-Event-ID (HTML Living Standard, section 9.2). So a request with that
// header resumes the stream of an earlier run, and a request without it starts a run.
func (h *Handler) getAnswerStream(w http.ResponseWriter, r *http.Request) error {
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		return h.resumeFromEventID(w, r, id)
	}
	req, body, err := native.DecodeQuery(r.URL.Query()) // rejectInvalidQuery has checked that it can be parsed
	if err != nil {
		return err
	}
	if err := readIdempotencyKey(r, body, &req); err != nil {
		return err
	}
	return h.startStream(w, r, req)
}

// startStream starts a run and streams it in the native format.
func (h *Handler) startStream(w http.ResponseWriter, r *http.Request, req agent.Request) error {
	req.Interactive = true
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return err
	}
	h.streamRun(w, r, run.ID, 0, nativeFormat)
	return nil
}

// resumeFromEventID streams a run in the native format from the event after the one with the SSE id id
// (native.EventID).
func (h *Handler) resumeFromEventID(w http.ResponseWriter, r *http.Request, id string) error {
	run, pos, ok := native.ParsePosition(id)
	if !ok {
		return newProblem("invalid_request", "Last-Event-ID is not the id of an event.")
	}
	return h.resumeStream(w, r, run, pos)
}

// resumeStream streams the caller's run in the native format, from the event after pos. If the run has ended and pos is
// its last event, it answers 204, after which an EventSource does not reconnect.
func (h *Handler) resumeStream(w http.ResponseWriter, r *http.Request, run string, pos int64) error {
	if _, err := h.ownedRun(r, run); err != nil {
		return err
	}
	page, err := h.Log.After(r.Context(), run, pos)
	if err != nil {
		return err
	}
	if page.Ended && len(page.Events) == 0 {
		writeNoContent(w)
		return nil
	}
	h.streamRun(w, r, run, pos, nativeFormat)
	return nil
}
