package agui

import (
	"encoding/json"
	"fmt"

	"answerd/internal/event"
	"answerd/internal/sse"
)

// Encoder encodes the events of one run as the events of one AG-UI run. It needs all of the run's events, in order. The
// frames of a suspended event end the stream. If the suspension is already over, the caller may drop these frames and
// continue with the same encoder: later frames are the same as without the suspended event.
//
// A run that is suspended twice is three AG-UI runs for the client, each with its own ClientRunID. The ids of messages
// contain the service's run id and the step number, which continues from one AG-UI run to the next. So the ids are
// unique in the thread.
type Encoder struct {
	head   Header
	seq    int64       // the sequence number of the event that is being encoded
	time   int64       // the time of that event, in milliseconds
	frames []sse.Frame // the frames of that event

	step         int    // the number of the current step
	messageCount int    // the number of text messages in the current step
	messageID    string // the id of the open text message; "" if none is open
	reasoningID  string // the id of the open reasoning message; "" if none is open

	streamedArgs map[string]bool // the calls whose arguments were sent as deltas, by call id
	pendingCalls []string        // the ids of the calls that the client must execute
}

// NewEncoder returns the encoder of a new stream.
func NewEncoder(h Header) *Encoder { return &Encoder{head: h, streamedArgs: make(map[string]bool)} }

// fields holds an event's members other than type and timestamp. No member may be null: clients validate events, and
// expect that an optional member without a value is absent.
type fields = map[string]any

// emitEvent adds an AG-UI event to the current event's frames: kind is its type, and f has its other members. It adds
// nothing for an event that an earlier stream has sent (Header.After). It modifies f.
func (enc *Encoder) emitEvent(kind string, f fields) {
	if enc.seq <= enc.head.After {
		return
	}
	f["type"] = kind
	f["timestamp"] = enc.time
	data, _ := json.Marshal(f) // cannot fail: f has only texts, numbers and valid JSON
	enc.frames = append(enc.frames, sse.Frame{Data: data})
}

// Encode returns the frames for e, which must be the run's next event. It returns nil for events up to Header.After.
// The frames of the first event after them begin with the start of the AG-UI run.
func (enc *Encoder) Encode(e event.Event) []sse.Frame {
	enc.seq = e.Seq
	enc.time = e.Time
	enc.frames = nil
	if e.Seq == enc.head.After+1 {
		started := enc.addRunIDs(fields{})
		if enc.head.V1 {
			started["protocolVersion"] = "1.0"
		}
		enc.emitEvent("RUN_STARTED", started)
		// GET /runs and the other native endpoints know only the service's run id, so the client gets it here.
		enc.emitEvent("CUSTOM", fields{"name": "run", "value": fields{"run_id": enc.head.RunID}})
	}
	enc.encodeEvent(e.Body)
	return enc.frames
}

// addRunIDs adds the client's ids of the thread and the AG-UI run to f, and returns f.
func (enc *Encoder) addRunIDs(f fields) fields {
	f["threadId"] = enc.head.ThreadID
	f["runId"] = enc.head.ClientRunID
	return f
}

// encodeEvent encodes the events of steps, messages and suspensions, and those that end the run. It leaves the events
// of calls to encodeCall.
func (enc *Encoder) encodeEvent(body event.Body) {
	switch b := body.(type) {
	case event.StepStart:
		enc.step = b.Step
		enc.messageCount = 0
		enc.emitEvent("STEP_STARTED", fields{"stepName": enc.stepName()})
	case event.StepEnd:
		enc.emitEvent("STEP_FINISHED", fields{"stepName": enc.stepName()})
	case event.StepReset:
		// Messages of the stream cannot be withdrawn, but a client that knows this custom event can hide them.
		enc.endText()
		enc.endReasoning()
		enc.pendingCalls = nil // only the last step of a run has calls of the client's tools
		enc.emitEvent("CUSTOM", fields{"name": "step_reset", "value": fields{"step": b.Step, "reason": b.Reason}})
	case event.TextStart:
		enc.messageID = enc.nextMessageID()
		enc.emitEvent("TEXT_MESSAGE_START", fields{"messageId": enc.messageID, "role": "assistant"})
	case event.TextDelta:
		enc.emitEvent("TEXT_MESSAGE_CONTENT", fields{"messageId": enc.messageID, "delta": b.Delta})
	case event.TextEnd:
		enc.endText()
	case event.ReasoningStart:
		enc.reasoningID = fmt.Sprintf("%s-%s", enc.head.RunID, b.PartID)
		enc.emitEvent("REASONING_START", fields{"messageId": enc.reasoningID})
		enc.emitEvent("REASONING_MESSAGE_START", fields{"messageId": enc.reasoningID, "role": "reasoning"})
	case event.ReasoningDelta:
		enc.emitEvent("REASONING_MESSAGE_CONTENT", fields{"messageId": enc.reasoningID, "delta": b.Delta})
	case event.ReasoningEnd:
		enc.endReasoning()
	case event.Budget:
		enc.emitEvent("CUSTOM", fields{"name": "budget", "value": b})
	case event.Suspended:
		interrupts := make([]fields, len(b.Interrupts))
		for i, interrupt := range b.Interrupts {
			interrupts[i] = interruptFields(interrupt)
		}
		outcome := fields{"type": "interrupt", "interrupts": interrupts}
		enc.emitEvent("RUN_FINISHED", enc.addRunIDs(fields{"outcome": outcome}))
	case event.FinalAnswer:
		enc.finishRun(b)
	case event.RunError:
		enc.emitEvent("RUN_ERROR", fields{"message": b.MessageWithErrors(), "code": b.Code})
	case event.Cancelled:
		if enc.head.V1 { // only 1.0 has that outcome
			enc.emitEvent("RUN_FINISHED", enc.addRunIDs(fields{"outcome": fields{"type": "cancelled"}}))
			return
		}
		enc.emitEvent("RUN_ERROR", fields{"message": "The run was cancelled.", "code": "cancelled"})
	default:
		enc.encodeCall(b)
	}
}

// TokenExpired returns the frames that end the stream early because the caller's token has expired. RUN_ERROR is the
// only event of the protocol that can say so, although the run continues.
func (enc *Encoder) TokenExpired() []sse.Frame {
	enc.seq = max(enc.seq, enc.head.After+1) // so that emitEvent does not drop the event
	enc.frames = nil
	enc.emitEvent("RUN_ERROR", fields{"message": "The access token has expired. The run goes on.", "code": "token_expired"})
	return enc.frames
}

// finishRun encodes the final answer, which ends the run. Only clients of 1.0 get the usage, and the ids of the calls
// that they must execute before the next run.
func (enc *Encoder) finishRun(answer event.FinalAnswer) {
	result := fields{"answer": answer.Answer, "finish_reason": answer.FinishReason, "metadata": answer.Metadata}
	if answer.Output != nil {
		result["output"] = answer.Output
	}
	outcome := fields{"type": "success"}
	f := enc.addRunIDs(fields{"result": result, "outcome": outcome})
	if enc.head.V1 {
		if len(enc.pendingCalls) > 0 {
			outcome["pendingToolCallIds"] = enc.pendingCalls
		}
		u := answer.Metadata.Usage
		f["usage"] = []fields{{
			"model": answer.Metadata.Model, "inputTokens": u.InputTokens, "outputTokens": u.OutputTokens, "totalTokens": u.TotalTokens,
		}}
	}
	enc.emitEvent("RUN_FINISHED", f)
}

// stepName returns the name of the current step, which must be the same in STEP_STARTED and STEP_FINISHED.
func (enc *Encoder) stepName() string { return fmt.Sprintf("step-%d", enc.step) }

// stepMessageID returns the id of the message to which the current step's calls belong.
func (enc *Encoder) stepMessageID() string {
	return fmt.Sprintf("%s-%s", enc.head.RunID, enc.stepName())
}

// nextMessageID returns the id for the current step's next text message. The step's first message gets the id that
// stepMessageID returns, so that the step's calls belong to it.
func (enc *Encoder) nextMessageID() string {
	enc.messageCount++
	if enc.messageCount == 1 {
		return enc.stepMessageID()
	}
	return fmt.Sprintf("%s-%d", enc.stepMessageID(), enc.messageCount)
}

// endText closes the open text message, if there is one.
func (enc *Encoder) endText() {
	if enc.messageID != "" {
		enc.emitEvent("TEXT_MESSAGE_END", fields{"messageId": enc.messageID})
		enc.messageID = ""
	}
}

// endReasoning closes the open reasoning message, if there is one.
func (enc *Encoder) endReasoning() {
	if enc.reasoningID != "" {
		enc.emitEvent("REASONING_MESSAGE_END", fields{"messageId": enc.reasoningID})
		enc.emitEvent("REASONING_END", fields{"messageId": enc.reasoningID})
		enc.reasoningID = ""
	}
}
