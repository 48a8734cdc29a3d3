package event

import "context"

// MaxNote bounds a note, in bytes.
const MaxNote = 1 << 10

// Note is what the executor of a run wrote for whoever takes the run over. No reader
// sees it.
type Note struct {
	After int64 // the number of the event that it follows
	Data  []byte
}

// Journal is the part of a log that has what a run's executor did and no event says.
type Journal interface {
	// AddNote keeps a note behind the newest event of a run, before it returns. It fails
	// as Append does, so that a process which was replaced never notes what it is about
	// to do; ErrTooLarge beyond MaxNote. The bytes are the log's own from now on.
	AddNote(ctx context.Context, run string, note []byte) error
	// Notes returns the notes of a run in order, as far as they are kept.
	Notes(ctx context.Context, run string) ([]Note, error)
}
