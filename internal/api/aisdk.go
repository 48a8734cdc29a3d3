package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"answerd/internal/agent"
	"answerd/internal/api/aisdk"
	"answerd/internal/event"
)

// uiStreamHeader marks a stream as a UI message stream of the AI SDK.
var uiStreamHeader = http.Header{"X-Vercel-Ai-Ui-Message-Stream": {"v1"}}

// postUIChat serves POST /api/chat: a question in a chat, or answers with which a message of the
// assistant continues.
func (h *Handler) postUIChat(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "text/event-stream"); err != nil {
		return err
	}

	var request aisdk.Request
	req, err := h.decodeRequest(r, func(body []byte) (_ agent.Request, err error) {
		if request, err = aisdk.Decode(body); err == nil {
			err = decodeOptions(request.Options, "", &request.Request)
		}
		return request.Request, err
	})
	if err != nil {
		return err
	}
	if run, found, err := h.runOfChat(r, request.ThreadID); err != nil {
		return err
	} else if found {
		request.ThreadID, req.ThreadID = run.ThreadID, run.ThreadID
	}
	if len(request.Answers) > 0 {
		// A page posts its whole message, also with answers that it has given before. If none of them is
		// to an open interrupt, the request can only be about results of the page's own tools.
		run, open, err := h.findSuspendedRun(r, request.ThreadID, hasAnswerTo(request))
		switch {
		case err != nil:
			return err
		case len(open) > 0:
			return h.continueUIChat(w, r, request, run, open)
		case !request.HasToolResults():
			return newProblem("conflict", "The interrupts that this request answers have been resolved already, or are no longer open.")
		}
	}

	// Store what a later stream of the run needs: resumeUIChat may be served by another process.
	stored := aisdk.StoredRequest{MessageID: request.MessageID, NoApprovals: req.ApprovalsDeclined}
	req.Record = stored.Encode()
	req.AskAtLimit = false // the format has no part for that question
	run, err := h.Agent.Start(r.Context(), identity(r), req)
	if err != nil {
		return prefixPointer(err, "")
	}
	h.streamUIChat(w, r, stored.Header(run))
	return nil
}

// hasAnswerTo returns a function that reports whether the request answers an interrupt.
func hasAnswerTo(q aisdk.Request) func(event.Interrupt) bool {
	return func(i event.Interrupt) bool {
		return slices.ContainsFunc(q.Answers, func(a aisdk.Answer) bool { return a.ID == i.ID })
	}
}

// continueUIChat answers the open interrupts of a run and streams the rest of its message.
func (h *Handler) continueUIChat(w http.ResponseWriter, r *http.Request, q aisdk.Request, run event.Run, open []event.Interrupt) error {
	head := aisdk.DecodeStored(run.Request).Header(run)
	head.MessageID = q.MessageID
	head.After = run.Last.Seq
	head.Outputs = make(map[string]json.RawMessage)
	var inputs []agent.Input
	for _, a := range q.Answers {
		if slices.ContainsFunc(open, func(i event.Interrupt) bool { return i.ID == a.ID }) {
			inputs, head.Outputs[a.ID] = append(inputs, a.Input), a.Output
		}
	}
	if err := h.Agent.Answer(r.Context(), identity(r), run.ID, inputs...); err != nil {
		return err
	}
	h.streamUIChat(w, r, head)
	return nil
}

// runIDLength is the length of a run's id, in every log.
const runIDLength = len("run_") + 26

// runOfChat returns the run that a chat's id names, because a page may show any run of its caller:
// the id of the chat is then that of the run, and its thread that of the run. found is false for
// the id of a chat. An id that can only be a run's, and of no run of the caller, is
// event.ErrNotFound.
func (h *Handler) runOfChat(r *http.Request, id string) (run event.Run, found bool, err error) {
	if !strings.HasPrefix(id, "run_") || len(id) != runIDLength {
		return event.Run{}, false, nil
	}
	run, err = h.ownedRun(r, id)
	return run, err == nil, err
}

// resumeUIChat serves GET /api/chat/{id}/stream: the chat's newest message from its beginning,
// while its run is in progress. A message that has ended is repeated only if its stream broke
// before the end. 204 means that there is nothing to stream, as the SDK expects. If the id is that
// of a run, whichever format started it, the message is that run, also after its end.
func (h *Handler) resumeUIChat(w http.ResponseWriter, r *http.Request) error {
	if err := requireAcceptable(r, "text/event-stream"); err != nil {
		return err
	}
	thread, err := chatIDOf(r)
	if err != nil {
		return err
	}
	run, found, err := h.runOfChat(r, thread)
	if err != nil {
		return err
	}
	if found {
		head, err := h.repeatedHeader(r, run)
		if err == nil { // a reader of one run says nothing about what the page of its chat has
			h.streamRun(w, r, run.ID, 0, h.uiChatFormat(r, head))
		}
		return err
	}

	page, err := h.Log.Runs(r.Context(), event.Filter{Owner: ownerOf(r), ThreadID: thread, Limit: 1})
	if err != nil {
		return err
	}
	if len(page.Runs) == 0 {
		writeNoContent(w)
		return nil
	}
	run = page.Runs[0]
	fromUIChat := aisdk.DecodeStored(run.Request).Format != ""
	if run.Last.Terminal() && (!fromUIChat || !h.deliveries.missedEnd(run, h.Log.Now())) {
		writeNoContent(w)
		return nil
	}
	head, err := h.repeatedHeader(r, run)
	if err != nil {
		return err
	}
	h.streamUIChat(w, r, head)
	return nil
}

// repeatedHeader returns the header of a stream that has a run from its beginning, as a message of
// its own; an error if the run cannot be shown at this time.
func (h *Handler) repeatedHeader(r *http.Request, run event.Run) (aisdk.Header, error) {
	if suspended, ok := run.Last.Body.(event.Suspended); ok && !canAskInUIChat(suspended) {
		return aisdk.Header{}, newProblem("not_found", "The run waits for a person to raise one of its limits, which a UI message stream has no part for. The native API has the question, at /runs/"+run.ID+".")
	}
	// Report dropped events now: after the header, a stream can only be cut.
	if _, err := h.Log.After(r.Context(), run.ID, 0); err != nil {
		return aisdk.Header{}, err
	}
	// If the run continues a message after a call of one of the page's tools, it has only the
	// end of that message. Pages replace the message that has the streamed id, and would lose the
	// call and its result. So the run is streamed as a message of its own.
	stored := aisdk.DecodeStored(run.Request)
	stored.MessageID = ""
	return stored.Header(run), nil
}

// canAskInUIChat reports whether a page can show, and answer, what a run is suspended for. The
// format has parts for approvals and elicitations, and none for limits.
func canAskInUIChat(s event.Suspended) bool {
	return !slices.ContainsFunc(s.Interrupts, func(i event.Interrupt) bool { return i.Kind == event.KindBudget })
}

// uiChatFormat returns the format of a stream of the run of head.
func (h *Handler) uiChatFormat(r *http.Request, head aisdk.Header) streamFormat {
	f := formatOf(aisdk.NewEncoder(head))
	f.header = uiStreamHeader
	return h.untilSuspended(r, f, canAskInUIChat)
}

// streamUIChat streams the run of head as its message, and tracks whether it was delivered.
func (h *Handler) streamUIChat(w http.ResponseWriter, r *http.Request, head aisdk.Header) {
	h.deliveries.record(head.RunID, false)
	if h.streamRun(w, r, head.RunID, 0, h.uiChatFormat(r, head)) {
		h.deliveries.record(head.RunID, true)
	}
}

// stopUIChat serves POST /api/chat/{id}/stop: it cancels the unfinished runs of the chat.
func (h *Handler) stopUIChat(w http.ResponseWriter, r *http.Request) error {
	thread, err := chatIDOf(r)
	if err != nil {
		return err
	}
	if run, found, err := h.runOfChat(r, thread); err != nil {
		return err
	} else if found {
		thread = run.ThreadID
	}
	for _, status := range []event.Status{event.StatusRunning, event.StatusSuspended} {
		page, err := h.Log.Runs(r.Context(), event.Filter{Owner: ownerOf(r), ThreadID: thread, Status: status, Limit: event.MaxPage})
		if err != nil {
			return err
		}
		for _, run := range page.Runs {
			h.deliveries.record(run.ID, true) // do not stream a stopped run again
			if _, err := h.cancelAndWait(r, run.ID); err != nil && !errors.Is(err, errCallerGone) {
				return err
			}
		}
	}
	writeNoContent(w)
	return nil
}

// chatIDOf returns the chat's id from the path.
func chatIDOf(r *http.Request) (string, error) {
	id := pathParam(r, "id")
	if !aisdk.ValidID(id) {
		return "", newProblem("invalid_request", "The id of the chat must be 1 to 128 visible ASCII characters.")
	}
	return id, nil
}

const (
	// maxTracked bounds the runs whose delivery is tracked.
	maxTracked = 8192
	// redeliveryTime is how long after a run's end its stream is repeated if its delivery is
	// unknown. Pages reconnect within seconds after a stream broke.
	redeliveryTime = time.Minute
)

// deliveryTracker records whether the stream of a run was delivered to its end to the page that
// started it. It keeps the newest maxTracked runs, in memory only: it helps pages that
// reconnect, and nothing depends on it.
type deliveryTracker struct {
	mu        sync.Mutex // protects all fields
	runs      []string   // oldest first
	delivered map[string]bool
}

// record notes whether the stream of a run was delivered to its end. A stream that continues is
// recorded as not delivered.
func (t *deliveryTracker) record(run string, delivered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.delivered == nil {
		t.delivered = make(map[string]bool)
	}
	if i := slices.Index(t.runs, run); i >= 0 {
		t.runs = slices.Delete(t.runs, i, i+1)
	}
	if len(t.runs) >= maxTracked {
		delete(t.delivered, t.runs[0])
		t.runs = slices.Delete(t.runs, 0, 1)
	}
	t.runs = append(t.runs, run)
	t.delivered[run] = delivered
}

// missedEnd reports whether the page of an ended run should get the stream again.
//
// Delivery is unknown for streams served by another process or before a restart. Such a stream
// is repeated for redeliveryTime: to show a message twice does less harm than to show half of
// it. A cancelled run is not repeated, because its caller stopped it.
func (t *deliveryTracker) missedEnd(run event.Run, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delivered, known := t.delivered[run.ID]; known {
		return !delivered
	}
	ended := time.UnixMilli(run.Last.Time)
	return run.Status() != event.StatusCancelled && now.Sub(ended) < redeliveryTime
}
