package agent

import (
	"context"
	"errors"
	"time"

	"answerd/internal/event"
)

// Why a run is left without an end of its own, as the cause of its context. It goes on
// from its log, in another process or in this one.
var (
	errParked     = errors.New("the run waits for a person")
	errHandedOver = errors.New("the run is handed over")
	errTaken      = errors.New("the run was taken over")
)

// departTime bounds what is left to do for a run that is left: the log's own patience,
// and some more.
const departTime = 40 * time.Second

// leave ends what this process does for a run, and nothing else: whatever goes on in it
// says no more.
func (r *run) leave(why error) {
	r.out.Seal()
	r.cancel(why)
}

// gone is why this process has left the run, nil if it has not.
func (r *run) gone() error {
	switch cause := context.Cause(r.ctx); cause {
	case errParked, errHandedOver, errTaken:
		return cause
	}
	return nil
}

// depart gives up the job of a run that was left.
func (a *Agent) depart(r *run) {
	ctx, cancel := context.WithTimeout(context.Background(), departTime)
	defer cancel()
	err := r.note(ctx, noteLeft)
	switch pos, pending := a.unread(ctx, r); {
	case errors.Is(err, event.ErrFenced): // somebody has it already
		err = r.job.Release(ctx)
	case r.gone() == errParked && !pending:
		err = errors.Join(err, r.job.Park(ctx, pos, r.waits.until()))
	default:
		err = errors.Join(err, r.job.Release(ctx))
	}
	if err != nil {
		// Its lease ends, and somebody finds it.
		a.Logger.WarnContext(ctx, "a run could not be given up in an orderly way", "run_id", r.ID, "error", err)
	}
}

// unread is up to where the inputs of a run say nothing that it still has to hear, and
// whether there are others.
func (a *Agent) unread(ctx context.Context, r *run) (pos int64, pending bool) {
	open := r.waits.openIDs()
	for {
		page, err := a.Log.Inputs(ctx, r.ID, pos)
		if err != nil {
			return pos, true
		}
		if len(page.Inputs) == 0 {
			return pos, false
		}
		for _, in := range page.Inputs {
			if open[in.ID] || in.ID == event.CancelID {
				return pos, true
			}
			pos = in.Pos
		}
	}
}
