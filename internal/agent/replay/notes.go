package replay

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"

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
	NoteModel      = "model"      // and the id of the model that answered this step, if it is not the one before
	NoteUpstream   = "upstream"   // and a part: how its endpoint calls that model, if it is not the name before
	NoteInput      = "input"      // and a CallKey and a part: what the server of a call requires before it is sent again
	NoteTold       = "told"       // and the id of an interrupt: the hook interrupt has replied about it
	NoteExtended   = "extended"   // and a part: what the hook pre_model_call adds to the requests of this step
	NoteAborted    = "aborted"    // and a part: the Abort of a hook that ends the run
	NoteEnd        = "end"        // and a part: the terminal event that the hook run_end is asked about
	NoteTurn       = "turn"       // the run is about to end its turn in its thread
	NoteChild      = "child"      // and a CallKey and a run's id: the child run that the call asks
	NoteSpent      = "spent"      // and a CallKey and an event.Spent as JSON: what the child run has used, once it has ended
	NoteBeginning  = "beginning"  // and a piece of JSON: what the export of the run needs and events do not have (package record)
	NoteTaken      = "taken"      // a process takes over the run of another one
	NoteLeft       = "left"       // a process stops to execute the run, in an orderly way
)

// Parts divides data into the parts of notes. A part is an index, the number of parts, and a piece
// in base64.
func Parts(data []byte) []string {
	pieces := slices.Collect(slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), maxPiece))
	out := make([]string, len(pieces))
	for i, piece := range pieces {
		out[i] = fmt.Sprintf("%d %d %s", i, len(pieces), piece)
	}
	return out
}

// maxPiece bounds the piece of data in one note, in bytes. The words before it need the rest.
const maxPiece = event.MaxNote - 128

// joined holds the parts of Parts as they are read. A process that died may have left some parts
// only; the next process writes all of them again.
type joined struct {
	pieces string // of the parts so far
	data   []byte // once all parts are there; nil before
}

// addPart adds a part, whose words are those that Parts has written, and reports whether it was the last one.
func (j *joined) addPart(words []string) bool {
	if len(words) != 3 {
		return false
	}
	index, count, piece := words[0], words[1], words[2]
	n, err := strconv.Atoi(index)
	if n == 0 {
		j.pieces = ""
	}
	j.pieces += piece
	isLast := err == nil && strconv.Itoa(n+1) == count
	if !isLast {
		return false
	}
	data, err := base64.StdEncoding.DecodeString(j.pieces)
	if err != nil {
		return false
	}
	j.data = data
	return true
}

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
