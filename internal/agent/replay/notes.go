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

// Notes are records of a run that readers do not see. A process writes them for the next process that executes the
// run. A note is a text of words with spaces between them: one of these words, and the arguments that its comment
// lists. KEY is the CallKey of a call, and PART one of Parts. "This step" is the newest step when the note is written.
//
// Together with the events, notes journal each call. It is intended once tool_call is in the log, sent once NoteSent
// is, waiting for input once all parts of NoteInput are, and done or failed with tool_result or tool_error.
const (
	NoteSent         = "sent"       // KEY: the request of the call may be sent from now on
	NoteStopReason   = "cut"        // a finish reason: the next step is the last one
	NoteSampled      = "sampled"    // input, output and total tokens that a server has used by sampling
	NoteExtensions   = "extensions" // a piece of the llm.Extensions of this step's answer, which are JSON in base64
	NoteModel        = "model"      // the id of the model that answered this step, if it differs from the step before
	NoteUpstream     = "upstream"   // PART: the endpoint's name for that model, if it differs from the step before
	NoteInput        = "input"      // KEY PART: the input that the server of a call requires before the call is sent again
	NoteHookReplied  = "told"       // the id of an interrupt: the hook interrupt has replied about it
	NoteHookAddition = "extended"   // PART: what the hook pre_model_call adds to the requests of this step
	NoteAborted      = "aborted"    // PART: the Abort of a hook that ends the run
	NoteEnd          = "end"        // PART: the terminal event that the hook run_end is asked about
	NoteTurn         = "turn"       // the run is about to end its turn in its thread
	NoteChild        = "child"      // KEY and the id of a run: the child run that the call asks
	NoteSpent        = "spent"      // KEY and an event.Spent as JSON: what the child run of the call has used, when it ended
	NoteBeginning    = "beginning"  // a piece of JSON: what the export of the run needs besides events (package record)
	NoteTaken        = "taken"      // a process takes the run over
	NoteLeft         = "left"       // the process stops executing the run without a crash
)

// Parts divides data into texts that fit one note each, to be written in this order. A part is its index from 0, the
// number of parts, and a piece of the base64 of data, with spaces between them. There is no part if data is empty.
func Parts(data []byte) []string {
	pieces := slices.Collect(slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), maxPiece))
	out := make([]string, len(pieces))
	for i, piece := range pieces {
		out[i] = fmt.Sprintf("%d %d %s", i, len(pieces), piece)
	}
	return out
}

// maxPiece bounds the piece of data in one part, in bytes. 128 bytes are left for the words before the piece.
const maxPiece = event.MaxNote - 128

// partJoiner puts the parts of Parts together again. If a process died before it had written all parts, the next
// process writes all of them again, so the part with the index 0 discards what was read before.
type partJoiner struct {
	pieces string // the base64 of the parts so far
	data   []byte // what Parts was called with; nil until all parts have been added
}

// addPart adds the part that consists of words. It reports whether that was the last part, and then sets data. It
// ignores words that are not a part.
func (j *partJoiner) addPart(words []string) (complete bool) {
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

// CallKey returns the key of a call in notes. It is a hash of the id, because an id that a provider chose may be too
// long for a note.
func CallKey(callID string) string { return hexSHA256([]byte(callID)) }

// hexSHA256 returns the SHA-256 of data in hex.
func hexSHA256(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Crashes returns how many processes began the run or took it over, and wrote no NoteLeft. The process that executed
// the run last counts too, so call Crashes before this process writes NoteTaken.
func Crashes(notes []event.Note) (n int) {
	executing := true // by the process that began the run, which writes no NoteTaken
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
