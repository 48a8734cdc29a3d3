package mcp

import (
	"answerd/internal/mcp/content"
	"answerd/internal/mcp/session"
)

// These are the notifications and requests that a server sends during a call, as the functions in Call receive them.
type (
	// Progress is one progress notification.
	Progress = session.Progress
	// LogMessage is one log message.
	LogMessage = session.LogMessage
	// Elicitation is a server's question to the user.
	Elicitation = session.Elicitation
	// ElicitationResult is the user's answer.
	ElicitationResult = session.ElicitationResult
	// Resumption has the user's answers to the questions of a suspended call.
	Resumption = session.Resumption
	// Sampling is a server's request to a language model.
	Sampling = session.Sampling
	// SamplingMessage is one message of a Sampling.
	SamplingMessage = session.SamplingMessage
	// Sample is the model's answer.
	Sample = session.Sample
	// ContentError says that an answer does not fit the form of an Elicitation.
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

// ErrRefused is returned by Call.Sample for a request that it refuses, for example because of the run's budget.
var ErrRefused = session.ErrRefused

// Elicitations returns the questions of a suspended call to the user, by the key of each request. It returns an error
// only if required does not come from a Result of Call.
func Elicitations(required *content.InputRequired) (map[string]Elicitation, error) {
	return session.Elicitations(required)
}
