package event

import "context"

// MaxNote bounds a note, in bytes. In base64 it fits the headers of a NATS message, which are 64 KiB at most.
const MaxNote = 32 << 10

// Note is a message of a run's executor to the process that may take the run over. Readers of the run do not see it.
type Note struct {
	After int64 // the number of the newest event when the note was added
	Data  []byte
}

// Journal is the part of a log that keeps the notes of runs.
type Journal interface {
	// AddNote adds a note after the newest event of a run. Like AppendAsync it may return before the note is stored;
	// Flush waits until it is. It fails as AppendAsync does, so that a process that was replaced by another one cannot
	// announce what it is about to do. It returns ErrTooLarge beyond MaxNote. The caller must not change
	// note after the call.
	AddNote(ctx context.Context, run string, note []byte) error
	// Notes returns the notes of a run in order, as far as they are kept.
	Notes(ctx context.Context, run string) ([]Note, error)
}
