package agent

import (
	"context"
	"encoding/json"
	"fmt"

	"go.opentelemetry.io/otel/propagation"

	"answerd/internal/event"
)

// held is what the log keeps of a run for whoever executes it, besides what it keeps for
// readers. The caller's token is no part of it: it was lent to one process, for as long
// as it lives. What rules ask of him is, where there are rules: without it nothing would be
// allowed any more.
type held struct {
	Version     int     `json:"version"`
	Request     Request `json:"request"`
	TraceParent string  `json:"traceparent,omitempty"`

	Scopes []string                   `json:"scopes,omitempty"`
	Claims map[string]json.RawMessage `json:"claims,omitempty"`
}

// heldVersion changes when an older process could not go on with what a newer one wrote.
const heldVersion = 1

// hold makes the run one that others can go on with.
func (r *run) hold(ctx context.Context) error {
	if !r.agent.Durable {
		return nil
	}
	h := held{Version: heldVersion, Request: r.req}
	h.Request.IdempotencyKey, h.Request.Fingerprint, h.Request.Record = "", [32]byte{}, nil // which the log has
	if r.agent.Rules != nil {
		h.Scopes, h.Claims = r.caller.Scopes, r.caller.Claims
	}
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(r.ctx, carrier)
	h.TraceParent = carrier["traceparent"]
	request, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("encode a request: %w", err)
	}
	if r.job, err = r.agent.Log.CreateJob(ctx, r.ID, request); err != nil {
		return fmt.Errorf("hold a run: %w", err)
	}
	r.inbox.listen()
	return nil
}

// unhold reads back what another process held.
func unhold(request []byte) (h held, err error) {
	defer recovered(&err) // or the run would be the end of one process after the other
	if err := json.Unmarshal(request, &h); err != nil {
		return h, fmt.Errorf("decode a request: %w", err)
	}
	if h.Version != heldVersion {
		return h, fmt.Errorf("a request of version %d", h.Version)
	}
	return h, nil
}

// start appends the first event of the run.
func (r *run) start(ctx context.Context) error {
	return r.out.Append(ctx, event.Start{
		Question: r.req.asked(), Model: r.req.Model, ThreadID: r.ThreadID, TraceID: r.TraceID, Metadata: r.req.Metadata,
	})
}
