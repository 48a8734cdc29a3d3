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

// takeCall counts the turn's call i, whose id is given, or names the limit that refuses
// it. The error means that nothing was taken.
func (b *budget) takeCall(ctx context.Context, i int, id string) (limit string, _ error) {
	for {
		limit, taken, moved := b.tryCall(i)
		if taken || limit != "" {
			return limit, nil
		}
		// Those before it may wait for a person, and then so does this.
		if err := b.waits.behind(ctx, id, moved); err != nil {
			return "", err
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

// recallCall settles the turn's call i, of which the log says whether it was taken.
func (b *budget) recallCall(i int, taken bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if taken {
		b.calls.used++
	}
	b.settleLocked(i)
}

func (b *budget) settleLocked(i int) {
	if !b.settled[i] {
		b.settled[i] = true
		b.waits.move(b.moved)
		b.moved = make(chan struct{})
	}
}
