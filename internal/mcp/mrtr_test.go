package mcp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"answerd/internal/mcp/config"
)

// round is one request of a call.
type round struct{ id, state string }

// unfinishing is a server of 2026-07-28 that answers the n-th request of a call, from
// 1, with that result.
func unfinishing(result func(n int) string, rounds chan round) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Params struct {
				State string `json:"requestState"`
			} `json:"params"`
		}
		if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		switch m.Method {
		case "server/discover":
			reply(w, m.ID, `{"resultType":"complete","supportedVersions":["2026-07-28"],"capabilities":{"tools":{}},"serverInfo":{"name":"raw","version":"1"}}`)
		case "tools/list":
			reply(w, m.ID, `{"resultType":"complete","tools":[{"name":"t","inputSchema":{"type":"object"}}]}`)
		case "tools/call":
			rounds <- round{string(m.ID), m.Params.State}
			reply(w, m.ID, result(len(rounds)))
		default:
			w.WriteHeader(http.StatusAccepted)
		}
	})
}

// S3.9: an answer that asks for nothing is a server that wants to be asked again, with
// its state and under a new id (2026-07-28 basic/utilities/mrtr). The rounds are one
// call, and only the last one's result counts.
func TestAnUnfinishedCallIsAskedAgainWithItsState(t *testing.T) {
	rounds := make(chan round, 8)
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, unfinishing(func(n int) string {
		switch n {
		case 1:
			return `{"resultType":"input_required","requestState":"state-1"}`
		case 2:
			return `{"resultType":"input_required","requestState":"state-2","inputRequests":{}}`
		}
		return fmt.Sprintf(`{"resultType":"complete","content":[{"type":"text","text":"after %d"}]}`, n)
	}, rounds)).URL})
	res, err := c.Call(t.Context(), Call{Tool: "t"})
	if got := must(t, res, err).Text(); got != "after 3" {
		t.Errorf("result %q", got)
	}
	first, second, third := <-rounds, <-rounds, <-rounds
	if first.state != "" || second.state != "state-1" || third.state != "state-2" || first.id == second.id || second.id == third.id {
		t.Errorf("rounds %v %v %v", first, second, third)
	}
}

// A server that takes no answer for one, such as a person's no, is given up after some
// rounds, and its caller learns what it did.
func TestACallThatAsksForEverSaysSo(t *testing.T) {
	const ask = `{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":{"message":"who?","requestedSchema":{"type":"object","properties":{}}}}}}`
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, unfinishing(func(int) string { return ask }, make(chan round, 64))).URL})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if e := kind(t, err); e.Kind != Protocol || e.Message != "MCP server a: it asks again and again, whatever the answer" {
		t.Errorf("%s: %s", e.Kind, e.Message)
	}
}

// A server that never finishes is given up with the time of the call.
func TestACallThatNeverFinishesEnds(t *testing.T) {
	c := open(t, Options{}, config.Server{Name: "a", URL: serve(t, unfinishing(func(int) string {
		return `{"resultType":"input_required","requestState":"again"}`
	}, make(chan round, 64))).URL, Timeout: 300 * time.Millisecond})
	_, err := c.Call(t.Context(), Call{Tool: "t"})
	if got := kind(t, err).Kind; got != Timeout {
		t.Errorf("%s: %v", got, err)
	}
}
