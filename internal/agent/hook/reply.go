package hook

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxReason bounds the reason of an abort, in bytes: the caller of the run reads it.
const maxReason = 500

// Reply is what a service decided. The zero value changes nothing; otherwise exactly
// one of Content, Args and Abort is set.
type Reply struct {
	Content *string         // becomes the tool's result
	Args    json.RawMessage // a JSON object in place of the arguments; of PreToolCall only
	Abort   bool            // the run ends
	Reason  string          // of an abort; one line
}

// String is what the reply does, in one word, for logs and telemetry: nothing of the
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

// errReply says no more: what encoding/json says quotes the text.
var errReply = errors.New("the reply is not one JSON object of the agreed shape")

// parseReply reads a reply strictly, as a permission must be read: a member that we
// don't know, or know by another spelling, may have been meant to forbid. A member
// that is null counts as left out, which is how many languages write that.
func parseReply(about Event, text []byte) (Reply, error) {
	members, err := parseObject(text)
	if err != nil {
		return Reply{}, err
	}
	var r Reply
	for name, value := range members {
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
	r.Reason = line(r.Reason)
	if err := r.check(about); err != nil {
		return Reply{}, err
	}
	return r, nil
}

// check refuses a reply that says two things, or one that comes too late.
func (r Reply) check(about Event) error {
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

// parseObject reads one JSON object and nothing else, whose member names are unique
// and exactly as written. Decoding into a struct would take "ABORT" for "abort" and
// the last of two. Members that are null are left out.
func parseObject(text []byte) (map[string]json.RawMessage, error) {
	if !utf8.Valid(text) {
		return nil, errReply
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if start, err := dec.Token(); err != nil || start != json.Delim('{') {
		return nil, errReply
	}
	members, seen := make(map[string]json.RawMessage), make(map[string]bool)
	for dec.More() {
		name, err := dec.Token()
		key, ok := name.(string)
		var value json.RawMessage
		if err != nil || !ok || seen[key] || dec.Decode(&value) != nil {
			return nil, errReply
		}
		if seen[key] = true; string(value) != "null" {
			members[key] = value
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, errReply
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errReply
	}
	return members, nil
}

// line is at most maxReason bytes of s without control characters.
func line(s string) string {
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
