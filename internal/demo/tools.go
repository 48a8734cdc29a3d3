package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// summary is a member of every structured result that sums it up in one sentence, for hosts that give the model only
// the structured content.
type summary struct {
	Summary string `json:"summary" jsonschema:"the result in one sentence"`
}

// text returns the sentence. It is also the text content of the tool result.
func (s summary) text() string { return s.Summary }

// newTool returns the definition of a tool that is read-only and uses nothing outside of this process. schema is the
// JSON Schema of the arguments.
func newTool(name, title, description, schema string) *sdk.Tool {
	return &sdk.Tool{
		Name: name, Title: title, Description: description, InputSchema: json.RawMessage(schema),
		Annotations: &sdk.ToolAnnotations{ReadOnlyHint: true, IdempotentHint: true, DestructiveHint: new(false), OpenWorldHint: new(false)},
	}
}

// noProperties is the schema of tools without arguments.
const noProperties = `{"type":"object","properties":{},"required":[],"additionalProperties":false}`

// addTool adds a tool that uses the type T for both its arguments and its structured result. call gets a T with the
// arguments and sets the fields of the result in it. The text of the result is T's summary. If call returns an error,
// the tool result has isError.
func addTool[T interface{ text() string }](s *sdk.Server, t *sdk.Tool, call func(context.Context, *sdk.CallToolRequest, *T) error) {
	sdk.AddTool(s, t, func(ctx context.Context, req *sdk.CallToolRequest, out T) (*sdk.CallToolResult, T, error) {
		err := call(ctx, req, &out)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: out.text()}}}, out, err
	})
}

// addTools adds all tools except connect_calendar, which also needs a page (addCalendar).
func addTools(server *sdk.Server) {
	addTool(server, newTool("current_time", "Current time",
		"Tells the current date and time in a time zone. Use it for questions about what time, hour, day or date it is now or today, anywhere in the world.",
		`{"type":"object","properties":{"time_zone":{"type":"string","description":"IANA time zone, such as Europe/Rome, Asia/Tokyo or UTC. Not a city's name alone.",
		"minLength":1,"maxLength":64,"default":"UTC"}},"required":[],"additionalProperties":false}`), readClock)
	addTool(server, newTool("calculate", "Calculator",
		"Computes an arithmetic expression exactly as written. Use it for any sum, difference, product or quotient of numbers.",
		`{"type":"object","properties":{"expression":{"type":"string","description":"Arithmetic expression of numbers, + - * / and brackets, such as (12.5 + 3) * 8",
		"minLength":1,"maxLength":200}},"required":["expression"],"additionalProperties":false}`), calculate)
	addTool(server, newTool("convert", "Units and currencies",
		"Converts a value between units of length, mass or temperature, or between currencies. Currency rates are made-up samples from a built-in table, not live.",
		`{"type":"object","properties":{
		"value":{"type":"number","description":"The amount to convert","minimum":-1e15,"maximum":1e15},
		"from":{"type":"string","description":"Unit or ISO 4217 currency of the value, such as mi, kg, °F or EUR","minLength":1,"maxLength":32},
		"to":{"type":"string","description":"Unit or ISO 4217 currency to convert to, such as km, lb, °C or USD","minLength":1,"maxLength":32}},
		"required":["value","from","to"],"additionalProperties":false}`), convertUnits)
	addTool(server, newTool("search_docs", "Search answerd's documentation",
		"Finds the entry that fits best in the documentation of answerd, this agent backend: events, streams, errors, MCP servers, tokens, approval, tracing, settings, limits, API formats, the demo.",
		`{"type":"object","properties":{"query":{"type":"string","description":"What to look for: a question or a few keywords",
		"minLength":1,"maxLength":300}},"required":["query"],"additionalProperties":false}`), searchDocs)
	addTool(server, newTool("slow_report", "Slow report",
		"Writes a short made-up report about a topic, slowly and in steps. It reports progress after each step and stops when it is cancelled.",
		`{"type":"object","properties":{
		"topic":{"type":"string","description":"What the report is about","minLength":1,"maxLength":100},
		"steps":{"type":"integer","description":"How many steps it takes","minimum":1,"maximum":10,"default":5},
		"step_ms":{"type":"integer","description":"How long one step takes, in milliseconds","minimum":0,"maximum":2000,"default":300}},
		"required":["topic"],"additionalProperties":false}`), writeReport)
	// The error becomes a tool result with isError (MCP, server/tools, "Error Handling").
	addTool(server, newTool("flaky_service", "Flaky service", "Calls a service that is down and always fails, to show what happens on a failure or error.", noProperties),
		func(context.Context, *sdk.CallToolRequest, *summary) error {
			return errors.New("the flaky service failed, as it always does: this is a simulated outage, so trying again will not help")
		})
	addNotes(server)
	addBooking(server)
}

// clockReading is the result of current_time.
type clockReading struct {
	TimeZone  string `json:"time_zone" jsonschema:"the IANA time zone"`
	Time      string `json:"time" jsonschema:"date and time as RFC 3339 with the zone's offset"`
	Date      string `json:"date" jsonschema:"the date, YYYY-MM-DD"`
	Weekday   string `json:"weekday"`
	UTCOffset string `json:"utc_offset" jsonschema:"hours and minutes ahead of UTC"`
	summary
}

// readClock sets the other fields of r to the current time in r.TimeZone. It returns an error for an unknown time zone.
// "" and "Local" are errors too, because time.LoadLocation would return UTC and the time zone of this process.
func readClock(_ context.Context, _ *sdk.CallToolRequest, r *clockReading) error {
	location, err := time.LoadLocation(r.TimeZone)
	if err != nil || r.TimeZone == "" || r.TimeZone == "Local" {
		return fmt.Errorf("there is no time zone %q: use an IANA name such as Europe/Rome, America/New_York or UTC", r.TimeZone)
	}
	now := time.Now().In(location)
	r.Time, r.Date, r.Weekday = now.Format(time.RFC3339), now.Format(time.DateOnly), now.Weekday().String()
	r.UTCOffset = now.Format("-07:00")
	r.Summary = fmt.Sprintf("It is %s in %s (UTC%s).", now.Format("15:04:05 on Monday, 2 January 2006"), r.TimeZone, r.UTCOffset)
	return nil
}

// report is the result of slow_report.
type report struct {
	Topic  string `json:"topic"`
	Steps  int    `json:"steps"`
	StepMS int    `json:"step_ms"`
	summary
}

// reportSteps has the progress messages of slow_report, one for each step that its schema allows.
var reportSteps = []string{
	"gathering sources", "reading them", "taking notes", "comparing figures", "looking for gaps",
	"drafting", "checking the draft", "shortening it", "adding a title", "reading it once more",
}

// writeReport waits r.StepMS for each of r.Steps steps and then sets the summary. After each step it sends a progress
// notification if the request has a progress token. It returns an error if ctx ends first.
func writeReport(ctx context.Context, req *sdk.CallToolRequest, r *report) error {
	progress := sdk.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Total: float64(r.Steps)}
	for i := range r.Steps {
		select {
		case <-time.After(time.Duration(r.StepMS) * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the report was stopped after %d of %d steps: %w", i, r.Steps, context.Cause(ctx))
		}
		progress.Progress = float64(i + 1)
		progress.Message = reportSteps[i]
		if progress.ProgressToken != nil {
			_ = req.Session.NotifyProgress(ctx, &progress) // fails if the client has disconnected, which also ends ctx
		}
	}
	r.Summary = fmt.Sprintf("Report about %s: after %d careful steps there is nothing to report, because this report is a demonstration of progress.", r.Topic, r.Steps)
	return nil
}

// note is a note of list_notes and delete_note. The id of a deleted note is not reused.
type note struct {
	ID    int    `json:"id"`
	Title string `json:"title"`
}

// noteList is the result of list_notes.
type noteList struct {
	Notes []note `json:"notes"`
	summary
}

// deletion holds the argument of delete_note, the note's id, and the result, the deleted note.
type deletion struct {
	note
	summary
}

// addNotes adds list_notes and delete_note. All sessions share the notes, which are only in memory, so a restart
// restores deleted ones.
func addNotes(server *sdk.Server) {
	var mu sync.Mutex // protects notes
	notes := []note{
		{1, "Buy oat milk"}, {2, "Call the plumber about the tap"}, {3, "Ideas for the team's autumn trip"},
		{4, "Return the library books"}, {5, "Water the plants on Sunday"},
	}
	addTool(server, newTool("list_notes", "List notes", "Lists all notes with their ids.", noProperties),
		func(_ context.Context, _ *sdk.CallToolRequest, l *noteList) error {
			mu.Lock()
			defer mu.Unlock()
			l.Notes = append([]note{}, notes...) // never nil, because the output schema requires an array
			l.Summary = fmt.Sprintf("There are %d notes.", len(notes))
			for _, n := range notes {
				l.Summary += fmt.Sprintf(" %d: %s.", n.ID, n.Title)
			}
			return nil
		})
	remove := newTool("delete_note", "Delete a note", "Deletes one note for good. Use it only when the user asks to delete or remove a note.",
		`{"type":"object","properties":{"id":{"type":"integer","description":"Id of the note, as list_notes gives it",
		"minimum":1,"maximum":1000000}},"required":["id"],"additionalProperties":false}`)
	remove.Annotations = &sdk.ToolAnnotations{DestructiveHint: new(true), OpenWorldHint: new(false)}
	addTool(server, remove, func(_ context.Context, _ *sdk.CallToolRequest, d *deletion) error {
		mu.Lock()
		defer mu.Unlock()
		i := slices.IndexFunc(notes, func(n note) bool { return n.ID == d.ID })
		if i < 0 {
			return fmt.Errorf("there is no note %d: list_notes tells which there are", d.ID)
		}
		d.note = notes[i]
		notes = slices.Delete(notes, i, i+1)
		d.Summary = fmt.Sprintf("Note %d, %q, is deleted.", d.ID, d.Title)
		return nil
	})
}

// unit is a unit of measure or a currency. The value x in this unit is x*factor+offset in the base unit of its kind.
// The factors of currencies are samples, not real rates.
type unit struct {
	kind           string // what the unit measures
	factor, offset float64
	names          []string // the symbol first
}

// units lists all units, grouped by kind.
var units = []unit{
	{"length", 1, 0, []string{"m", "metre", "metres", "meter", "meters"}},
	{"length", 1000, 0, []string{"km", "kilometre", "kilometres", "kilometer", "kilometers"}},
	{"length", 1609.344, 0, []string{"mi", "mile", "miles"}},
	{"length", 0.3048, 0, []string{"ft", "foot", "feet"}},
	{"mass", 1, 0, []string{"kg", "kilogram", "kilograms", "kilo", "kilos"}},
	{"mass", 0.45359237, 0, []string{"lb", "lbs", "pound", "pounds"}},
	{"temperature", 1, 0, []string{"°C", "C", "celsius"}},
	{"temperature", 5.0 / 9, -160.0 / 9, []string{"°F", "F", "fahrenheit"}},
	{"currency", 1, 0, []string{"EUR", "euro", "euros", "€"}},
	{"currency", 0.86, 0, []string{"USD", "dollar", "dollars", "$"}},
	{"currency", 1.14, 0, []string{"GBP", "pound", "pounds", "£"}},
}

// hasName reports whether name is one of u's names in any case.
func (u unit) hasName(name string) bool {
	return slices.ContainsFunc(u.names, func(n string) bool { return strings.EqualFold(n, name) })
}

// findUnits returns the units with the names fromName and toName, which must be of the same kind. It searches for a
// pair, because one name can stand for several kinds: a pound is a mass or a currency. The error means that no such
// pair exists.
func findUnits(fromName, toName string) (from, to unit, err error) {
	for _, from := range units {
		for _, to := range units {
			if from.kind == to.kind && from.hasName(fromName) && to.hasName(toName) {
				return from, to, nil
			}
		}
	}
	return unit{}, unit{}, fmt.Errorf("there is no way from %q to %q among the units and currencies here", fromName, toName)
}

// conversion holds the arguments of convert, Value, From and To, and the tool's result.
type conversion struct {
	Value  float64 `json:"value"`
	From   string  `json:"from" jsonschema:"symbol of the unit"`
	To     string  `json:"to" jsonschema:"symbol of the unit"`
	Kind   string  `json:"kind" jsonschema:"what the units measure"`
	Result float64 `json:"result" jsonschema:"rounded to 12 significant digits; money to cents"`
	summary
}

// convertUnits sets the result of c, and replaces the names of both units with their symbols.
func convertUnits(_ context.Context, _ *sdk.CallToolRequest, c *conversion) error {
	from, to, err := findUnits(c.From, c.To)
	if err != nil {
		return err
	}
	converted := (c.Value*from.factor + from.offset - to.offset) / to.factor
	note := ""
	if from.kind == "currency" {
		converted = math.Round(converted*100) / 100 // cents
		note = " (at sample rates, not live)"
	}
	result, text := roundResult(converted)
	c.From, c.To = from.names[0], to.names[0]
	c.Kind = from.kind
	c.Result = result
	c.Summary = fmt.Sprintf("%v %s is %s %s%s.", c.Value, c.From, text, c.To, note)
	return nil
}

// docEntries is the documentation that search_docs searches.
var docEntries = []struct{ title, text string }{
	{"What answerd is", "answerd is an agent backend in one binary. You ask a question over HTTP; it lets a language model answer with the tools of your MCP servers and tells you everything that happens on the way as typed events."},
	{"Events", "A run is a sequence of typed events: start, step_start and step_end around each model call, text and reasoning deltas, tool_call_start, tool_call_args, tool_call, tool_progress, one tool_result or tool_error per call, and one terminal event: final_answer, run_error or cancelled. Every event carries type, run_id, seq without a gap, and ts in milliseconds."},
	{"Resume", "A run does not belong to the connection that started it. After a disconnect send Last-Event-ID to the same stream, POST included, and it continues after that event; the question never runs twice. GET /runs/{run_id}/events replays from the start or after a position. A position no longer kept is 410, a caught-up reader of a finished run gets 204."},
	{"Errors", "Errors are problem+json of RFC 9457 with a code such as invalid_request 400, unauthenticated 401, not_found 404, gone 410, too_large 413, rate_limited 429, model_error 502, overloaded 503 or model_timeout 504, and the trace_id. A bad body never starts a run. Causes, tokens and session ids stay in the log."},
	{"MCP servers and mcp.json", "MCP_URL names one server, MCP_CONFIG_PATH a file in the shape people know: mcpServers with type, url and headers, or command and args, plus toolPrefix, timeout, auth, approval and others. Types are http, stdio and websocket. A server that is down keeps nothing else from working: it is reported, retried with backoff, and its tools are absent until it is back."},
	{"Tokens, JWT and IAM", "With ENABLE_JWT_TOKEN answerd fetches a JWT from the IAM at IAM_BASE_URL by client credentials with IAM_CLIENT_ID, IAM_CLIENT_SECRET or SECRET_OCID, and SCOPE. The token is cached until shortly before it expires, refreshed by one request however many wait, sent as a bearer to MCP servers, and never logged."},
	{"Approval by a person", "Tools can need approval: never, destructive or always, per server. The run then stops with approval_required and suspended; POST /runs/{run_id}/input with the interrupt's id and approved true or false continues it. MCP elicitation works the same way with action accept, decline or cancel."},
	{"Tracing and metrics", "ENABLE_TRACING exports OpenTelemetry traces by OTLP, to OCI APM with OCI_APM_TRACES_URL and OCI_APM_DATA_KEY. Spans tool_calling_loop, llm_invoke and tool_call nest under the request, and every answer carries its trace_id. GET /metrics is for Prometheus."},
	{"Using a real model", "LLM_BASE_URL, LLM_API_KEY and DEFAULT_MODEL_ID point answerd at any OpenAI-compatible endpoint; OPENAI_BASE_URL and OPENAI_API_KEY are read too. LLM_TOOL_CALLING=text is for models without native tool calling. In the demo, setting LLM_BASE_URL or OPENAI_API_KEY replaces the stand-in."},
	{"Limits, budgets and timeouts", "MAX_TURNS (10) bounds the model calls of a run, MAX_HISTORY (16) the history, MAX_BODY_BYTES (1 MiB) a request, MAX_CONCURRENT_RUNS (512) the runs, MAX_CONCURRENT_CALLS (unset: 10 to 256, as the server can take) the tool calls at a time per server, TIMEOUT (60s) one tool call. A request may set lower ones with max_turns and budget, never higher."},
	{"The demo and the stand-in model", "answerd demo starts a loopback IAM that issues real JWTs, an MCP server that verifies them, and an OpenAI-compatible endpoint with a stand-in. The stand-in is not a language model: rules choose tools by the words of the question."},
}

// docSearch holds the argument of search_docs, Query, and the tool's result. Title and Text are "" if no entry matches.
type docSearch struct {
	Query string `json:"query"`
	Title string `json:"title,omitempty"`
	Text  string `json:"text,omitempty"`
	summary
}

// queryWord matches a word of at least three letters.
var queryWord = regexp.MustCompile(`\pL[\pL_]+\pL`)

// commonWords lists words that searchDocs ignores, because they occur in questions of all kinds.
var commonWords = strings.Fields("the and are for how what which who why when where does can you with that this")

// searchDocs sets the title and text of the entry in which the words of the query occur most often. Words in titles
// count three times. If no entry has any of the words, it sets only the summary.
func searchDocs(_ context.Context, _ *sdk.CallToolRequest, r *docSearch) error {
	var words []string
	for _, word := range queryWord.FindAllString(strings.ToLower(r.Query), -1) {
		if !slices.Contains(commonWords, word) {
			words = append(words, strings.TrimSuffix(word, "s")) // so that the singular also matches the plural
		}
	}

	best := 0
	r.Summary = "The documentation has nothing about that."
	for _, e := range docEntries {
		score := 0
		for _, word := range words {
			score += 3*strings.Count(strings.ToLower(e.title), word) + strings.Count(strings.ToLower(e.text), word)
		}
		if score > best {
			best = score
			r.Title, r.Text = e.title, e.text
			r.Summary = e.title + ": " + e.text
		}
	}
	return nil
}

// addAskingTool adds a tool without arguments that asks the user a question before it gives a result. call sets the
// result from the user's answer. In protocol 2026-07-28 the tool returns the question as a result input_required, and
// the client calls the tool again with the answer. For clients of older protocols the SDK sends the question as an
// elicitation request.
func addAskingTool[T interface{ text() string }](s *sdk.Server, t *sdk.Tool, question *sdk.ElicitParams, call func(*sdk.ElicitResult, *T) error) {
	sdk.AddTool(s, t, func(_ context.Context, req *sdk.CallToolRequest, out T) (*sdk.CallToolResult, T, error) {
		answer, answered := req.Params.InputResponses[t.Name].(*sdk.ElicitResult)
		if !answered {
			return &sdk.CallToolResult{InputRequests: sdk.InputRequestMap{t.Name: question}}, out, nil
		}
		err := call(answer, &out)
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: out.text()}}}, out, err
	})
}

// bookingForm is a form with every kind of field that MCP allows (2025-11-25, client/elicitation).
const bookingForm = `{"type":"object","properties":{
	"name":{"type":"string","title":"Name","description":"On whose name","minLength":1,"maxLength":60},
	"people":{"type":"integer","title":"People","minimum":1,"maximum":12,"default":2},
	"day":{"type":"string","title":"Day","format":"date"},
	"area":{"type":"string","title":"Where","enum":["inside","terrace"],"enumNames":["Inside","On the terrace"],"default":"inside"},
	"email":{"type":"string","title":"E-mail","format":"email","description":"For the confirmation"},
	"quiet":{"type":"boolean","title":"A quiet table, please","default":false}
},"required":["name","people"]}`

// booking is the result of book_table.
type booking struct {
	Name   string `json:"name"`
	People int    `json:"people"`
	summary
}

// addBooking adds book_table, which asks the user to fill in a form (MCP, client/elicitation).
func addBooking(s *sdk.Server) {
	addAskingTool(s, newTool("book_table", "Book a table",
		"Books a table at the demo's restaurant. It asks the user itself for the name, the number of people and the day.", noProperties),
		&sdk.ElicitParams{Mode: "form", Message: "The restaurant needs a few details for your table.", RequestedSchema: json.RawMessage(bookingForm)},
		func(answer *sdk.ElicitResult, b *booking) error {
			if answer.Action != "accept" {
				return fmt.Errorf("no table was booked: the user gave no details (%s)", answer.Action)
			}
			if err := json.Unmarshal([]byte(encodeJSON(answer.Content)), b); err != nil || b.Name == "" || b.People < 1 {
				return errors.New("no table was booked: the details cannot be used")
			}
			b.Summary = fmt.Sprintf("A table for %d is booked in the name of %s.", b.People, b.Name)
			return nil
		})
}

// calendarPath is the path of the page where the user allows access to the calendar.
const calendarPath = "/calendar"

// calendarPage is the HTML of that page. Its %s is calendarForm or calendarAllowed.
const calendarPage = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>Demo calendar</title>
<main><h1>Demo calendar</h1>
%s</main></html>
`

// calendarForm asks the user for consent. calendarAllowed confirms it.
const calendarForm = `<p>answerd's demo asks to use your calendar. There is none, so nothing can happen.</p>
<form method="post"><button>Allow it</button></form>`
const calendarAllowed = `<p role="status">It is allowed. You can close this page and go back.</p>`

// consent is the result of connect_calendar.
type consent struct {
	Connected bool `json:"connected"`
	summary
}

// addCalendar adds the tool connect_calendar to server, and the page at calendarPath to mux. baseURL is the URL at
// which browsers reach mux, without a trailing slash. The user consents on that page and not by an answer to the agent,
// as with a sign-in (MCP, client/elicitation, URL mode). All sessions share one consent, and a successful call uses it
// up.
func addCalendar(server *sdk.Server, mux *http.ServeMux, baseURL string) {
	var allowed atomic.Bool // the user has consented since the last successful call
	show := func(w http.ResponseWriter, text string) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		w.Header().Set("Cache-Control", "no-store")
		_, _ = io.WriteString(w, fmt.Sprintf(calendarPage, text)) // fails only if the browser has disconnected
	}
	mux.HandleFunc("GET "+calendarPath, func(w http.ResponseWriter, _ *http.Request) { show(w, calendarForm) })
	mux.HandleFunc("POST "+calendarPath, func(w http.ResponseWriter, _ *http.Request) {
		allowed.Store(true)
		show(w, calendarAllowed)
	})
	addAskingTool(server, newTool("connect_calendar", "Connect the calendar",
		"Connects the user's calendar. It sends the user to a page of its own to allow that.", noProperties),
		&sdk.ElicitParams{
			Mode: "url", URL: baseURL + calendarPath, ElicitationID: "calendar",
			Message: "Allow the use of your calendar on its own page, and come back.",
		},
		func(answer *sdk.ElicitResult, c *consent) error {
			switch {
			case answer.Action != "accept":
				return errors.New("the calendar is not connected: the user did not want to")
			case !allowed.Swap(false):
				return errors.New("the calendar is not connected: nobody allowed it on its page")
			}
			c.Connected = true
			c.Summary = "The calendar is connected."
			return nil
		})
}
