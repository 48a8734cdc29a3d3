package api

import (
	"strings"
	"testing"
	"time"

	"answerd/internal/api/agui"
	"answerd/internal/api/aisdk"
	"answerd/internal/api/chat"
	"answerd/internal/api/mcptool"
	"answerd/internal/api/native"
	"answerd/internal/api/responses"
	"answerd/internal/event"
)

// A newer version of answerd may write events of other types to a log that both share (F46). The
// native format passes them on unchanged. The other formats have no place for them.
func TestEventOfANewerVersionIsInTheNativeFormatOnly(t *testing.T) {
	const line = `{"type":"run_moved","run_id":"run_a","seq":2,"ts":9,"to":{"zone":"b"}}`
	start, err := event.Encode("run_a", 1, 8, event.Start{Question: "?"})
	if err != nil {
		t.Fatal(err)
	}
	moved, err := event.Decode([]byte(line))
	if err != nil {
		t.Fatal(err)
	}
	if got := string(native.AppendFrame(nil, moved)); !strings.Contains(got, "event: run_moved\n") || !strings.Contains(got, "data: "+line+"\n") {
		t.Errorf("the native frame is %q, want the event as it was written", got)
	}

	for name, enc := range map[string]encoder{
		"chat":      chat.NewEncoder(chat.Header{ID: "run_a", Created: time.UnixMilli(8)}, true),
		"responses": responses.NewEncoder(responses.Header{ID: "run_a", Created: time.UnixMilli(8)}),
		"aisdk":     aisdk.NewEncoder(aisdk.Header{RunID: "run_a"}),
		"agui":      agui.NewEncoder(agui.Header{RunID: "run_a"}),
	} {
		enc.Encode(start)
		if got := enc.Encode(moved); len(got) > 0 {
			t.Errorf("%s: the event adds %q, want nothing", name, got)
		}
	}

	if got := mcptool.NewProgressReporter().MessageFor(moved); got != "" {
		t.Errorf("MCP: the event is reported as %q, want nothing", got)
	}
}
