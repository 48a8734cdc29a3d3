package agent

import "sync"

// rest is the first moment at which nothing more comes of a run for now: it has ended, was
// left, or waits for a person.
type rest struct {
	reached chan struct{}
	once    *sync.Once // closes it
}

func newRest() rest { return rest{make(chan struct{}), new(sync.Once)} }

func (r rest) reach() { r.once.Do(func() { close(r.reached) }) }
