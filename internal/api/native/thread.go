package native

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"answerd/internal/agent/definition"
	"answerd/internal/agent/thread"
	"answerd/internal/event"
)

// Thread describes a conversation.
type Thread struct {
	ThreadID  string       `json:"thread_id"`
	Title     string       `json:"title"`
	Agent     string       `json:"agent"` // the agent that answered last
	CreatedAt time.Time    `json:"created_at"`
	UpdatedAt time.Time    `json:"updated_at"`
	Runs      int          `json:"runs"`   // including the active one
	Status    event.Status `json:"status"` // of the newest run
}

// NewThread returns the description of t. status is the status of its newest run.
func NewThread(t event.Thread, status event.Status) Thread {
	runs := t.Turns // each ended run has one turn
	if t.Active != "" {
		runs++
	}
	return Thread{
		ThreadID: t.ID, Title: t.Title, Agent: cmp.Or(t.Agent, definition.DefaultID),
		CreatedAt: t.Created.UTC(), UpdatedAt: t.Updated.UTC(), Runs: runs, Status: status,
	}
}

// ThreadList is the body of GET /threads.
type ThreadList struct {
	Threads []Thread `json:"threads"`
	Next    string   `json:"next,omitempty"` // the query parameter "after" for the next page; "" on the last page
}

// ThreadMessages is the body of GET /threads/{thread_id}: a thread with some of its messages in order.
type ThreadMessages struct {
	Thread
	Messages []ThreadMessage `json:"messages"`
	Next     string          `json:"next,omitempty"` // the query parameter "before" for older messages; "" if there are none
}

// ThreadMessage is a message of a thread. Each run has two: the user's question and the assistant's answer.
type ThreadMessage struct {
	Role        string             `json:"role"`
	Content     string             `json:"content"`
	RunID       string             `json:"run_id"`
	Time        int64              `json:"ts"` // milliseconds since the Unix epoch
	Attachments []ThreadAttachment `json:"attachments,omitempty"`
	Status      event.Status       `json:"status,omitempty"` // of the run; only in messages of the assistant
	Calls       []thread.Call      `json:"calls,omitempty"`
}

// ThreadAttachment names a file of a question.
type ThreadAttachment struct {
	Name      string `json:"name,omitempty"`
	MediaType string `json:"media_type,omitempty"`
}

// NewThreadMessages returns the two messages of a run's turn in its thread: the question and the answer.
func NewThreadMessages(run string, t thread.Turn) []ThreadMessage {
	user := ThreadMessage{Role: "user", Content: t.Question, RunID: run, Time: t.Asked}
	for _, m := range t.Media {
		user.Attachments = append(user.Attachments, ThreadAttachment{Name: m.Name, MediaType: m.MIME})
	}
	assistant := ThreadMessage{Role: "assistant", Content: t.Answer(), RunID: run, Time: t.EndedAt, Status: t.Status}
	for _, s := range t.Steps {
		assistant.Calls = append(assistant.Calls, s.Calls...)
	}
	return []ThreadMessage{user, assistant}
}

// FormatTurn returns the query parameter "before" for the page of messages that ends before the turn with that number.
// It returns "" for 0, which means that the thread has no older messages.
func FormatTurn(number int64) string {
	if number == 0 {
		return ""
	}
	return strconv.FormatInt(number, 10)
}

// DecodeTitle decodes the body of PATCH /threads/{thread_id}. In the title, each sequence of white space becomes one
// space. The error is an *Invalid.
func DecodeTitle(body json.RawMessage) (title string, _ error) {
	dec := newDecoder("", body)
	for name := range dec.readObject("title") {
		if name != "title" {
			dec.rejectUnknown()
			continue
		}
		errorsBefore := len(dec.errors)
		title = strings.Join(strings.Fields(dec.readText(maxUnbounded)), " ")
		switch {
		case title == "" && len(dec.errors) == errorsBefore:
			dec.addError("must not be blank")
		case len(title) > event.MaxTitle:
			dec.addError(fmt.Sprintf("must not be longer than %d bytes", event.MaxTitle))
		}
	}
	return title, dec.finishBody()
}
