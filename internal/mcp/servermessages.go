package mcp

import (
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/session"
)

// The notifications and requests that a server sends during a call, as the fields of Call receive them.
type (
	// Progress is one progress notification.
	Progress = session.Progress
	// LogMessage is one log message.
	LogMessage = session.LogMessage
	// Elicitation is a question to the person behind a call.
	Elicitation = session.Elicitation
	// ElicitationResult is the person's answer.
	ElicitationResult = session.ElicitationResult
	// Resumption has the person's answers to what a suspended call required.
	Resumption = session.Resumption
	// Sampling is a request to a language model.
	Sampling = session.Sampling
	// SamplingMessage is one message of a Sampling.
	SamplingMessage = session.SamplingMessage
	// Sample is the model's answer.
	Sample = session.Sample
	// ContentError is content that does not fit the form of an Elicitation.
	ContentError = session.ContentError
	// ContentField is a problem with one field of a form, or of a call's arguments.
	ContentField = session.ContentField
)

// The modes of an Elicitation and the actions of its result.
const (
	ElicitForm = session.ElicitForm
	ElicitURL  = session.ElicitURL

	Accept  = session.Accept
	Decline = session.Decline
	Cancel  = session.Cancel // dismissed, or not answered in time
)

// ErrRefused is what Call.Sample returns for a request that it refuses, such as one beyond the budget of the run.
var ErrRefused = session.ErrRefused

// Elicitations returns what a suspended call asks the person, by the key of the request. It returns an error only if
// in does not come from a Result of Call.
func Elicitations(in *content.InputRequired) (map[string]Elicitation, error) {
	return session.Elicitations(in)
}
