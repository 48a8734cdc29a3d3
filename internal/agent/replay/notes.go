package replay

import (
	"crypto/sha256"
	"encoding/hex"

	"answerd/internal/event"
)

// Notes are records of a run that readers do not see. A process writes them for the next one
// that executes the run. The first word of a note is one of these. Together with the events
// they journal each call: it is intended once tool_call is in the log, sent once NoteSent is,
// waiting for input once all of NoteInput is, and done or failed with tool_result or tool_error.
const (
	NoteSent       = "sent"       // and the CallKey of a call: its request may leave from now on
	NoteLimit      = "cut"        // and a finish reason: the next step is the last one
	NoteSampled    = "sampled"    // and tokens: input, output and total, that a server has used
	NoteExtensions = "extensions" // and a part of llm.Extensions, as JSON in base64: of the answer of this step
	NoteInput      = "input"      // CallKey, index, count and a part in base64: what the server of a call requires before it is sent again
	NoteTaken      = "taken"      // a process takes over the run of another one
	NoteLeft       = "left"       // a process stops to execute the run, in an orderly way
)

// CallKey returns the key of a call in notes: a hash, since a provider may choose an id of any
// length.
func CallKey(callID string) string { return hexSHA256([]byte(callID)) }

func hexSHA256(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Crashes returns how many processes died while they executed the run, the last one included:
// those that took it, or began it, and wrote no NoteLeft.
func Crashes(notes []event.Note) (n int) {
	executing := true
	for _, note := range notes {
		switch string(note.Data) {
		case NoteTaken:
			if executing {
				n++
			}
			executing = true
		case NoteLeft:
			executing = false
		}
	}
	if executing {
		n++
	}
	return n
}
