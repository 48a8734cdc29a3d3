package demo

import (
	"context"
	"encoding/json"
	"errors"
	"html/template"
	"net/http"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// calendarPath is the page on which a person allows the use of the calendar.
const calendarPath = "/calendar"

// consent is the structured result of connect_calendar.
type consent struct {
	Connected bool   `json:"connected"`
	Summary   string `json:"summary" jsonschema:"what happened, in one sentence"`
}

// calendar is what a person allows on a page of ours and not by an answer to the agent,
// as with a sign-in or a payment: URL elicitation. There is one, shared by all sessions
// as the notes are; each consent is used once, so that it can be tried again.
type calendar struct {
	url string

	mu      sync.Mutex // protects allowed
	allowed bool
}

// addCalendar adds connect_calendar and its page, which browsers reach below url.
func addCalendar(s *sdk.Server, mux *http.ServeMux, url string) {
	c := &calendar{url: url + calendarPath}
	mux.HandleFunc("GET "+calendarPath, c.page)
	mux.HandleFunc("POST "+calendarPath, c.allow)
	sdk.AddTool(s, &sdk.Tool{
		Name: "connect_calendar", Title: "Connect the calendar", Annotations: readOnly(), // there is no calendar
		Description: "Connects the user's calendar. It sends the user to a page of its own to allow that.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{},"additionalProperties":false}`),
	}, c.connect)
}

func (c *calendar) connect(_ context.Context, req *sdk.CallToolRequest, _ struct{}) (*sdk.CallToolResult, *consent, error) {
	given, err := answerTo(req, "calendar")
	switch {
	case err != nil:
		return nil, nil, err
	case given == nil:
		return askUser("calendar", &sdk.ElicitParams{
			Mode: "url", Message: "Allow the use of your calendar on its own page, and come back.", URL: c.url, ElicitationID: "calendar",
		}), nil, nil
	case given.Action != "accept":
		return nil, nil, errors.New("the calendar is not connected: the user did not want to")
	case !c.use():
		return nil, nil, errors.New("the calendar is not connected: nobody allowed it on its page")
	}
	r := &consent{true, "The calendar is connected."}
	return said(r.Summary), r, nil
}

// use reports whether the calendar was allowed, and takes the consent.
func (c *calendar) use() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	allowed := c.allowed
	c.allowed = false
	return allowed
}

// calendarPage needs no script, and its policy allows none.
var calendarPage = template.Must(template.New("calendar").Parse(`<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>Demo calendar</title>
<main><h1>Demo calendar</h1>
{{if .}}<p role="status">It is allowed. You can close this page and go back.</p>{{else}}<p>answerd's demo asks to use your calendar. There is none, so nothing can happen.</p>
<form method="post"><button>Allow it</button></form>{{end}}</main></html>
`))

func (c *calendar) page(w http.ResponseWriter, _ *http.Request) { c.show(w, false) }

func (c *calendar) allow(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	c.allowed = true
	c.mu.Unlock()
	c.show(w, true)
}

func (c *calendar) show(w http.ResponseWriter, allowed bool) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
	_ = calendarPage.Execute(w, allowed) // an error is a client that went away
}
