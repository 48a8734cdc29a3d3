package event

import "context"

// MaxNote is the largest size of a note, in bytes. Encoded as base64, such a note fits the headers of a NATS message,
// which are limited to 64 KiB.
const MaxNote = 32 << 10

// Note is a message from a run's executor to a process that may later take the run over. Readers of the run do not see
// notes.
type Note struct {
	After int64 // the number of the run's newest event when the note was added
	Data  []byte
}

// Journal is the part of a log that keeps the notes of runs.
type Journal interface {
	// AddNote adds a note after the run's newest event. Like AppendAsync it may return before the note is stored. Flush
	// waits until it is. AddNote returns the same errors as AppendAsync, so a process that lost the run to another one
	// cannot announce what it is about to do. It returns ErrTooLarge if note exceeds MaxNote. The caller must not
	// change note afterwards.
	AddNote(ctx context.Context, run string, note []byte) error
	// Notes returns the notes of a run that are still kept, in order.
	Notes(ctx context.Context, run string) ([]Note, error)
}
