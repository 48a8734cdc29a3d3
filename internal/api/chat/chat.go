// Package chat is the Chat Completions face: OpenAI's request to an agent.Request, the
// run's events to its chunks, a run that has ended to its completion.
//
//	q, err := chat.Decode(body)             // *chat.Invalid names the parameter
//	// stream: true
//	enc := chat.NewEncoder(chat.Header{ID: run.ID, Model: q.Model, Created: run.Created}, q.IncludeUsage)
//	frames := enc.Encode(e)                 // for every event of the run, from the first
//	// else
//	c := chat.NewCollector(head)
//	c.Add(e)                                // for every event of the run
//	body := c.Completion()
//
// The format knows neither tools that the server runs nor questions to a person. So the
// agent's own tool calls are told as reasoning_content, which chat UIs show as thinking
// and the openai client ignores: as tool_calls they would make clients look for a tool
// of theirs. What would need a person is declined. Tools that the caller declares are
// his: their calls end the answer with finish_reason tool_calls, and their results come
// with the next request.
package chat

import (
	"strings"
	"time"
)

// Header is what every chunk and completion begins with.
type Header struct {
	ID      string // of the run
	Model   string // as the request named it
	Created time.Time
}

// Request bounds, in items and bytes, below the bound of the whole body.
const (
	maxMessages = 1024
	maxMedia    = 32
	maxStops    = 16
)

// Invalid is a request that cannot be run as it stands.
type Invalid struct {
	Param   string // the parameter, such as messages[2].content
	Message string // for the caller
}

func (e *Invalid) Error() string { return strings.TrimPrefix(e.Param+": "+e.Message, ": ") }
