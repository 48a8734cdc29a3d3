package replay

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"answerd/internal/event"
)

// Notes are records of a run that readers do not see. A process writes them for the process that executes the run next.
// A note consists of words, separated by spaces: one of the words below, and the arguments that its comment lists. KEY
// is the CallKey of a call, and PART an element of Parts. "This step" is the newest step at the time of the note.
//
// Events and notes together show the state of each call. The call is planned once tool_call is in the log, sent once
// NoteSent is, waiting for input once all parts of NoteInput are, and done or failed once tool_result or tool_error is.
const (
	NoteSent         = "sent"       // KEY: the request of the call may be sent from now on
	NoteStopReason   = "cut"        // a finish reason: the next step will be the last
	NoteSampled      = "sampled"    // input, output and total tokens of a server's sampling request
	NoteExtensions   = "extensions" // a piece of the llm.Extensions of this step's answer, which are JSON in base64
	NoteModel        = "model"      // the id of the model that answered this step, if it differs from the step before
	NoteUpstream     = "upstream"   // PART: the endpoint's name for that model, if it differs from the step before
	NoteInput        = "input"      // KEY PART: what the call's server requires before the call is sent again
	NotePrompt       = "prompt"     // PART: the messages of the MCP server's prompt that the request names
	NoteHookReplied  = "told"       // the id of an interrupt about which the interrupt hook has replied
	NoteHookAddition = "extended"   // PART: what the pre_model_call hook adds to this step's requests
	NoteAborted      = "aborted"    // PART: the Abort of a hook that ended the run
	NoteEnd          = "end"        // PART: the terminal event that the run_end hook is about to see
	NoteTurn         = "turn"       // the run is about to end its turn in its thread
	NoteChild        = "child"      // KEY and a run's id: the child run of the call
	NoteSpent        = "spent"      // KEY and an event.Spent as JSON: what the call's child run has used
	NoteBeginning    = "beginning"  // a piece of JSON: what the run's export needs besides events (package record)
	NoteTaken        = "taken"      // a process takes over the run
	NoteLeft         = "left"       // the process stops executing the run without having crashed
)

// Parts divides data into texts that fit into one note each, to be written in order. Each part consists of its index
// from 0, the number of parts, and a piece of data's base64, separated by spaces. If data is empty, there are no parts.
func Parts(data []byte) []string {
	pieces := slices.Collect(slices.Chunk([]byte(base64.StdEncoding.EncodeToString(data)), maxPiece))
	out := make([]string, len(pieces))
	for i, piece := range pieces {
		out[i] = fmt.Sprintf("%d %d %s", i, len(pieces), piece)
	}
	return out
}

// maxPiece is how many bytes of data one part has. It leaves 128 bytes for the words before.
const maxPiece = event.MaxNote - 128

// partJoiner joins the parts made by Parts. If a process dies before it has written all parts, the next process writes
// all of them again; so a part with index 0 discards everything before it.
type partJoiner struct {
	pieces string // the base64 of the parts so far
}

// addPart adds a part, given as its words. With the last part, it returns the argument of Parts. It ignores other words.
func (j *partJoiner) addPart(words []string) (data []byte, complete bool) {
	if len(words) != 3 {
		return nil, false
	}
	index, err := strconv.Atoi(words[0])
	if err != nil {
		return nil, false
	}
	if index == 0 {
		j.pieces = ""
	}
	count, piece := words[1], words[2]
	j.pieces += piece
	if strconv.Itoa(index+1) != count { // not the last part
		return nil, false
	}
	data, err = base64.StdEncoding.DecodeString(j.pieces)
	return data, err == nil
}

// CallKey returns the key that identifies a call in notes. It is a hash of the call's id, because an id chosen by a
// provider may be too long for a note.
func CallKey(callID string) string { return hexSHA256([]byte(callID)) }

// ArgsDigest returns the SHA-256 of a call's arguments in hexadecimal. White space between JSON tokens does not count,
// because clients and exports get events without it.
func ArgsDigest(args []byte) string {
	var compact bytes.Buffer
	if json.Compact(&compact, args) == nil { // else the model did not write JSON
		args = compact.Bytes()
	}
	return hexSHA256(args)
}

// hexSHA256 returns the SHA-256 of data in hexadecimal.
func hexSHA256(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Crashes returns how many processes began or took over the run and did not write NoteLeft. The process that last
// executed the run also counts, so call Crashes before writing this process's NoteTaken.
func Crashes(notes []event.Note) (n int) {
	executing := true // the process that began the run writes no NoteTaken
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
