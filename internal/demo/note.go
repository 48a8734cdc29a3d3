package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// note is one note. Its id never changes and is not given again.
type note struct {
	ID    int    `json:"id"`
	Title string `json:"title"`
}

// noteList is the structured result of list_notes.
type noteList struct {
	Notes   []note `json:"notes"`
	Summary string `json:"summary" jsonschema:"the list in one sentence"`
}

// deleteArgs are delete_note's arguments.
type deleteArgs struct {
	ID int `json:"id"`
}

// deletion is the structured result of delete_note.
type deletion struct {
	Deleted note   `json:"deleted"`
	Left    int    `json:"left" jsonschema:"how many notes are left"`
	Summary string `json:"summary" jsonschema:"what happened, in one sentence"`
}

// notebook is a few notes in memory, shared by all sessions. Deleting them harms
// nobody: they are back after a restart.
type notebook struct {
	mu    sync.Mutex // protects notes
	notes []note
}

// newNotebook has a few notes to list and to delete.
func newNotebook() *notebook {
	return &notebook{notes: []note{
		{1, "Buy oat milk"}, {2, "Call the plumber about the tap"}, {3, "Ideas for the team's autumn trip"},
		{4, "Return the library books"}, {5, "Water the plants on Sunday"},
	}}
}

// list never has a nil slice: null is not the array that the schema promises.
func (b *notebook) list() *noteList {
	b.mu.Lock()
	defer b.mu.Unlock()
	l := &noteList{Notes: append([]note{}, b.notes...), Summary: "There are no notes."}
	var titles []string
	for _, n := range b.notes {
		titles = append(titles, fmt.Sprintf("%d: %s", n.ID, n.Title))
	}
	if len(titles) > 0 {
		l.Summary = "The notes are " + strings.Join(titles, "; ") + "."
	}
	return l
}

// remove deletes a note. That there is none is an error for the model, with the way
// to learn which there are.
func (b *notebook) remove(id int) (*deletion, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.notes, func(n note) bool { return n.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("there is no note %d: list_notes tells which there are", id)
	}
	n := b.notes[i]
	b.notes = slices.Delete(b.notes, i, i+1)
	return &deletion{n, len(b.notes), fmt.Sprintf("Note %d, %q, is deleted.", n.ID, n.Title)}, nil
}

// addNotes adds list_notes and delete_note, the one tool that asks for approval
// where the host grants it on the annotations' word.
func addNotes(s *sdk.Server, b *notebook) {
	sdk.AddTool(s, &sdk.Tool{
		Name: "list_notes", Title: "List notes", Annotations: readOnly(),
		Description: "Lists all notes with their ids.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`),
	}, func(context.Context, *sdk.CallToolRequest, struct{}) (*sdk.CallToolResult, *noteList, error) {
		l := b.list()
		return said(l.Summary), l, nil
	})
	sdk.AddTool(s, &sdk.Tool{
		Name: "delete_note", Title: "Delete a note",
		Annotations: &sdk.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)},
		Description: "Deletes one note for good. Use it only when the user asks to delete or remove a note.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
			"id":{"type":"integer","description":"Id of the note, as list_notes gives it","minimum":1,"maximum":1000000}
		},"required":["id"],"additionalProperties":false}`),
	}, func(_ context.Context, _ *sdk.CallToolRequest, in deleteArgs) (*sdk.CallToolResult, *deletion, error) {
		d, err := b.remove(in.ID)
		if err != nil {
			return nil, nil, err
		}
		return said(d.Summary), d, nil
	})
}
