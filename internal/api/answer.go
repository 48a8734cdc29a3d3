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

// answer is POST /answer: the whole run in one response, or, where it comes to wait for a
// person, that it does.
func (h *Handler) answer(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "application/json"); err != nil {
		return err
	}
	req, err := h.decode(r, native.Decode)
	if err != nil {
		return err
	}
	req.Interactive, req.Awaited = true, true
	asked := time.Now()
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return err
	}
	if req.Background {
		w.Header().Set("Location", "/runs/"+run.ID)
		writeJSON(w, http.StatusAccepted, "application/json", h.status(run))
		return nil
	}
	wait, preferred := preferredWait(r)
	patience, stop := context.WithDeadline(context.WithoutCancel(r.Context()), asked.Add(wait))
	defer stop()
	run, err = h.await(r.Context(), run.ID, patience.Done(), nil)
	if err != nil {
		return err
	}
	if preferred != "" {
		w.Header().Set("Preference-Applied", preferred)
	}
	switch end := run.Last.Body.(type) {
	case event.Suspended:
		w.Header().Set("Location", "/runs/"+run.ID)
		writeJSON(w, http.StatusAccepted, "application/json", h.status(run))
		return nil
	case event.FinalAnswer:
		writeBody(w, http.StatusOK, "application/json", native.NewAnswer(run, end).JSON())
		return nil
	}
	return endProblem(run)
}

// await reads a run to its end, or, when patience is over, to where it waits for a
// person, and shows each of its events to see, unless that is nil. A caller that leaves
// takes the run along; one that is told of the wait does not.
func (h *Handler) await(ctx context.Context, id string, patience <-chan struct{}, see func(event.Event)) (event.Run, error) {
	watch := h.Agent.OpenReader(id)
	var over <-chan struct{} // patience, while the run waits for a person
	leaving, left := h.Agent.HandingOver(), false
	for pos := int64(0); ; {
		page, err := h.Log.After(ctx, id, pos)
		if errors.Is(err, event.ErrGone) {
			// A long run gave up its past. Its end says what matters.
			run, err := h.Log.Run(ctx, id)
			if err != nil {
				watch.Close()
				return run, err
			}
			pos = run.Last.Seq - 1
			continue
		}
		if ctx.Err() != nil { // what a log beyond a network says then is of no interest
			watch.CloseAndCancel()
			return event.Run{}, errGone
		}
		if err != nil {
			watch.Close()
			return event.Run{}, err
		}
		for _, e := range page.Events {
			if see != nil {
				see(e)
			}
		}
		if page.Ended {
			watch.Close()
			return h.Log.Run(ctx, id)
		}
		if n := len(page.Events); n > 0 {
			last := page.Events[n-1]
			pos, over = last.Seq, nil
			if _, waits := last.Body.(event.Suspended); waits {
				over = patience
			}
			continue
		}
		if left {
			watch.Close()
			p := newProblem("draining", "The service is shutting down; the run goes on.").retryAfter()
			p.Instance = "/runs/" + id
			return event.Run{}, p
		}
		select {
		case <-page.More:
		case <-over:
			run, err := h.Log.Run(ctx, id)
			if _, waits := run.Last.Body.(event.Suspended); err != nil || waits {
				watch.Detach()
				return run, err
			}
			over = nil // somebody has just answered
		case <-leaving:
			leaving, left = nil, true // what came until now still counts
		case <-ctx.Done():
			watch.CloseAndCancel()
			return event.Run{}, errGone
		}
	}
}

// errGone is a caller that left; whatever is answered, nobody reads it.
var errGone = newProblem("timeout", "The caller left.")

// stream is POST /answer/stream. With Last-Event-ID it goes on with that run and
// does not look at the question, which was asked when the run began.
func (h *Handler) stream(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "text/event-stream"); err != nil {
		return err
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		if _, err := h.body(r); err != nil {
			return err
		}
		return h.resume(w, r, id)
	}
	req, err := h.decode(r, native.Decode)
	if err != nil {
		return err
	}
	if req.Background {
		return &native.Invalid{Errors: []native.FieldError{{Pointer: "/background", Detail: "a stream is not a background run; use POST /answer"}}}
	}
	return h.startStream(w, r, req)
}

// streamQuery is GET /answer/stream, for a browser's EventSource. Its reconnects
// carry Last-Event-ID.
func (h *Handler) streamQuery(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "text/event-stream"); err != nil {
		return err
	}
	if id := r.Header.Get("Last-Event-ID"); id != "" {
		return h.resume(w, r, id)
	}
	// Not r.URL.Query: it leaves out what it can't read, as if it had not been asked for.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return newProblem("invalid_request", "The query is not well formed.")
	}
	req, err := native.DecodeQuery(query)
	if err != nil {
		return err
	}
	return h.startStream(w, r, req)
}

func (h *Handler) startStream(w http.ResponseWriter, r *http.Request, req agent.Request) error {
	req.Interactive = true
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return err
	}
	h.follow(w, r, run.ID, 0, nativeFormat)
	return nil
}

// resume goes on with a run after the event of that id.
func (h *Handler) resume(w http.ResponseWriter, r *http.Request, id string) error {
	run, pos, ok := native.ParsePosition(id)
	if !ok {
		return newProblem("invalid_request", "Last-Event-ID is not the id of an event.")
	}
	return h.read(w, r, run, pos)
}

// read follows a run of the caller's after pos. One that has ended and is read to
// its end is 204, which tells an EventSource not to come back.
func (h *Handler) read(w http.ResponseWriter, r *http.Request, run string, pos int64) error {
	if _, err := h.owned(r, run); err != nil {
		return err
	}
	page, err := h.Log.After(r.Context(), run, pos)
	if err != nil {
		return err
	}
	if page.Ended && len(page.Events) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	h.follow(w, r, run, pos, nativeFormat)
	return nil
}
