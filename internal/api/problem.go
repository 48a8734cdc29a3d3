package api

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"answerd/internal/agent"
	"answerd/internal/agent/record"
	"answerd/internal/agent/thread"
	"answerd/internal/agent/usage"
	"answerd/internal/api/agui"
	"answerd/internal/api/aisdk"
	"answerd/internal/api/chat"
	"answerd/internal/api/native"
	"answerd/internal/api/responses"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// problem is a problem document (RFC 9457). Detail is written for the client. The cause of an internal error is only in
// the log, under the same trace id. A handler returns a *problem as its error for what it finds wrong itself.
// problemFor turns errors of other packages into problems, so that those packages need not know HTTP, and no internal
// text reaches a client by accident.
type problem struct {
	Type     string              `json:"type"`
	Title    string              `json:"title"`
	Status   int                 `json:"status"`
	Detail   string              `json:"detail"`
	Instance string              `json:"instance"`
	Code     string              `json:"code"`
	TraceID  string              `json:"trace_id"`
	Errors   []native.FieldError `json:"errors,omitempty"`
	Kind     string              `json:"kind,omitempty"`    // why a tool call failed, as in the event tool_error
	CallID   string              `json:"call_id,omitempty"` // the id of the tool call that failed
	RunID    string              `json:"run_id,omitempty"`  // the active run, if the thread is busy

	header http.Header // additional response headers of this problem
	param  string      // the name of the wrong parameter in an OpenAI format; "" if unknown
	// openAICode is the code of a failed run in the OpenAI formats; "" means that they use Code.
	openAICode string
}

// problemKinds maps every code to its status and its title.
var problemKinds = map[string]struct {
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
	"gone":               {http.StatusGone, "No longer available"},
	"too_large":          {http.StatusRequestEntityTooLarge, "Too large"},
	"unsupported_media":  {http.StatusUnsupportedMediaType, "Unsupported media type"},
	"misdirected":        {http.StatusMisdirectedRequest, "Misdirected request"},
	"unprocessable":      {http.StatusUnprocessableEntity, "Unprocessable"},
	"rate_limited":       {http.StatusTooManyRequests, "Too many requests"},
	"internal":           {http.StatusInternalServerError, "Internal error"},
	"model_error":        {http.StatusBadGateway, "The model failed"},
	"invalid_output":     {http.StatusBadGateway, "The model's answer does not conform to its schema"},
	"model_rate_limited": {http.StatusServiceUnavailable, "The model is rate limited"},
	"tool_error":         {http.StatusBadGateway, "The tool failed"},
	"unavailable":        {http.StatusBadGateway, "MCP server unavailable"},
	"tools_unavailable":  {http.StatusServiceUnavailable, "Tools unavailable"},
	"overloaded":         {http.StatusServiceUnavailable, "Overloaded"},
	"draining":           {http.StatusServiceUnavailable, "Shutting down"},
	"log_unavailable":    {http.StatusServiceUnavailable, "Event log unavailable"},
	"model_timeout":      {http.StatusGatewayTimeout, "The model took too long"},
	"tool_timeout":       {http.StatusGatewayTimeout, "The tool took too long"},

	// Codes of run_error, for callers that wait for the answer.
	"max_turns":          {http.StatusUnprocessableEntity, "Too many turns"},
	"budget_exceeded":    {http.StatusUnprocessableEntity, "Budget exceeded"},
	"upstream_truncated": {http.StatusBadGateway, "The model's answer was cut off"},
	"tool_aborted":       {http.StatusUnprocessableEntity, "Aborted by a hook"},
	"server_shutdown":    {http.StatusServiceUnavailable, "Shutting down"},
}

// newProblem returns a problem with the given code, which must be in problemKinds.
func newProblem(code, detail string) *problem {
	k := problemKinds[code]
	return &problem{
		Type: "urn:answerd:problem:" + code, Title: k.title, Status: k.status, Detail: detail, Code: code,
		header: make(http.Header),
	}
}

// Error implements error, so that a handler can return a problem.
func (p *problem) Error() string { return p.Code + ": " + p.Detail }

// withRetryAfter tells the client to try again after a second, and returns p.
func (p *problem) withRetryAfter() *problem {
	p.header.Set("Retry-After", "1")
	return p
}

// problemFor returns the problem document for err. Only this function maps errors to public texts. If it does not know
// err, the service has a defect: known is false, and the document says nothing about the cause. The caller may change
// p's fields but not its header map. p is a copy even if err is a *problem, because many requests may share one
// (errContextEnded).
func problemFor(err error) (p *problem, known bool) {
	if shared, ok := errors.AsType[*problem](err); ok {
		own := *shared
		return &own, true
	}
	if p := invalidRequestProblem(err); p != nil {
		return p, true
	}
	if failed, ok := errors.AsType[*agent.ToolCallError](err); ok {
		return toolProblem(failed), true
	}
	if refusal, ok := errors.AsType[*agent.Refusal](err); ok {
		return refusalProblem(refusal), true
	}
	if spent, ok := errors.AsType[*usage.SpentError](err); ok {
		return spentProblem(spent), true
	}
	if busy, ok := errors.AsType[*event.BusyError](err); ok {
		p := newProblem("conflict", `A run of this thread is still active: `+busy.Run+`. Wait for its end, answer what it asks, cancel it, `+
			`or ask with on_busy "queue" or "cancel", which is a member of answerd in other formats than the native one.`)
		p.RunID = busy.Run
		return p, true
	}
	if down, ok := errors.AsType[*agent.ToolsUnavailableError](err); ok {
		p := newProblem("tools_unavailable", "The question needs tools of MCP servers that cannot be reached at the moment: "+
			strings.Join(down.Servers, ", ")+". Ask again later; GET /servers says why.")
		p.header.Set("Retry-After", "5") // failed servers are connected again after 1 s to 60 s
		return p, true
	}

	for _, s := range sentinelProblems {
		if !errors.Is(err, s.err) {
			continue
		}
		p := newProblem(s.code, s.detail)
		if p.Status == http.StatusServiceUnavailable {
			p.withRetryAfter()
		}
		if s.code == "draining" {
			p.header.Set("Connection", "close") // so that the next request goes to another process
		}
		return p, true
	}
	return newProblem("internal", "Something went wrong inside the service. Its operator finds the cause in the log, by the trace id."), false
}

// sentinelProblems lists the code and the detail for each sentinel error.
var sentinelProblems = []struct {
	err          error
	code, detail string
}{
	{agent.ErrUnknownInterrupt, "not_found", "The run has no interrupt with this id."},
	{agent.ErrAnswered, "conflict", "This interrupt has been resolved already."},
	{agent.ErrExpired, "gone", "The time to answer this interrupt is over."},
	{agent.ErrDraining, "draining", "The service is shutting down. Try again."},
	{agent.ErrTooManyHops, "unprocessable", fmt.Sprintf("The question has passed through %d agents, which is the limit. The agents probably call each other in a loop.", agent.MaxHops)},
	{agent.ErrForbidden, "forbidden", "The access rules of this service do not allow this."},
	{agent.ErrKeyReused, "unprocessable", "This Idempotency-Key was used with another body."},
	{agent.ErrKeyElsewhere, "unprocessable", "This Idempotency-Key was used for a request to another path."},
	{thread.ErrNoTurn, "not_found", "The thread does not have this turn, or not any more."},
	{agent.ErrUnknownAgent, "not_found", "There is no agent with this id."},
	{thread.ErrNoAgent, "not_found", "The agent that answered last in this thread is not available any more. Name another agent to continue the thread."},
	{agent.ErrUnknownServer, "not_found", "There is no MCP server with this name."},
	{record.ErrNotEnded, "conflict", "The run has not ended. Wait for its end, or cancel it."},
	{event.ErrNotFound, "not_found", "There is no such run."},
	{event.ErrLost, "gone", "The run was lost when the process that executed it ended. Ask again."},
	{event.ErrTooLarge, "too_large", "The request is too large for the event log."},
	{event.ErrGone, "gone", "This part of the run is no longer kept."},
	{event.ErrUnavailable, "log_unavailable", "The event log cannot be reached, or has no space, at the moment. Try again later."},
	{event.ErrStarting, "overloaded", "The run has not been started in time. Repeat the request, with the same Idempotency-Key if it has one."},
	{event.ErrInvalidPosition, "invalid_request", "This is not a position of the run."},
}

// invalidFields is the detail of a problem that lists its fields.
const invalidFields = "The request has invalid fields."

// invalidRequestProblem returns the problem for a request body that cannot be used, or nil if err has another cause.
// The problem lists the wrong fields. For the OpenAI formats it has the name of one parameter instead (param), which
// openAIError writes.
func invalidRequestProblem(err error) *problem {
	if invalid, ok := errors.AsType[*native.Invalid](err); ok {
		p := newProblem("invalid_request", invalidFields)
		p.Errors = invalid.Errors
		return p
	}
	if invalid, ok := errors.AsType[*chat.Invalid](err); ok {
		p := newProblem("invalid_request", invalid.Error())
		p.param = invalid.Param
		return p
	}
	if invalid, ok := errors.AsType[*responses.Invalid](err); ok {
		p := newProblem("invalid_request", invalid.Error())
		p.param = invalid.Param
		return p
	}
	if invalid, ok := errors.AsType[*aisdk.Invalid](err); ok {
		return fieldProblem(jsonPointer(invalid.Field), invalid.Message)
	}
	if invalid, ok := errors.AsType[*agui.Invalid](err); ok {
		return fieldProblem(jsonPointer(invalid.Field), invalid.Message)
	}
	if invalid, ok := errors.AsType[*agent.InvalidError](err); ok {
		return fieldProblem(invalid.Pointer, invalid.Detail)
	}
	if content, ok := errors.AsType[*agent.ContentError](err); ok {
		p := newProblem("unprocessable", "The answer does not fit what was asked for.")
		for _, f := range content.Fields {
			p.Errors = append(p.Errors, native.FieldError{Pointer: f.Pointer, Detail: f.Detail})
		}
		return p
	}
	if tooLarge, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return newProblem("too_large", fmt.Sprintf("The body is larger than %d bytes.", tooLarge.Limit))
	}
	return nil
}

// fieldProblem returns the problem for one wrong field of the body. pointer is the field's JSON pointer.
func fieldProblem(pointer, detail string) *problem {
	p := newProblem("invalid_request", invalidFields)
	p.Errors = []native.FieldError{{Pointer: pointer, Detail: detail}}
	return p
}

// runProblem returns the problem for a run that failed with runErr. A code that problemKinds does not have becomes
// internal: another version of the service may have stored it.
func runProblem(run event.Run, runErr event.RunError) *problem {
	code := runErr.Code
	if _, ok := problemKinds[code]; !ok {
		code = "internal"
	}
	p := newProblem(code, runErr.Message)
	p.Instance = "/runs/" + run.ID
	p.TraceID = run.TraceID
	runErr.Code = code
	p.openAICode = runErr.OpenAICode()
	if p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests {
		p.withRetryAfter()
	}
	for _, f := range runErr.Errors {
		p.Errors = append(p.Errors, native.FieldError(f))
	}
	if runErr.RetryAfter > 0 {
		p.header.Set("Retry-After", strconv.FormatInt(runErr.RetryAfter, 10))
	}
	return p
}

// authProblem returns the problem for a request whose token was refused with err. The problem has a WWW-Authenticate
// challenge (RFC 6750 section 3), in which metadata is the URL of the resource metadata. If tokens cannot be verified
// at present, the problem is 503. An error that the token has not caused is returned unchanged.
func authProblem(err error, metadata string) error {
	status, challenge := auth.Challenge(err, metadata)
	var p *problem
	switch status {
	case http.StatusUnauthorized:
		p = newProblem("unauthenticated", "A valid bearer token is required. Get one from the issuer in the document that the WWW-Authenticate header names as resource_metadata.")
	case http.StatusBadRequest:
		p = newProblem("invalid_request", "The Authorization header must be exactly one bearer token.")
	case http.StatusForbidden:
		p = newProblem("forbidden", "The token lacks the scope that this service requires. The WWW-Authenticate header names it.")
	case http.StatusServiceUnavailable:
		return newProblem("overloaded", "Tokens cannot be verified at the moment. Try again later.").withRetryAfter()
	default:
		return err
	}
	p.header.Set("WWW-Authenticate", challenge)
	return p
}

// writeProblem answers r with the problem for err: in OpenAI's error format below /v1/, and as a problem document
// elsewhere. It logs callers that exceed a limit. It also logs unknown errors, which the client sees only as
// "internal", unless the client has disconnected.
func (h *Handler) writeProblem(w http.ResponseWriter, r *http.Request, err error) {
	p, known := problemFor(err)
	if !known && r.Context().Err() == nil {
		h.Logger.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	}
	h.logRateLimited(r.Context(), p, identity(r))
	p.Instance = h.basePath + cmp.Or(p.Instance, r.URL.EscapedPath())
	p.TraceID = cmp.Or(p.TraceID, h.TraceID(r.Context()))
	for name, values := range p.header {
		w.Header()[name] = values
	}
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		status, body := openAIError(p, r.URL.Path)
		mayRetry := status == http.StatusRequestTimeout || status == http.StatusTooManyRequests || p.header.Get("Retry-After") != ""
		if status < http.StatusInternalServerError && !mayRetry {
			w.Header().Set("X-Should-Retry", "false") // the same request fails in the same way
		}
		writeJSON(w, status, "application/json", body)
		return
	}
	writeJSON(w, p.Status, "application/problem+json", p)
}

// openAIError returns the status and the body of p in OpenAI's format, for a request to path. OpenAI's API has other
// statuses for a model that does not exist (404), a conversation that is too long for the model (400), and a model that
// is rate limited (429). Its errors name one parameter, so the body has only the first of p.Errors. Only the message
// about an invalid output has all of them.
func openAIError(p *problem, path string) (status int, body any) {
	conversation := "input"
	if strings.HasPrefix(path, "/v1/chat/") {
		conversation = "messages"
	}
	status = p.Status
	code, message, param := cmp.Or(p.openAICode, p.Code), p.Detail, p.param
	switch code {
	case event.ModelNotFound:
		status, param = http.StatusNotFound, "model"
	case event.ContextLengthExceeded:
		status, param = http.StatusBadRequest, conversation
	case "model_rate_limited":
		status = http.StatusTooManyRequests
	}
	if len(p.Errors) > 0 && p.Code == "invalid_output" {
		message += " " + (&native.Invalid{Errors: p.Errors}).Error()
	} else if len(p.Errors) > 0 {
		first := p.Errors[0]
		param = openAIParam(first.Pointer, conversation)
		message = strings.TrimPrefix(param+": "+first.Detail, ": ")
		if first.Pointer == "/model" {
			status, code = http.StatusNotFound, event.ModelNotFound
		}
	}
	return status, chat.NewError(status, code, message, param)
}

// openAIParam returns the name that the OpenAI formats use for the native field at pointer. Fields that these formats
// lack are in the member "answerd". conversation is the parameter that holds the question and the history.
func openAIParam(pointer, conversation string) string {
	name := strings.ReplaceAll(strings.TrimPrefix(pointer, "/"), "/", ".")
	field, _, _ := strings.Cut(name, ".")
	switch field {
	case "servers", "tools", "max_turns", "budget", "context", "prompt", "thread_id", "on_busy", "output_schema", "agent":
		return "answerd." + name
	case "question", "history":
		return conversation
	}
	return name
}

// forbidRetry adds X-Should-Retry: false to p, the problem of an ended run, if a retry would call tools again, repeat a
// cancelled run, or fail in the same way. It returns p. OpenAI's clients retry failed requests twice by default, and
// obey this header.
func forbidRetry(p *problem, run event.Run, calledTools bool) *problem {
	end, failed := run.Last.Body.(event.RunError)
	wasCancelled := p.Code == "conflict"
	if calledTools || wasCancelled || failed && !end.Retryable {
		p.header.Set("X-Should-Retry", "false")
	}
	return p
}

// forbidSecondRun keeps OpenAI's clients from retrying a request whose run may continue without its reader, for example
// in another process, because the retry would start a second run. It sets a header unless the request has an
// Idempotency-Key, with which a retry attaches to the first run.
func forbidSecondRun(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Idempotency-Key") == "" {
		w.Header().Set("X-Should-Retry", "false")
	}
}

// endProblem returns the problem for an ended run that failed or was cancelled, or nil if the run has an answer.
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

// toolCodes maps the kind of a failed tool call to a problem code. Only errors that the caller can correct are 4xx. A
// tool that ran and failed is 502, like a model that failed. These problems have no Retry-After, because whether a
// second call is safe depends on the kind.
var toolCodes = map[string]string{
	"unknown_tool":      "not_found",
	"invalid_arguments": "unprocessable",
	"denied":            "forbidden",
	"unavailable":       "unavailable",
	"timeout":           "tool_timeout",
	"cancelled":         "server_shutdown", // the other cause is a caller who has left and reads no response
}

// toolProblem returns the problem for a failed tool call. A kind that toolCodes does not list is a failure of the tool
// or its server.
func toolProblem(callErr *agent.ToolCallError) *problem {
	code, ok := toolCodes[callErr.Kind]
	if !ok {
		code = "tool_error"
	}
	p := newProblem(code, callErr.Payload)
	if len(callErr.Errors) > 0 {
		p.Detail = "The arguments do not match the tool's input schema."
	}
	for _, f := range callErr.Errors {
		p.Errors = append(p.Errors, native.FieldError{Pointer: "/args" + f.Pointer, Detail: f.Detail})
	}
	p.Kind, p.CallID = callErr.Kind, callErr.CallID
	return p
}

// jsonPointer returns a field path such as messages[2].parts as a JSON pointer (RFC 6901), here /messages/2/parts.
func jsonPointer(field string) string {
	if field == "" {
		return ""
	}
	return "/" + strings.NewReplacer("[", "/", "]", "", ".", "/").Replace(field)
}
