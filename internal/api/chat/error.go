package chat

import "answerd/internal/event"

// Error is an error in OpenAI's shape.
type Error struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

type errorBody struct {
	Error Error `json:"error"`
}

// NewError returns the body of a response with that status. code is one of ours; param is ""
// where no parameter is at fault.
func NewError(status int, code, message, param string) any {
	e := Error{Message: message, Type: errorType(status), Code: code}
	if param != "" {
		e.Param = &param
	}
	return errorBody{e}
}

func errorType(status int) string {
	switch {
	case status == 401:
		return "authentication_error"
	case status == 403:
		return "permission_error"
	case status == 429:
		return "rate_limit_error"
	case status >= 500:
		return "server_error"
	}
	return "invalid_request_error"
}

// tokenExpired returns a stream whose caller's token has ended.
func tokenExpired() Error {
	return Error{Message: "The access token has expired. The run goes on.", Type: "authentication_error", Code: "token_expired"}
}

// runErrorBody returns a run that failed when its stream had begun.
func runErrorBody(b event.RunError) Error {
	return Error{Message: b.Message, Type: "server_error", Code: b.Code}
}
