package mcp

import (
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/session"
)

// These are the notifications and requests that a server sends during a call, as the functions in Call receive them.
type (
	Progress          = session.Progress          // one progress notification
	LogMessage        = session.LogMessage        // one log message
	Elicitation       = session.Elicitation       // a server's question to the user
	ElicitationResult = session.ElicitationResult // the user's answer
	Resumption        = session.Resumption        // the user's answers to the questions of a suspended call
	Sampling          = session.Sampling          // a server's request to a language model
	SamplingMessage   = session.SamplingMessage   // one message of a Sampling
	Sample            = session.Sample            // the model's answer
	ContentError      = session.ContentError      // an answer does not fit the form of an Elicitation
	ContentField      = session.ContentField      // a problem with one field of a form, or of a call's arguments
)

// The modes of an Elicitation and the actions of its result.
const (
	ElicitForm = session.ElicitForm
	ElicitURL  = session.ElicitURL

	Accept  = session.Accept
	Decline = session.Decline
	Cancel  = session.Cancel // dismissed, or not answered in time
)

// ErrRefused is returned by Call.Sample for a request that it refuses, for example because of the run's budget.
var ErrRefused = session.ErrRefused

// Elicitations returns the questions of a suspended call to the user, by the key of each request. It returns an error
// only if required does not come from a Result of Call.
func Elicitations(required *content.InputRequired) (map[string]Elicitation, error) {
	return session.Elicitations(required)
}
