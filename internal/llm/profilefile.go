package llm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a file of profiles.
const (
	maxProfileFile  = 1 << 20 // bytes
	maxProfiles     = 1000
	maxModelID      = 256 // bytes
	maxProfileDepth = 4   // levels of nesting; a price stands at the third
)

// ParseProfiles reads a JSON list of profiles, in the order of the file:
//
//	[
//	  {"id": "fast", "upstream": "gpt-5-mini", "context_tokens": 400000, "images": true,
//	   "price": {"input_per_million": 0.25, "output_per_million": 2}},
//	  {"id": "local", "tool_calling": "text", "context_tokens": 8192, "max_output_tokens": 1024}
//	]
//
// Only id is required. What is not a profile is an error that names the place by a JSON
// pointer (RFC 6901): a name that nobody knows, one that occurs twice, a number below 0.
func ParseProfiles(data []byte) ([]Profile, error) {
	switch {
	case len(data) > maxProfileFile:
		return nil, fmt.Errorf("larger than %d bytes", maxProfileFile)
	case !utf8.Valid(data):
		return nil, errors.New("not UTF-8")
	}
	// Readers differ in which of two members of one name they take; ours takes neither.
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := noneTwice(dec, "", 0); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("something follows the list")
	}
	var list []json.RawMessage
	if json.Unmarshal(data, &list) != nil || list == nil {
		return nil, errors.New("not a list of models")
	}
	if len(list) == 0 || len(list) > maxProfiles {
		return nil, fmt.Errorf("%d models where 1 to %d are possible", len(list), maxProfiles)
	}
	profiles := make([]Profile, len(list))
	ids := make(map[string]int, len(list))
	for i, raw := range list {
		at := fmt.Sprintf("/%d", i)
		if err := profiles[i].parse(at, raw); err != nil {
			return nil, err
		}
		if first, twice := ids[profiles[i].ID]; twice {
			return nil, fmt.Errorf("%s/id: the same as /%d/id", at, first)
		}
		ids[profiles[i].ID] = i
	}
	return profiles, nil
}

// noneTwice reads one value and refuses objects in which a name occurs twice.
func noneTwice(dec *json.Decoder, at string, depth int) error {
	tok, err := dec.Token()
	if err != nil {
		return syntaxAt(at, err)
	}
	open, ok := tok.(json.Delim)
	if !ok {
		return nil
	}
	if depth == maxProfileDepth {
		return fmt.Errorf("%s: nested deeper than %d levels", at, maxProfileDepth)
	}
	seen := make(map[string]bool)
	for i := 0; dec.More(); i++ {
		member := fmt.Sprintf("%s/%d", at, i)
		if open == '{' {
			tok, err := dec.Token()
			if err != nil {
				return syntaxAt(at, err)
			}
			name := tok.(string) // the decoder refuses any other itself
			if member = at + "/" + pointerName(name); seen[name] {
				return fmt.Errorf("%s: given twice", member)
			}
			seen[name] = true
		}
		if err := noneTwice(dec, member, depth+1); err != nil {
			return err
		}
	}
	if _, err := dec.Token(); err != nil {
		return syntaxAt(at, err)
	}
	return nil
}

// syntaxAt says where text stops being JSON.
func syntaxAt(at string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%s: the JSON ends too early", at)
	}
	return fmt.Errorf("%s: %w", at, err)
}

// pointerName is a name as a JSON pointer has it, cut where it is long.
func pointerName(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1", "\n", " ", "\r", " ").Replace(name[:min(len(name), 80)])
}

// field is where a member goes.
type field struct {
	to   any
	says string // what it must be
}

// parse reads one profile. at is its place in the file.
func (p *Profile) parse(at string, raw json.RawMessage) error {
	var price json.RawMessage
	err := readMembers(at, raw, map[string]field{
		"id": {&p.ID, "a text"}, "upstream": {&p.Upstream, "a text"}, "tool_calling": {&p.ToolCalling, "a text"},
		"context_tokens": {&p.ContextTokens, "a whole number"}, "max_output_tokens": {&p.MaxOutputTokens, "a whole number"},
		"images": {&p.Images, "true or false"}, "audio": {&p.Audio, "true or false"}, "price": {&price, "an object"},
	})
	if err != nil {
		return err
	}
	if price != nil {
		p.Price = &Price{}
		err := readMembers(at+"/price", price, map[string]field{
			"input_per_million": {&p.Price.Input, "a number"}, "output_per_million": {&p.Price.Output, "a number"},
		})
		if err != nil {
			return err
		}
	}
	return p.check(at)
}

// readMembers decodes the members of an object into their fields.
func readMembers(at string, raw json.RawMessage, fields map[string]field) error {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil || object == nil {
		return fmt.Errorf("%s: not an object", at)
	}
	for _, name := range slices.Sorted(maps.Keys(object)) {
		place := at + "/" + pointerName(name)
		f, known := fields[name]
		switch value := object[name]; {
		case !known:
			return fmt.Errorf("%s: unknown field", place)
		// null would leave the field as it is, and say nothing.
		case string(value) == "null" || json.Unmarshal(value, f.to) != nil:
			return fmt.Errorf("%s: not %s", place, f.says)
		}
	}
	return nil
}

// check refuses a profile that no model can have.
func (p *Profile) check(at string) error {
	price := Price{}
	if p.Price != nil {
		price = *p.Price
	}
	for _, c := range []struct {
		field, why string
		bad        bool
	}{
		{"/id", "missing", p.ID == ""},
		{"/id", "not a name", badID(p.ID)},
		{"/upstream", "not a name", badID(p.Upstream)},
		{"/tool_calling", "not native or text", p.ToolCalling != "" && p.ToolCalling != NativeCalling && p.ToolCalling != TextCalling},
		{"/context_tokens", "below 0", p.ContextTokens < 0},
		{"/max_output_tokens", "below 0", p.MaxOutputTokens < 0},
		{"/max_output_tokens", "not below context_tokens", p.ContextTokens > 0 && p.MaxOutputTokens >= p.ContextTokens},
		{"/price/input_per_million", "below 0", price.Input < 0},
		{"/price/output_per_million", "below 0", price.Output < 0},
	} {
		if c.bad {
			return fmt.Errorf("%s%s: %s", at, c.field, c.why)
		}
	}
	return nil
}

// badID reports whether an id could not be sent, or not be read in a log.
func badID(id string) bool {
	return len(id) > maxModelID || strings.ContainsFunc(id, unicode.IsControl)
}
