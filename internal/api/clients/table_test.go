package clients

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// scenarios are what can happen in a run, and clients what people have.
var (
	scenarios = []string{"plain", "tool", "parallel tools", "failing tool", "approval yes", "approval no", "elicitation", "client tool", "model failure", "cancel", "truncated", "cut", "resume", "thread"}
	clients   = []string{
		"openai chat", "openai responses", "ai-sdk openai chat", "ai-sdk openai responses", "ai-sdk openai-compatible", "ai-sdk open-responses",
		"ai 5", "ai 6", "ai 7", "ag-ui 0.0.59", "ag-ui 1.0.0", "eventsource", "eventsource-client", "fetch-event-source",
	}
)

const (
	cannotAsk = "the format cannot ask: declined"
	noResume  = "the format cannot go on with a stream"
	sendsAll  = "the client sends the whole conversation itself"
	ownTools  = "the native face has no tools of the caller's"
	cutMark   = ", cut" // behind the name of a scenario that was gone through with cuts
)

// notThere is what a protocol, or a client's version of it, does not have.
var notThere = map[string]map[string]string{
	"openai chat":              {"approval yes": cannotAsk, "resume": noResume},
	"openai responses":         {},
	"ai-sdk openai chat":       {"approval yes": cannotAsk, "resume": noResume, "thread": sendsAll},
	"ai-sdk openai responses":  {"resume": noResume, "thread": sendsAll},
	"ai-sdk openai-compatible": {"approval yes": cannotAsk, "resume": noResume, "thread": sendsAll},
	"ai-sdk open-responses":    {"approval yes": "the client passes over mcp items", "approval no": "the client passes over mcp items", "resume": noResume, "thread": sendsAll},
	"ai 5":                     {"approval yes": "version 5 has no approvals: declined"},
	"eventsource":              {"client tool": ownTools},
	"eventsource-client":       {"client tool": ownTools},
	"fetch-event-source":       {"client tool": ownTools},
}

// uncut are the scenarios that have no form of their own with a cut: they are about one, or about what the model
// gets.
var uncut = []string{"cut", "resume", "thread"}

// table is which scenarios were gone through with which clients: "ran" is whole only,
// "cut" with its streams cut in the middle as well. One that was not, and is not known to
// be missing from the protocol, is a hole; so is one that was not cut, unless the format
// cannot go on with a stream.
func table(t *testing.T, ran map[string]bool) string {
	t.Helper()
	var b strings.Builder
	line := func(first string, cells []string) {
		fmt.Fprintf(&b, "\n%-26s", first)
		for i, cell := range cells {
			fmt.Fprintf(&b, " %-*s", len(scenarios[i]), cell)
		}
	}
	line("", scenarios)
	reasons := make(map[string]bool)
	for _, client := range clients {
		var cells []string
		for _, scenario := range scenarios {
			why := notThere[client][scenario]
			switch {
			case ran[client+" | "+scenario] && ran[client+" | "+scenario+cutMark]:
				cells = append(cells, "cut")
			case ran[client+" | "+scenario]:
				cells = append(cells, "ran")
				if notThere[client]["resume"] == "" && !slices.Contains(uncut, scenario) {
					t.Errorf("%s: %s was not gone through with a cut, uncut %q, want it to contain %s", client, scenario, uncut, scenario)
				}
			case why != "":
				cells = append(cells, "-")
				reasons[fmt.Sprintf("%s, %s: %s", client, scenario, why)] = true
			default:
				cells = append(cells, "HOLE")
				t.Errorf("%s: %s was not gone through, want it in the table", client, scenario)
			}
		}
		line(client, cells)
	}
	for what := range ran {
		client, scenario, _ := strings.Cut(what, " | ")
		if !slices.Contains(clients, client) || !slices.Contains(scenarios, strings.TrimSuffix(scenario, cutMark)) {
			t.Errorf("%s is not in the table, want one of the clients %q and scenarios %q", what, clients, scenarios)
		}
	}
	return b.String() + "\n\n- not in this protocol:\n" + strings.Join(slices.Sorted(maps.Keys(reasons)), "\n")
}
