package api

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// longestWait bounds a caller's wait for a person.
const longestWait = time.Hour

// preferredWait is how long the caller would rather wait than be told that the answer
// takes longer (RFC 7240 section 4.3), as preferred says it in Preference-Applied. What
// cannot be understood is as if it were not there (section 2).
func preferredWait(r *http.Request) (wait time.Duration, preferred string) {
	for _, line := range r.Header.Values("Prefer") {
		for _, p := range strings.Split(line, ",") {
			p, _, _ = strings.Cut(p, ";") // its parameters
			name, value, _ := strings.Cut(p, "=")
			if !strings.EqualFold(strings.TrimSpace(name), "wait") {
				continue
			}
			value = strings.Trim(strings.TrimSpace(value), `"`)
			// Of two the first counts (section 2).
			if seconds, err := strconv.ParseUint(value, 10, 31); err == nil {
				return min(time.Duration(seconds)*time.Second, longestWait), "wait=" + value
			}
			return 0, ""
		}
	}
	return 0, ""
}
