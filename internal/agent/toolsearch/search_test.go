package toolsearch

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"answerd/internal/mcp/catalog"
)

// The model finds more tools than it can be offered, and then an old one again, together with new ones. The result of
// that search says that it can call all of them.
func TestSearchOffersAToolThatIsFoundAgain(t *testing.T) {
	var tools []catalog.Tool
	for i := range maxShownTools + 1 {
		tools = append(tools, catalog.Tool{Name: fmt.Sprintf("tool_%d", i), Server: "s", InputSchema: json.RawMessage(`{"type":"object"}`)})
	}

	s := NewSearch(NewCatalog(tools), 0)
	for _, tool := range tools[:maxShownTools] {
		s.Offer(tool.Name)
	}

	s.Offer("tool_0", tools[maxShownTools].Name)
	var shown []string
	for _, tool := range s.Shown() {
		shown = append(shown, tool.Name)
	}

	names := strings.Join(shown, " ") + " "
	for name, want := range map[string]bool{"tool_0": true, "tool_1": false, tools[maxShownTools].Name: true} {
		if got := strings.Contains(names, name+" "); got != want {
			t.Errorf("the offer has %s: %t, want %t; it is %s", name, got, want, names)
		}
	}

	if want := "search_tools tool_0 tool_2 "; !strings.HasPrefix(names, want) {
		t.Errorf("the offer is %s, want it to begin with %s", names, want)
	}
}
