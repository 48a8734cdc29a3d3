package agent

import (
	"context"
	"errors"

	"answerd/internal/agent/admission"
	"answerd/internal/auth"
)

// Refusal is a caller who has to come back later: its Reason is one of the errors below.
type Refusal = admission.Refusal

// Why there is no place for a run or a direct call.
var (
	ErrOverloaded  = admission.ErrFull
	ErrMemoryShort = admission.ErrMemory
	ErrTooMany     = admission.ErrTooMany // of this caller
	ErrTooFast     = admission.ErrTooFast
)

// admitRun counts a run in, before the log is asked for anything: the log may be slow, and
// whoever finds the run there must find it here.
func (a *Agent) admitRun(ctx context.Context, ru *run, owner auth.Identity) error {
	_, err := a.acquireSlot(ctx, owner, func(p *admission.Slot) { ru.slot, a.active[ru.ID] = p, ru })
	return err
}

// acquireSlot gives a caller a place, and keeps Drain waiting until a.runs is done for it. then
// is called with the agent's mutex held.
func (a *Agent) acquireSlot(ctx context.Context, caller auth.Identity, then func(*admission.Slot)) (*admission.Slot, error) {
	slot, err := a.gate.Acquire(ctx, caller.Key())
	if err == nil && !a.registerWork(slot, then) {
		slot.Release()
		err = admission.ErrClosed
	}
	switch {
	case errors.Is(err, admission.ErrClosed):
		return nil, ErrDraining
	case err != nil:
		a.metrics.countRefusal(ctx, err)
		return nil, err
	}
	return slot, nil
}

// registerWork adds to a.runs, unless Drain waits for them already.
func (a *Agent) registerWork(slot *admission.Slot, then func(*admission.Slot)) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return false
	}
	a.runs.Add(1)
	then(slot)
	return true
}
