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
	"answerd/internal/agent/thread"
	"answerd/internal/api/aisdk"
	"answerd/internal/event"
)

// uiStreamHeader marks a stream as a UI message stream of the AI SDK.
var uiStreamHeader = http.Header{"X-Vercel-Ai-Ui-Message-Stream": {"v1"}}

// postUIChat serves POST /api/chat. The request has a question, which starts a run, or a message of the assistant. Such
// a message has a person's answers, which resume a suspended run, or results of the page's own tools, which start a run
// that continues the message.
func (h *Handler) postUIChat(w http.ResponseWriter, r *http.Request) error {
	body, err := h.readBody(r)
	if err != nil {
		return err
	}
	request, err := aisdk.Decode(body)
	if err != nil {
		return err
	}
	if err := decodeOptions(request.Options, "", &request.Request); err != nil {
		return err
	}
	if err := readIdempotencyKey(r, body, &request.Request); err != nil {
		return err
	}
	if request.ThreadID, err = h.threadOfChat(r, request.ThreadID); err != nil {
		return err
	}
	if len(request.Answers) > 0 {
		// A page posts its message with all answers, including those that it has posted before. If none of them is to
		// an open interrupt, the request can only be about results of the page's own tools.
		run, open, err := h.findSuspendedRun(r, request.ThreadID, answersInterrupt(request))
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
	stored := aisdk.StoredRequest{MessageID: request.MessageID, NoApprovals: request.ApprovalsDeclined}
	request.Record = stored.Encode()
	request.AskAtLimit = false // the format has no part for that question
	run, err := h.Agent.Start(r.Context(), identity(r), request.Request)
	if err != nil {
		return mapPointer(err, "")
	}
	h.streamUIChat(w, r, stored.Header(run))
	return nil
}

// answersInterrupt returns a function that reports whether the request answers an interrupt.
func answersInterrupt(q aisdk.Request) func(event.Interrupt) bool {
	return func(i event.Interrupt) bool {
		return slices.ContainsFunc(q.Answers, func(a aisdk.Answer) bool { return a.ID == i.ID })
	}
}

// continueUIChat answers the run's interrupts in open and streams the rest of its message. open has the interrupts that
// q answers; q's answers to other interrupts are ignored.
func (h *Handler) continueUIChat(
	w http.ResponseWriter, r *http.Request, q aisdk.Request, run event.Run, open []event.Interrupt,
) error {
	head := aisdk.DecodeStored(run.Request).Header(run)
	head.MessageID = q.MessageID
	head.After = run.Last.Seq
	head.Outputs = make(map[string]json.RawMessage)
	var inputs []agent.Input
	fields := make(map[string]string) // the paths of the answers in the request, by interrupt id
	for _, answer := range q.Answers {
		isOpen := slices.ContainsFunc(open, func(i event.Interrupt) bool { return i.ID == answer.ID })
		if isOpen {
			inputs = append(inputs, answer.Input)
			head.Outputs[answer.ID] = answer.Output
			fields[answer.ID] = answer.Field
		}
	}
	if err := h.Agent.Answer(r.Context(), identity(r), run.ID, inputs...); err != nil {
		return mapInputPointers(err, func(interrupt, pointer string) string { return jsonPointer(fields[interrupt]) + pointer })
	}
	h.streamUIChat(w, r, head)
	return nil
}

// runIDLength is the length of a run's id, in every log.
const runIDLength = len("run_") + 26

// runOfChat returns the caller's run whose id a page uses as the id of a chat. In this way a page can show any of its
// caller's runs, and the chat continues the run's thread. found is false if id does not have the form of a run's id. If
// it has, and the caller has no such run, the error is event.ErrNotFound.
func (h *Handler) runOfChat(r *http.Request, chatID string) (run event.Run, found bool, err error) {
	if !strings.HasPrefix(chatID, "run_") || len(chatID) != runIDLength {
		return event.Run{}, false, nil
	}
	run, err = h.ownedRun(r, chatID)
	return run, err == nil, err
}

// threadOfChat returns the id of the chat's thread. That is the thread of the run that chatID names (runOfChat), or
// else chatID itself.
func (h *Handler) threadOfChat(r *http.Request, chatID string) (string, error) {
	run, found, err := h.runOfChat(r, chatID)
	if found {
		return run.ThreadID, nil
	}
	return chatID, err
}

// resumeUIChat serves GET /api/chat/{id}/stream. If the id is that of a run (runOfChat), it streams that run, in
// progress or ended, whichever API format started it. Otherwise it streams the chat's newest run from its beginning, if
// a page needs that stream (needsUIStream). If not, it answers 204, which tells the SDK that it has nothing to stream.
func (h *Handler) resumeUIChat(w http.ResponseWriter, r *http.Request) error {
	chatID, err := chatIDOf(r)
	if err != nil {
		return err
	}
	run, isRunID, err := h.runOfChat(r, chatID)
	if err != nil {
		return err
	}
	if isRunID {
		head, err := h.headerFromStart(r, run)
		if err != nil {
			return err
		}
		// Unlike streamUIChat, do not record how far this page has read the run: the chat may be open in another page.
		h.streamRun(w, r, run.ID, 0, h.uiChatFormat(r, head))
		return nil
	}

	newest, err := h.Log.Runs(r.Context(), event.Filter{Owner: ownerOf(r), ThreadID: chatID, Limit: 1})
	if err != nil {
		return err
	}
	if len(newest.Runs) == 0 || !h.needsUIStream(newest.Runs[0]) {
		writeNoContent(w)
		return nil
	}
	head, err := h.headerFromStart(r, newest.Runs[0])
	if err != nil {
		return err
	}
	h.streamUIChat(w, r, head)
	return nil
}

// needsUIStream reports whether the run is in progress, or has ended and a page may have missed its end (missedEnd). A
// page can have missed the end only of a run that a page has started.
func (h *Handler) needsUIStream(run event.Run) bool {
	if !run.Last.Terminal() {
		return true
	}
	startedByPage := aisdk.DecodeStored(run.Request).Format != ""
	return startedByPage && h.deliveries.missedEnd(run, h.Log.Now())
}

// headerFromStart returns the header of a stream that has the run from its first event, as a message of its own. The
// error is not_found while the run waits for something that the format cannot ask a person for, event.ErrGone if the
// log has dropped events of the run, or another error of the log.
func (h *Handler) headerFromStart(r *http.Request, run event.Run) (aisdk.Header, error) {
	if suspended, ok := run.Last.Body.(event.Suspended); ok && !canAskInUIChat(suspended) {
		return aisdk.Header{}, newProblem("not_found", "The run waits for a person to raise one of its limits, "+
			"which a UI message stream has no part for. The native API has the question, at /runs/"+run.ID+".")
	}
	// Report dropped events now: after the header, a stream can only be cut.
	if _, err := h.Log.After(r.Context(), run.ID, 0); err != nil {
		return aisdk.Header{}, err
	}
	// A run may continue a message after a call of one of the page's tools, and has only the end of that message. The
	// page replaces its message with the streamed id, and would lose the call and its result. So the repeated message
	// gets an id of its own.
	stored := aisdk.DecodeStored(run.Request)
	stored.MessageID = ""
	return stored.Header(run), nil
}

// canAskInUIChat reports whether a page can show and answer the interrupts in s. The format has parts for approvals and
// elicitations, but not for limits of a budget.
func canAskInUIChat(s event.Suspended) bool {
	return !slices.ContainsFunc(s.Interrupts, func(i event.Interrupt) bool { return i.Kind == event.KindBudget })
}

// uiChatFormat returns the stream format for the run and message that head describes. It is for one stream.
func (h *Handler) uiChatFormat(r *http.Request, head aisdk.Header) streamFormat {
	f := formatOf(aisdk.NewEncoder(head))
	f.header = uiStreamHeader
	return h.untilSuspended(r, f, canAskInUIChat)
}

// streamUIChat streams the run and message that head describes, and records whether the page received the whole stream.
func (h *Handler) streamUIChat(w http.ResponseWriter, r *http.Request, head aisdk.Header) {
	h.deliveries.setDelivered(head.RunID, false)
	if h.streamRun(w, r, head.RunID, 0, h.uiChatFormat(r, head)) {
		h.deliveries.setDelivered(head.RunID, true)
	}
}

// stopUIChat serves POST /api/chat/{id}/stop: it cancels the chat's running and suspended runs. It waits at most
// cancelWait for each of them to end.
func (h *Handler) stopUIChat(w http.ResponseWriter, r *http.Request) error {
	chatID, err := chatIDOf(r)
	if err != nil {
		return err
	}
	threadID, err := h.threadOfChat(r, chatID)
	if err != nil {
		return err
	}
	for _, status := range []event.Status{event.StatusRunning, event.StatusSuspended} {
		page, err := h.Log.Runs(r.Context(), event.Filter{
			Owner: ownerOf(r), ThreadID: threadID, Status: status, Limit: event.MaxPage,
		})
		if err != nil {
			return err
		}
		for _, run := range page.Runs {
			h.deliveries.setDelivered(run.ID, true) // do not stream a stopped run again
			if _, err := h.cancelAndWait(r, run.ID); err != nil && !errors.Is(err, errContextEnded) {
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
	if !thread.IsID(id) {
		return "", newProblem("invalid_request", "The id of the chat "+thread.IDRule+".")
	}
	return id, nil
}

const (
	// maxTracked is the number of runs whose delivery is tracked.
	maxTracked = 8192
	// redeliveryTime is how long after a run's end its stream is repeated if it is unknown whether a page received it.
	// Pages reconnect within seconds after a stream broke.
	redeliveryTime = time.Minute
)

// deliveryTracker records whether a page has received a run's stream to its end. It keeps the last maxTracked runs, in
// memory only. If a record is lost, a page may get a stream twice, or not again.
type deliveryTracker struct {
	mu      sync.Mutex // protects records
	records []delivery // at most one for each run, the oldest first
}

// delivery records whether a run's stream was delivered to its end.
type delivery struct {
	run         string // the run's id
	isDelivered bool
}

// setDelivered stores whether the run's stream was delivered to its end, and replaces an earlier record. A stream that has
// just begun counts as not delivered.
func (t *deliveryTracker) setDelivered(run string, isDelivered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.records = slices.DeleteFunc(t.records, func(d delivery) bool { return d.run == run })
	if len(t.records) >= maxTracked {
		t.records = slices.Delete(t.records, 0, 1)
	}
	t.records = append(t.records, delivery{run, isDelivered})
}

// missedEnd reports whether a page should get the ended run's stream again, because its delivery broke or is unknown.
//
// It is unknown if another process served the stream, or this one before a restart. The stream is then repeated until
// redeliveryTime after the run's end, because a message that is shown twice does less harm than half a message. The
// stream of a cancelled run is not repeated, because the caller stopped it. now is the log's time.
func (t *deliveryTracker) missedEnd(run event.Run, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.IndexFunc(t.records, func(d delivery) bool { return d.run == run.ID }); i >= 0 {
		return !t.records[i].isDelivered
	}
	ended := time.UnixMilli(run.Last.Time)
	return run.Status() != event.StatusCancelled && now.Sub(ended) < redeliveryTime
}
