package api

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api/native"
	"answerd/internal/event"
)

// errCallerGone means that the caller has left. The response is not read, so its text does not
// matter.
var errCallerGone = newProblem("timeout", "The caller left.")

// postAnswer serves POST /answer. It waits for the run and answers with the whole result. If the
// run is suspended for longer than the caller prefers to wait (Prefer: wait, RFC 7240 section
// 4.3), it answers 202 with the run's status.
func (h *Handler) postAnswer(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "application/json"); err != nil {
		return err
	}
	req, err := h.decodeRequest(r, native.Decode)
	if err != nil {
		return err
	}
	req.Interactive, req.Awaited = true, true
	received := time.Now()
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return err
	}
	if req.Background {
		h.writeAccepted(w, run)
		return nil
	}

	// The wait matters only while the run is suspended. It must not end with the request, or
	// awaitRun would take a caller that leaves for one whose wait is over.
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

// writeAccepted answers 202 with the status of a run and its location.
func (h *Handler) writeAccepted(w http.ResponseWriter, run event.Run) {
	w.Header().Set("Location", h.basePath+"/runs/"+run.ID)
	writeJSON(w, http.StatusAccepted, "application/json", h.runStatus(run))
}

// awaitRun reads a run until it ends, or until it is suspended and stopWaiting is closed, and
// returns the run as of then. It calls observe, unless that is nil, with each event in order.
//
// A caller that leaves (ctx ends) cancels the run unless the run has other readers; the error is
// then errCallerGone. A return because of a suspension does not cancel the run: the caller can
// come back for the answer. If this process hands its runs over to another one, awaitRun reads
// what the log has by then and returns a problem that names the run.
//
// The reader ends in one of three ways. Close says that the reader has left, so the run is cancelled
// after the disconnect grace if nobody else reads it. CloseAndCancel does that at once. Detach makes
// the run need no reader from then on.
func (h *Handler) awaitRun(ctx context.Context, id string, stopWaiting <-chan struct{}, observe func(event.Event)) (event.Run, error) {
	reader := h.Agent.OpenReader(id)
	run, suspended, err := h.followRun(ctx, id, stopWaiting, observe)
	switch {
	case errors.Is(err, errCallerGone):
		reader.CloseAndCancel()
	case suspended:
		reader.Detach()
	default:
		reader.Close()
	}
	return run, err
}

// followRun reads a run for awaitRun, and reports whether it returns because of a suspension.
func (h *Handler) followRun(ctx context.Context, id string, stopWaiting <-chan struct{}, observe func(event.Event)) (run event.Run, suspended bool, err error) {
	var whileSuspended <-chan struct{} // stopWaiting while the run is suspended, else nil
	handingOver, handedOver := h.Agent.HandingOver(), false
	for pos := int64(0); ; {
		page, err := h.nextPage(ctx, id, pos, observe == nil)
		switch {
		case errors.Is(err, event.ErrGone):
			// The log has dropped the beginning of a long run. Continue at the newest event, which
			// is enough to see the end.
			run, err := h.Log.Run(ctx, id)
			if err != nil {
				return run, false, err
			}
			pos = run.Last.Seq - 1
			continue
		case ctx.Err() != nil: // err of a remote log is then only about the ended context
			return event.Run{}, false, errCallerGone
		case err != nil:
			return event.Run{}, false, err
		}

		if observe != nil {
			for _, e := range page.Events {
				observe(e)
			}
		}
		if page.Ended {
			run, err := h.Log.Run(ctx, id)
			return run, false, err
		}
		if n := len(page.Events); n > 0 {
			last := page.Events[n-1]
			pos, whileSuspended = last.Seq, nil
			if isSuspended(last) {
				whileSuspended = stopWaiting
			}
			continue
		}
		if handedOver {
			p := newProblem("draining", "The service is shutting down; the run goes on.").withRetryAfter()
			p.Instance = "/runs/" + id
			return event.Run{}, false, p
		}

		// There is nothing to read now.
		select {
		case <-page.More:
		case <-whileSuspended:
			run, err := h.Log.Run(ctx, id)
			if err != nil || isSuspended(run.Last) {
				return run, true, err
			}
			whileSuspended = nil // the run was resumed in the meantime
		case <-handingOver:
			handingOver, handedOver = nil, true // read once more: the run may have ended just before
		case <-ctx.Done():
			return event.Run{}, false, errCallerGone
		}
	}
}

// nextPage returns the events of a run after pos. If only the end matters, it leaves out those before the
// newest one, and returns no event before the run has settled.
func (h *Handler) nextPage(ctx context.Context, id string, pos int64, onlyEnd bool) (event.Page, error) {
	if !onlyEnd {
		return h.Log.After(ctx, id, pos)
	}
	settled, err := h.Log.Settled(ctx, id)
	if err != nil {
		return event.Page{}, err
	}
	select {
	case <-settled:
	default:
		// Do not read the run: the caller can wait while the log is away.
		return event.Page{More: settled}, nil
	}
	run, err := h.Log.Run(ctx, id)
	if err != nil || !run.Last.Settled() {
		return event.Page{More: settled}, err
	}
	return h.Log.After(ctx, id, max(pos, run.Last.Seq-1))
}

// isSuspended reports whether a run is suspended whose newest event is e.
func isSuspended(e event.Event) bool {
	_, ok := e.Body.(event.Suspended)
	return ok
}

// postAnswerStream serves POST /answer/stream. With Last-Event-ID it resumes that run and ignores
// the body, which clients repeat although it was used when the run started.
func (h *Handler) postAnswerStream(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "text/event-stream"); err != nil {
		return err
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		if _, err := h.readBody(r); err != nil {
			return err
		}
		return h.resumeFromEventID(w, r, id)
	}
	req, err := h.decodeRequest(r, native.Decode)
	if err != nil {
		return err
	}
	if req.Background {
		return &native.Invalid{Errors: []native.FieldError{{Pointer: "/background", Detail: "a stream is not a background run; use POST /answer"}}}
	}
	return h.startStream(w, r, req)
}

// getAnswerStream serves GET /answer/stream, for EventSource, which can send neither a body nor
// headers of its own. It reconnects with the same URL and Last-Event-ID (HTML Living Standard,
// section 9.2), so that header decides whether a run starts or continues.
func (h *Handler) getAnswerStream(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "text/event-stream"); err != nil {
		return err
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		return h.resumeFromEventID(w, r, id)
	}
	// r.URL.Query would ignore the parts that it cannot parse.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem("invalid_request", "The query is malformed.")
	}
	req, body, err := native.DecodeQuery(query)
	if err == nil {
		req, err = withIdempotencyKey(r, body, req)
	}
	if err != nil {
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

// resumeFromEventID streams a run after the event with that SSE id.
func (h *Handler) resumeFromEventID(w http.ResponseWriter, r *http.Request, id string) error {
	run, pos, ok := native.ParsePosition(id)
	if !ok {
		return newProblem("invalid_request", "Last-Event-ID is not the id of an event.")
	}
	return h.resumeStream(w, r, run, pos)
}

// resumeStream streams one of the caller's runs after pos. If pos is the last event of an ended
// run, it answers 204, which tells an EventSource not to reconnect.
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
