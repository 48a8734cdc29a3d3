package telemetry

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"answerd/internal/help"
)

func TestWarningsAndErrorsHaveHelp(t *testing.T) {
	var out bytes.Buffer
	logger, err := NewLogger(&out, "info", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		log  func()
		want any
	}{
		{func() { logger.Warn("MCP server is down", help.Servers.Attr()) }, string(help.Servers)},
		{func() { logger.With("mcp_server", "a").Error("MCP server is down", help.Servers.Attr()) }, string(help.Servers)},
		{func() { logger.Error("something else") }, string(help.Troubleshooting)},
		{func() { logger.WithGroup("g").Warn("something else", "a", 1) }, string(help.Troubleshooting)},
		{func() { logger.Info("MCP server is down") }, nil},
	} {
		out.Reset()
		c.log()
		var line map[string]any
		if err := json.Unmarshal(out.Bytes(), &line); err != nil {
			t.Fatal(err)
		}
		if line["help"] != c.want || strings.Count(out.String(), `"help"`) > 1 {
			t.Errorf("got %s, want help %v once", out.String(), c.want)
		}
	}
}
