package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"answerd/internal/event"
)

// The notes of a run, by their first word. The call journal is among them: a call is
// intended once tool_call is in the log, sent once noteSent is, and done or failed with
// tool_result or tool_error.
const (
	noteSent    = "sent"    // and a call: its request may be on its way from now on
	noteCut     = "cut"     // and a reason: the next step is the last one
	noteSampled = "sampled" // and tokens: in, out and in all, that a server has used
	noteTaken   = "taken"   // a process takes the run up that another one left, or lost
	noteLeft    = "left"    // a process leaves the run in an orderly way
)

// note writes a note of a run that can be taken over. Others need none.
func (r *run) note(ctx context.Context, words ...any) error {
	if r.job == nil {
		return nil
	}
	text := strings.TrimSuffix(fmt.Sprintln(words...), "\n")
	if err := r.agent.Log.AddNote(ctx, r.ID, []byte(text)); err != nil {
		return fmt.Errorf("note %s: %w", words[0], err)
	}
	return nil
}

// callMark stands for a call in a note: its id is as long as a model's provider likes.
func callMark(callID string) string {
	sum := sha256.Sum256([]byte(callID))
	return hex.EncodeToString(sum[:])
}

// deaths is how many processes died while they executed the run, the last one included.
func deaths(notes []event.Note) (n int) {
	held := true
	for _, note := range notes {
		switch string(note.Data) {
		case noteTaken:
			if held {
				n++
			}
			held = true
		case noteLeft:
			held = false
		}
	}
	if held {
		n++
	}
	return n
}
