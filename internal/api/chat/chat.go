// Package chat implements the API format of OpenAI's Chat Completions: it decodes a request to an
// agent.Request, and encodes the events of a run as chunks or as one completion.
//
//	q, err := chat.Decode(body)             // *chat.Invalid names the parameter
//	// stream: true
//	enc := chat.NewEncoder(chat.Header{ID: run.ID, Model: q.Model, Created: run.Created}, q.IncludeUsage)
//	frames := enc.Encode(e)                 // for every event of the run, from the first
//	// otherwise
//	c := chat.NewCollector(head)
//	c.Add(e)                                // for every event of the run
//	body := c.Completion()
//
// The format has neither tools that the server executes nor questions to a person. So the agent's own tool calls are
// encoded as reasoning_content, which chat UIs show as thinking and the openai client ignores; as tool_calls they would
// make clients look for a tool of their own. The agent declines calls that need a person. Calls of tools that the
// caller declares end the answer with finish_reason tool_calls, and their results arrive with the next request.
//
// Encoder and Collector depend only on the events that they got, so two readers of one run get the
// same chunks. They are not safe for concurrent use.
package chat

import (
	"strings"
	"time"
)

// Header has the members with which every chunk and completion begins.
type Header struct {
	ID      string // the run's id
	Model   string // the request's model, or the service's default if it named none
	Created time.Time
}

// Bounds of a request, in items, below the bound of the whole body.
const (
	maxMessages = 1024
	maxMedia    = 32 // images, sounds and files of one message
	maxStops    = 16 // strings of stop
)

// Invalid is the error for a request that cannot be used. The API sends its fields as error.param and error.message.
type Invalid struct {
	Param   string // the parameter, such as messages[2].content; "" if the error is about the body as a whole
	Message string // written for the client
}

// Error returns the parameter, if known, and the message.
func (e *Invalid) Error() string { return strings.TrimPrefix(e.Param+": "+e.Message, ": ") }
