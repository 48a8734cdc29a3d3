package demo

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// newElicitingClient returns options of a client that answers elicitations.
func newElicitingClient(answer func(*sdk.ElicitParams) *sdk.ElicitResult) *sdk.ClientOptions {
	return &sdk.ClientOptions{
		Capabilities: &sdk.ClientCapabilities{Elicitation: &sdk.ElicitationCapabilities{Form: &sdk.FormElicitationCapabilities{}, URL: &sdk.URLElicitationCapabilities{}}},
		ElicitationHandler: func(_ context.Context, r *sdk.ElicitRequest) (*sdk.ElicitResult, error) {
			return answer(r.Params), nil
		},
	}
}

func TestBookTableAsksTheUser(t *testing.T) {
	var given sdk.ElicitResult
	_, session := openSession(t, MCPConfig{}, newElicitingClient(func(p *sdk.ElicitParams) *sdk.ElicitResult {
		if p.Mode != "form" || p.RequestedSchema == nil {
			t.Errorf("the server asked %+v, want the question of the tool", p)
		}
		return &given
	}))
	for _, c := range []struct {
		given sdk.ElicitResult
		fails bool
		says  string
	}{
		{sdk.ElicitResult{Action: "accept", Content: map[string]any{"name": "Ada", "people": 4}}, false, "A table for 4 is booked in the name of Ada."},
		{sdk.ElicitResult{Action: "decline"}, true, "gave no details (decline)"},
		{sdk.ElicitResult{Action: "cancel"}, true, "gave no details (cancel)"},
	} {
		given = c.given
		if text, _, failed := callTool(t, session, "book_table", nil); failed != c.fails || !strings.Contains(text, c.says) {
			t.Errorf("%+v: failed %v, text %q, want what the case says", c.given, failed, text)
		}
	}
}

// An answer is no consent without a visit to the page, and one consent is for one call.
func TestConnectCalendarNeedsItsPage(t *testing.T) {
	var base string
	visit := func(method string) string {
		req, err := http.NewRequestWithContext(t.Context(), method, base+calendarPath, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("status %q, %v, want status 200, no error", res.Status, err)
		}
		return string(body)
	}

	action, visits := "accept", false
	s, session := openSession(t, MCPConfig{URL: "http://127.0.0.1:1"}, newElicitingClient(func(p *sdk.ElicitParams) *sdk.ElicitResult {
		if p.Mode != "url" || p.URL != "http://127.0.0.1:1"+calendarPath {
			t.Errorf("the server asked %+v, want the question of the tool", p)
		}
		if visits {
			if page := visit(http.MethodGet); !strings.Contains(page, "Allow it") {
				t.Errorf("the page is %s, want the step of the connection", page)
			}
			if page := visit(http.MethodPost); !strings.Contains(page, "go back") {
				t.Errorf("the page is %s, want the step of the connection", page)
			}
		}
		return &sdk.ElicitResult{Action: action}
	}))

	page := httptest.NewServer(s)
	t.Cleanup(page.Close)
	base = page.URL

	for _, c := range []struct {
		action string
		visits bool
		says   string
	}{
		{"accept", false, "nobody allowed it"}, {"accept", true, "The calendar is connected."},
		{"accept", false, "nobody allowed it"}, {"decline", false, "did not want to"},
	} {
		action, visits = c.action, c.visits
		if text, _, failed := callTool(t, session, "connect_calendar", nil); failed == c.visits || !strings.Contains(text, c.says) {
			t.Errorf("%+v: failed %v, text %q, want what the case says", c, failed, text)
		}
	}
}
