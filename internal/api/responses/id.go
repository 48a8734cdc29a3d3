package responses

import (
	"strconv"
	"strings"
)

// Ids tell where they belong: clients send back nothing else. A run that waits for
// approvals is several responses, one after the other; each is known by the run and by
// the event after which it begins.

const runPrefix = "run_"

// ID is the id of the response that begins after an event of a run, 0 being its start.
func ID(run string, after int64) string {
	id := "resp_" + strings.TrimPrefix(run, runPrefix)
	if after > 0 {
		id += "_" + strconv.FormatInt(after, 10)
	}
	return id
}

// ParseID reads what ID wrote. ok is false if it is no such id.
func ParseID(id string) (run string, after int64, ok bool) {
	rest, ok := strings.CutPrefix(id, "resp_")
	run, number, later := strings.Cut(rest, "_")
	if later {
		var err error
		if after, err = strconv.ParseInt(number, 10, 64); err != nil || after < 1 {
			return "", 0, false
		}
	}
	return runPrefix + run, after, ok && run != ""
}

// itemID is the id of an item of a run's responses: its kind, the run, and what tells it
// from others of its kind.
func itemID(kind, response, name string) string {
	run, _, _ := ParseID(response)
	return kind + "_" + strings.TrimPrefix(run, runPrefix) + "_" + name
}

// parseItemID reads what itemID wrote.
func parseItemID(id string) (kind, run, name string, ok bool) {
	parts := strings.SplitN(id, "_", 3)
	if len(parts) != 3 || parts[1] == "" || parts[2] == "" {
		return "", "", "", false
	}
	return parts[0], runPrefix + parts[1], parts[2], true
}
