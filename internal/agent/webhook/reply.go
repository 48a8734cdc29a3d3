package webhook

import (
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json"
)

// maxReason bounds the reason of an abort, in bytes: the caller of the run reads it.
const maxReason = 500

// Reply is what a service decided. The zero value changes nothing; otherwise exactly
// one of Content, Args and Abort is set.
type Reply struct {
	Content *string            // becomes the tool's result
	Args    stdjson.RawMessage // a JSON object in place of the arguments; of PreToolCall only
	Abort   bool               // the run ends
	Reason  string             // of an abort; one line
}

// String returns what the reply does, in one word, for logs and telemetry: nothing of the
// service's own text.
func (r Reply) String() string {
	switch {
	case r.Abort:
		return "abort"
	case r.Args != nil:
		return "args"
	case r.Content != nil:
		return "content"
	}
	return "nothing"
}

// errReply says no more: the cause could quote the text.
var errReply = errors.New("the reply is not one JSON object of the agreed shape")

// parseReply reads a reply strictly, as a permission must be read: a member that we
// don't know, or know by another spelling, may have been meant to forbid. A member
// that is null counts as left out, which is how many languages write that.
func parseReply(about Event, text []byte) (Reply, error) {
	// json/v2 takes names exactly as written, and refuses two of one name.
	var members map[string]stdjson.RawMessage
	if err := json.Unmarshal(text, &members); err != nil || members == nil {
		return Reply{}, errReply
	}
	var r Reply
	for name, value := range members {
		if string(value) == "null" {
			continue
		}
		var err error
		switch name {
		case "content":
			r.Content = new(string)
			err = json.Unmarshal(value, r.Content)
		case "args":
			if value[0] != '{' {
				err = errReply
			}
			r.Args = value
		case "abort":
			err = json.Unmarshal(value, &r.Abort)
		case "reason":
			err = json.Unmarshal(value, &r.Reason)
		default:
			return Reply{}, errors.New("the reply has a member that there is not")
		}
		if err != nil {
			return Reply{}, fmt.Errorf("the reply's %s is of a wrong type", name)
		}
	}
	r.Reason = cleanReason(r.Reason)
	if err := r.validateReply(about); err != nil {
		return Reply{}, err
	}
	return r, nil
}

// validateReply refuses a reply that says two things, or one that comes too late.
func (r Reply) validateReply(about Event) error {
	decisions := 0
	for _, made := range []bool{r.Content != nil, r.Args != nil, r.Abort} {
		if made {
			decisions++
		}
	}
	switch {
	case decisions > 1:
		return errors.New("the reply has more than one of content, args and abort")
	case r.Args != nil && about != PreToolCall:
		return fmt.Errorf("the reply has args, which %s comes too late for", about)
	case r.Reason != "" && !r.Abort:
		return errors.New("the reply has a reason without an abort")
	}
	return nil
}

// cleanReason returns at most maxReason bytes of s without control characters.
func cleanReason(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > maxReason {
		s = strings.ToValidUTF8(s[:maxReason], "")
	}
	return strings.TrimSpace(s)
}
