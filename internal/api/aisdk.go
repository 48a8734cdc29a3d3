package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/go-chi/chi/v5"

	"answerd/internal/agent"
	"answerd/internal/api/aisdk"
	"answerd/internal/event"
)

// uiHeader marks a UI message stream for the AI SDK.
var uiHeader = http.Header{"X-Vercel-Ai-Ui-Message-Stream": {"v1"}}

// uiChat is POST /api/chat: a question of a chat, or what a message of the assistant
// needs to go on.
func (h *Handler) uiChat(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "text/event-stream"); err != nil {
		return err
	}
	var q aisdk.Request
	req, err := h.decode(r, func(body []byte) (_ agent.Request, err error) {
		if q, err = aisdk.Decode(body); err == nil {
			err = decodeOptions(q.Options, "", &q.Request)
		}
		return q.Request, err
	})
	if err != nil {
		return err
	}
	if len(q.Answers) > 0 {
		switch run, asked, err := h.waiting(r, q.ThreadID, asks(q)); {
		case err != nil:
			return err
		case len(asked) > 0:
			return h.uiGoOn(w, r, q, run, asked)
		case !q.HasToolResults():
			return newProblem("conflict", "What this answers was answered before, or is not asked any more.")
		}
	}
	record := aisdk.StoredRequest{MessageID: q.MessageID, NoApprovals: req.ApprovalsDeclined}
	req.Record = record.Encode()
	req.AskAtLimit = false // the format has no part for that question
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return underPrefix(err, "", "messages")
	}
	h.uiStream(w, r, record.Header(run))
	return nil
}

// asks tells the interrupts that the request has answers to.
func asks(q aisdk.Request) func(event.Interrupt) bool {
	return func(i event.Interrupt) bool {
		return slices.ContainsFunc(q.Answers, func(a aisdk.Answer) bool { return a.ID == i.ID })
	}
}

// uiGoOn answers what the run asks, and goes on with its message.
func (h *Handler) uiGoOn(w http.ResponseWriter, r *http.Request, q aisdk.Request, run event.Run, asked []event.Interrupt) error {
	head := aisdk.DecodeStored(run.Request).Header(run)
	head.MessageID, head.After, head.Outputs = q.MessageID, run.Last.Seq, make(map[string]json.RawMessage)
	var inputs []agent.Input
	for _, a := range q.Answers {
		if slices.ContainsFunc(asked, func(i event.Interrupt) bool { return i.ID == a.ID }) {
			inputs, head.Outputs[a.ID] = append(inputs, a.Input), a.Output
		}
	}
	if err := h.Agent.Answer(r.Context(), identity(r), run.ID, inputs...); err != nil {
		return err
	}
	h.uiStream(w, r, head)
	return nil
}

// uiResume is GET /api/chat/{id}/stream: the chat's newest message from its beginning,
// while it is being made. One that has ended is shown only to whoever lost its stream
// before the end; 204 says that there is nothing to go on with.
func (h *Handler) uiResume(w http.ResponseWriter, r *http.Request) error {
	if err := accepts(r, "text/event-stream"); err != nil {
		return err
	}
	thread, err := chatID(r)
	if err != nil {
		return err
	}
	page, err := h.Log.Runs(r.Context(), event.Filter{Owner: owner(r), ThreadID: thread, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Runs) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	run := page.Runs[0]
	record := aisdk.DecodeStored(run.Request)
	if run.Last.Terminal() && (record.Format == "" || !h.told.missed(run, time.Now())) {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	if _, err := h.Log.After(r.Context(), run.ID, 0); err != nil {
		return err
	}
	// A run that went on behind a tool of the page's has only the end of the message that
	// it is in, and pages put what they are told in the place of what has its id: the call
	// and its result would be lost. So it is told as a message of its own.
	record.MessageID = ""
	h.uiStream(w, r, record.Header(run))
	return nil
}

// uiStream streams the run of head as its message.
func (h *Handler) uiStream(w http.ResponseWriter, r *http.Request, head aisdk.Header) {
	f := framesOf(aisdk.NewEncoder(head))
	f.header = uiHeader
	h.told.set(head.RunID, false)
	if h.follow(w, r, head.RunID, 0, h.untilSuspended(r, f)) {
		h.told.set(head.RunID, true)
	}
}

// uiStop is POST /api/chat/{id}/stop: it ends whatever goes on in the chat.
func (h *Handler) uiStop(w http.ResponseWriter, r *http.Request) error {
	thread, err := chatID(r)
	if err != nil {
		return err
	}
	for _, status := range []event.Status{event.StatusRunning, event.StatusSuspended} {
		page, err := h.Log.Runs(r.Context(), event.Filter{Owner: owner(r), ThreadID: thread, Status: status, Limit: event.MaxPage})
		if err != nil {
			return err
		}
		for _, run := range page.Runs {
			h.told.set(run.ID, true) // whoever stops it does not want to see it again
			if _, err := h.stop(r, run.ID); err != nil && !errors.Is(err, errGone) {
				return err
			}
		}
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func chatID(r *http.Request) (string, error) {
	id := chi.URLParam(r, "id")
	if !aisdk.ValidID(id) {
		return "", newProblem("invalid_request", "The id of the chat must be 1 to 128 visible ASCII characters.")
	}
	return id, nil
}
