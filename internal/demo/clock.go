package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"time"
	_ "time/tzdata" // the container image has no zone files

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// clockArgs are the arguments; their bounds and defaults stand in the tool's schema.
type clockArgs struct {
	TimeZone string `json:"time_zone"`
}

// clockReading is the structured result. Like all tools' here it says itself in a
// summary, for hosts that give the model the structured content only.
type clockReading struct {
	TimeZone  string `json:"time_zone" jsonschema:"the IANA time zone"`
	Time      string `json:"time" jsonschema:"date and time as RFC 3339 with the zone's offset"`
	Date      string `json:"date" jsonschema:"the date, YYYY-MM-DD"`
	Weekday   string `json:"weekday"`
	UTCOffset string `json:"utc_offset" jsonschema:"hours and minutes ahead of UTC"`
	Summary   string `json:"summary" jsonschema:"the same in one sentence"`
}

// addClock adds current_time.
func addClock(s *sdk.Server) {
	sdk.AddTool(s, &sdk.Tool{
		Name: "current_time", Title: "Current time", Annotations: &sdk.ToolAnnotations{
			ReadOnlyHint: true, DestructiveHint: new(false), OpenWorldHint: new(false),
		},
		Description: "Tells the current date and time in a time zone. Use it for questions about what time, hour, day or date it is now or today, anywhere in the world.",
		InputSchema: json.RawMessage(`{"type":"object","properties":{
			"time_zone":{"type":"string","description":"IANA time zone, such as Europe/Rome, Asia/Tokyo or UTC. Not a city's name alone.","minLength":1,"maxLength":64,"default":"UTC"}
		},"additionalProperties":false}`),
	}, func(_ context.Context, _ *sdk.CallToolRequest, in clockArgs) (*sdk.CallToolResult, *clockReading, error) {
		r, err := readClock(time.Now(), in.TimeZone)
		if err != nil {
			return nil, nil, err
		}
		return said(r.Summary), r, nil
	})
}

// readClock is now in the zone. "Local", which Go knows, is the server's own
// business and no IANA zone.
func readClock(now time.Time, zone string) (*clockReading, error) {
	loc, err := time.LoadLocation(zone)
	if err != nil || zone == "" || zone == "Local" {
		return nil, fmt.Errorf("there is no time zone %q: use an IANA name such as Europe/Rome, America/New_York or UTC", zone)
	}
	t := now.In(loc)
	return &clockReading{
		TimeZone: zone, Time: t.Format(time.RFC3339), Date: t.Format(time.DateOnly),
		Weekday: t.Weekday().String(), UTCOffset: t.Format("-07:00"),
		Summary: fmt.Sprintf("It is %s in %s (UTC%s).", t.Format("15:04:05 on Monday, 2 January 2006"), zone, t.Format("-07:00")),
	}, nil
}
