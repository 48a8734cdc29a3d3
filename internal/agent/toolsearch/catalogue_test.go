package toolsearch

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"answerd/internal/mcp/catalog"
)

// wish is a query and the tool that it is for.
type wish struct{ query, tool string }

// readCatalogue returns the tools of testdata/tools.txt among so many of other kinds that there
// are total, and what is looked for in them.
func readCatalogue(t testing.TB, total int) (docs []catalog.Tool, wishes []wish) {
	t.Helper()
	text, err := os.ReadFile("testdata/tools.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch query, ok := strings.CutPrefix(line, "? "); {
		case line == "" || strings.HasPrefix(line, "#"):
		case ok:
			wishes = append(wishes, wish{query, docs[len(docs)-1].Name})
		default:
			docs = append(docs, parseDoc(line))
		}
	}
	return append(docs, otherDocs(total-len(docs))...), wishes
}

func parseDoc(line string) catalog.Tool {
	server, rest, _ := strings.Cut(line, " ")
	name, rest, _ := strings.Cut(rest, "(")
	parameters, description, _ := strings.Cut(rest, ") ")
	return catalog.Tool{Name: name, Server: server, Description: description, InputSchema: schemaOf(strings.Split(parameters, ", "))}
}

func schemaOf(parameters []string) json.RawMessage {
	properties := make(map[string]any)
	for _, p := range parameters {
		properties[p] = map[string]any{"type": "string", "description": "The " + strings.ReplaceAll(p, "_", " ") + "."}
	}
	raw, _ := json.Marshal(map[string]any{"type": "object", "properties": properties, "required": parameters[:1]})
	return raw
}

// otherDocs returns n tools of the kind that large installations have many of: the same verbs
// over different things.
func otherDocs(n int) []catalog.Tool {
	verbs := []struct{ verb, says string }{
		{"list", "List all %s of the account, page by page."}, {"get", "Get one of the %s by its id."},
		{"create", "Create a new entry in the %s."}, {"update", "Change fields of one of the %s."},
		{"delete", "Delete one of the %s for good."}, {"search", "Search the %s by text, status or date."},
		{"export", "Export the %s as a CSV file."}, {"archive", "Archive %s that are no longer needed."},
		{"approve", "Approve one of the %s on behalf of the user."}, {"comment_on", "Add a comment to one of the %s."},
	}
	things := strings.Fields(`accounts agreements assets audits badges batches benefits blueprints brands budgets bundles campaigns
		candidates cases categories certificates checklists claims clauses cohorts components contracts coupons courses credentials
		dashboards datasets deliveries departments devices dispatches disputes drivers endpoints enrollments environments epics
		estimates exams experiments facilities features feeds fleets forecasts_sales forms_intake funnels goals grants guides
		handovers hosts icons identities imports inspections integrations interviews jobs journeys keywords kits landing_pages
		layers leads ledgers lessons licenses loans lots machines manuals margins markets materials memberships milestones models
		notices objectives offers operators orders outages packages partners patches patients permits pipelines_build plans
		policies portfolios positions prescriptions profiles_risk programs projects promotions proposals prototypes providers`)
	servers := strings.Fields("erp plm wms lms itsm siem ats cms pim tms")
	var docs []catalog.Tool
	for i := range n {
		v, thing := verbs[i%len(verbs)], things[i/len(verbs)%len(things)]
		docs = append(docs, catalog.Tool{
			Name: v.verb + "_" + thing, Server: servers[i/len(verbs)%len(servers)],
			Description: fmt.Sprintf(v.says, strings.ReplaceAll(thing, "_", " ")),
			InputSchema: schemaOf([]string{strings.TrimSuffix(thing, "s") + "_id", "workspace", "cursor", "limit", "fields"}),
		})
	}
	return docs
}
