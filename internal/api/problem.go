package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/api/agui"
	"answerd/internal/api/aisdk"
	"answerd/internal/api/chat"
	"answerd/internal/api/native"
	"answerd/internal/api/responses"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// problem is an RFC 9457 problem document. Detail is written for the caller; the
// cause is in the log under the same trace id.
type problem struct {
	Type     string              `json:"type"`
	Title    string              `json:"title"`
	Status   int                 `json:"status"`
	Detail   string              `json:"detail"`
	Instance string              `json:"instance"`
	Code     string              `json:"code"`
	TraceID  string              `json:"trace_id"`
	Errors   []native.FieldError `json:"errors,omitempty"`
	Kind     string              `json:"kind,omitempty"`    // of a failed tool call
	CallID   string              `json:"call_id,omitempty"` // and its id, as in the log

	header http.Header // what the answer carries besides
	param  string      // what is wrong, as the format of the request names it
}

// kinds is what every code means: its status and its title.
var kinds = map[string]struct {
	status int
	title  string
}{
	"invalid_request":    {http.StatusBadRequest, "Invalid request"},
	"unauthenticated":    {http.StatusUnauthorized, "Not authenticated"},
	"forbidden":          {http.StatusForbidden, "Forbidden"},
	"not_found":          {http.StatusNotFound, "Not found"},
	"method_not_allowed": {http.StatusMethodNotAllowed, "Method not allowed"},
	"not_acceptable":     {http.StatusNotAcceptable, "Not acceptable"},
	"timeout":            {http.StatusRequestTimeout, "Request took too long to arrive"},
	"conflict":           {http.StatusConflict, "Conflict"},
	"gone":               {http.StatusGone, "No longer kept"},
	"too_large":          {http.StatusRequestEntityTooLarge, "Too large"},
	"unsupported_media":  {http.StatusUnsupportedMediaType, "Unsupported media type"},
	"misdirected":        {http.StatusMisdirectedRequest, "Misdirected request"},
	"unprocessable":      {http.StatusUnprocessableEntity, "Unprocessable"},
	"rate_limited":       {http.StatusTooManyRequests, "Too many requests"},
	"internal":           {http.StatusInternalServerError, "Internal error"},
	"model_error":        {http.StatusBadGateway, "The model failed"},
	"tool_error":         {http.StatusBadGateway, "The tool failed"},
	"unavailable":        {http.StatusBadGateway, "MCP server unavailable"},
	"overloaded":         {http.StatusServiceUnavailable, "Overloaded"},
	"draining":           {http.StatusServiceUnavailable, "Shutting down"},
	"model_timeout":      {http.StatusGatewayTimeout, "The model took too long"},
	"tool_timeout":       {http.StatusGatewayTimeout, "The tool took too long"},

	// The ends of a run, where its caller waited for an answer.
	"max_turns":          {http.StatusUnprocessableEntity, "Too many turns"},
	"budget_exceeded":    {http.StatusUnprocessableEntity, "Budget exceeded"},
	"upstream_truncated": {http.StatusBadGateway, "The model's answer was cut off"},
	"tool_aborted":       {http.StatusUnprocessableEntity, "Aborted by a hook"},
	"server_shutdown":    {http.StatusServiceUnavailable, "Shutting down"},
}

func newProblem(code, detail string) *problem {
	k := kinds[code]
	return &problem{
		Type: "urn:answerd:problem:" + code, Title: k.title, Status: k.status, Detail: detail, Code: code,
		header: make(http.Header),
	}
}

// Error makes a problem an error that a handler can return as it is.
func (p *problem) Error() string { return p.Code + ": " + p.Detail }

func (p *problem) retryAfter() *problem {
	p.header.Set("Retry-After", "1")
	return p
}

// problemOf is the one place that turns an error into what the caller is told. What
// it doesn't know is a fault of ours: known is false, and the caller learns nothing.
func problemOf(err error) (p *problem, known bool) {
	var (
		ready    *problem
		bad      *native.Invalid
		badChat  *chat.Invalid
		badResp  *responses.Invalid
		badUI    *aisdk.Invalid
		badAGUI  *agui.Invalid
		refused  *agent.InvalidError
		misfit   *agent.ContentError
		call     *agent.ToolCallError
		noPlace  *agent.Refusal
		tooLarge *http.MaxBytesError
	)
	switch {
	case errors.As(err, &ready):
		return ready, true
	case errors.As(err, &bad):
		p = newProblem("invalid_request", "The request has fields that cannot be used.")
		p.Errors = bad.Errors
	case errors.As(err, &badChat):
		p = newProblem("invalid_request", badChat.Error())
		p.param = badChat.Param
	case errors.As(err, &badResp):
		p = newProblem("invalid_request", badResp.Error())
		p.param = badResp.Param
	case errors.As(err, &badUI):
		p = badField(badUI.Field, badUI.Message)
	case errors.As(err, &badAGUI):
		p = badField(badAGUI.Field, badAGUI.Message)
	case errors.As(err, &refused):
		p = newProblem("invalid_request", "The request has fields that cannot be used.")
		p.Errors = []native.FieldError{{Pointer: refused.Pointer, Detail: refused.Detail}}
	case errors.As(err, &misfit):
		p = newProblem("unprocessable", "The answer does not fit what was asked for.")
		for _, f := range misfit.Fields {
			p.Errors = append(p.Errors, native.FieldError{Pointer: f.Pointer, Detail: f.Detail})
		}
	case errors.Is(err, agent.ErrUnknownInterrupt):
		p = newProblem("not_found", "The run asks nothing of this id.")
	case errors.Is(err, agent.ErrAnswered):
		p = newProblem("conflict", "This was answered, or is not asked any more.")
	case errors.Is(err, agent.ErrExpired):
		p = newProblem("gone", "The time to answer this is over.")
	case errors.As(err, &call):
		p = toolProblem(call)
	case errors.As(err, &tooLarge):
		p = newProblem("too_large", fmt.Sprintf("The body is larger than %d bytes.", tooLarge.Limit))
	case errors.Is(err, agent.ErrDraining):
		p = newProblem("draining", "The service is shutting down.").retryAfter()
		p.header.Set("Connection", "close")
	case errors.Is(err, agent.ErrTooManyHops):
		p = newProblem("unprocessable", fmt.Sprintf("The question has come through %d agents already, which is where it ends: they seem to ask each other in a circle.", agent.MaxHops))
	case errors.As(err, &noPlace):
		p = placeProblem(noPlace)
	case errors.Is(err, agent.ErrForbidden):
		p = newProblem("forbidden", "The rules of this service do not let you do this.")
	case errors.Is(err, agent.ErrKeyReused):
		p = newProblem("unprocessable", "This Idempotency-Key was used with another body.")
	case errors.Is(err, agent.ErrUnknownServer):
		p = newProblem("not_found", "There is no MCP server of this name.")
	case errors.Is(err, event.ErrNotFound):
		p = newProblem("not_found", "There is no such run.")
	case errors.Is(err, event.ErrLost):
		p = newProblem("gone", "The process that had this run has ended, and the run with it.")
	case errors.Is(err, event.ErrTooLarge):
		p = newProblem("too_large", "The request is too large to be kept.")
	case errors.Is(err, event.ErrGone):
		p = newProblem("gone", "This part of the run is no longer kept.")
	case errors.Is(err, event.ErrUnavailable):
		p = newProblem("overloaded", "The event log cannot be reached at the moment.").retryAfter()
	case errors.Is(err, event.ErrInvalidPosition):
		p = newProblem("invalid_request", "This is not a position of the run.")
	default:
		return newProblem("internal", "Something went wrong inside the service."), false
	}
	return p, true
}

// badField is what is wrong with a field, as a face names it.
func badField(field, detail string) *problem {
	p := newProblem("invalid_request", "The request has fields that cannot be used.")
	p.Errors = []native.FieldError{{Pointer: pointerOf(field), Detail: detail}}
	return p
}

// runProblem is the problem of a run that failed.
func runProblem(run event.Run, e event.RunError) *problem {
	code := e.Code
	if _, ok := kinds[code]; !ok {
		code = "internal"
	}
	p := newProblem(code, e.Message)
	p.Instance, p.TraceID = "/runs/"+run.ID, run.TraceID
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		p.retryAfter()
	}
	return p
}

// authProblem is the answer to a request that did not authenticate (RFC 6750
// section 3).
func authProblem(err error, metadata string) error {
	status, challenge := auth.Challenge(err, metadata)
	var p *problem
	switch status {
	case http.StatusUnauthorized:
		p = newProblem("unauthenticated", "A valid bearer token is required.")
	case http.StatusBadRequest:
		p = newProblem("invalid_request", "The Authorization header is not one bearer token.")
	case http.StatusForbidden:
		p = newProblem("forbidden", "The token lacks the scope that this service requires.")
	case http.StatusServiceUnavailable:
		return newProblem("overloaded", "Tokens cannot be verified at the moment.").retryAfter()
	default:
		return err
	}
	p.header.Set("WWW-Authenticate", challenge)
	return p
}

// writeProblem answers r with what err means, and logs what only we may know.
func (h *Handler) writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p, known := problemOf(err)
	if !known {
		h.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	p.Instance = cmp.Or(p.Instance, r.URL.EscapedPath())
	p.TraceID = cmp.Or(p.TraceID, h.TraceID(r.Context()))
	for name, values := range p.header {
		w.Header()[name] = values
	}
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		status, body := openAIError(p, r.URL.Path)
		writeJSON(w, status, "application/json", body)
		return
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

// openAIError is a problem as the OpenAI faces tell it. A model that there is not is 404
// there.
func openAIError(p *problem, path string) (status int, body any) {
	conversation := "input"
	if strings.HasPrefix(path, "/v1/chat/") {
		conversation = "messages"
	}
	status, code, message, param := p.Status, p.Code, p.Detail, p.param
	if len(p.Errors) > 0 {
		first := p.Errors[0]
		param = openAIParam(first.Pointer, conversation)
		message = strings.TrimPrefix(param+": "+first.Detail, ": ")
		if first.Pointer == "/model" {
			status, code = http.StatusNotFound, "model_not_found"
		}
	}
	return status, chat.NewError(status, code, message, param)
}

// openAIParam is a field of ours by the name under which the OpenAI formats have it;
// conversation is that of the question and the history.
func openAIParam(pointer, conversation string) string {
	name := strings.ReplaceAll(strings.TrimPrefix(pointer, "/"), "/", ".")
	field, _, _ := strings.Cut(name, ".")
	switch field {
	case "servers", "tools", "max_turns", "budget", "context", "prompt", "thread_id":
		return "answerd." + name
	case "question", "history":
		return conversation
	}
	return name
}

// onceOnly tells OpenAI's clients, which repeat what failed twice by themselves, not to
// where that would act twice, or undo that somebody stopped the run.
func onceOnly(p *problem, acted bool) *problem {
	if acted || p.Code == "conflict" {
		p.header.Set("X-Should-Retry", "false")
	}
	return p
}

// endProblem is why a run that has ended has no answer; nil if it has one.
func endProblem(run event.Run) *problem {
	switch end := run.Last.Body.(type) {
	case event.FinalAnswer:
		return nil
	case event.RunError:
		return runProblem(run, end)
	}
	p := newProblem("conflict", "The run was cancelled.")
	p.Instance = "/runs/" + run.ID
	return p
}

// toolCodes is what each kind of a failed call means to a caller over HTTP. Only what
// the caller can mend is 4xx. A tool that ran and reports failure is 502, as a model
// that fails is. None comes with Retry-After: whether a call may be sent again, the
// caller must judge by its kind.
var toolCodes = map[string]string{
	"unknown_tool":      "not_found",
	"invalid_arguments": "unprocessable",
	"denied":            "forbidden",
	"unavailable":       "unavailable",
	"timeout":           "tool_timeout",
	"cancelled":         "server_shutdown", // the other cause is a caller that left
}

// toolProblem is the problem of a call that failed. What toolCodes doesn't list is
// the tool's or its server's failure.
func toolProblem(e *agent.ToolCallError) *problem {
	code, ok := toolCodes[e.Kind]
	if !ok {
		code = "tool_error"
	}
	p := newProblem(code, e.Payload)
	if len(e.Errors) > 0 {
		p.Detail = "The arguments do not fit the tool's input schema."
	}
	for _, f := range e.Errors {
		p.Errors = append(p.Errors, native.FieldError{Pointer: "/args" + f.Pointer, Detail: f.Detail})
	}
	p.Kind, p.CallID = e.Kind, e.CallID
	return p
}

// pointerOf is a field such as messages[2].parts as a JSON pointer.
func pointerOf(field string) string {
	if field == "" {
		return ""
	}
	return "/" + strings.NewReplacer("[", "/", "]", "", ".", "/").Replace(field)
}
