package agent

import "context"

// The calls of a turn run together, and may wait for hooks and people on the way to
// the budget. Which of them it refuses must not depend on who is faster: they take
// from it as if they were made one after the other, in call order. A call waits for
// those before it only while that matters: when less is left than they may take.

// beginTurn makes ready for n calls.
func (b *budget) beginTurn(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settled = make([]bool, n)
}

// takeCall counts the turn's call i, or names the limit that refuses it. The error is
// ctx's, and means that nothing was taken.
func (b *budget) takeCall(ctx context.Context, i int) (limit string, _ error) {
	for {
		limit, taken, moved := b.tryCall(i)
		if taken || limit != "" {
			return limit, nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// tryCall is takeCall without the wait; moved is closed when it is worth another try.
func (b *budget) tryCall(i int) (limit string, taken bool, moved <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := 0
	for _, settled := range b.settled[:i] {
		if !settled {
			before++
		}
	}
	if limit = b.spentLocked(); limit == "" && b.calls.left() > float64(before) {
		b.calls.used++
		taken = true
		b.settleLocked(i)
	}
	return limit, taken, b.moved
}

// passCall says that the turn's call i takes nothing from now on.
func (b *budget) passCall(i int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settleLocked(i)
}

func (b *budget) settleLocked(i int) {
	if !b.settled[i] {
		b.settled[i] = true
		close(b.moved)
		b.moved = make(chan struct{})
	}
}
