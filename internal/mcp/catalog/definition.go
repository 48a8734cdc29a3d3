package catalog

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"slices"
	"strings"

	"answerd/internal/mcp/config"
)

// definition is the part of a tool that the operator of a pinned server accepts: everything that a
// model sees or that decides about calls, and the server's endpoint. If any of it changes, the
// tool is blocked until the operator has reviewed it.
type definition struct {
	Name         string          `json:"name"` // on the server
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  *Annotations    `json:"annotations,omitempty"`
	Endpoint     string          `json:"endpoint"`
}

// newDefinition returns the definition of a tool in canonical form, which does not depend on the
// order and spacing of the server's JSON.
func newDefinition(cfg *config.Server, t Tool) definition {
	return definition{
		Name: t.Original, Title: t.Title, Description: t.Description,
		InputSchema: canonicalJSON(t.InputSchema), OutputSchema: canonicalJSON(t.OutputSchema),
		Annotations: t.Annotations, Endpoint: Endpoint(cfg),
	}
}

// digest returns the SHA-256 of a definition from newDefinition, in hex.
func (d definition) digest() string {
	data, err := json.Marshal(d)
	if err != nil {
		return "" // cannot happen, because the schemas are JSON; and "" is never an accepted digest
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Endpoint returns the address of a server without parts that may be secret or differ after each
// start: a URL without its query, a command with a digest of its arguments.
func Endpoint(cfg *config.Server) string {
	if cfg.Command != "" {
		if len(cfg.Args) == 0 {
			return "command " + cfg.Command
		}
		sum := sha256.Sum256([]byte(strings.Join(cfg.Args, "\x00")))
		return "command " + cfg.Command + ", arguments " + hex.EncodeToString(sum[:8])
	}
	u, err := url.Parse(cfg.URL)
	if err != nil {
		return cfg.Type // cannot happen: the configuration was checked
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// canonicalJSON returns JSON in which the members of objects are sorted by name, there is no white
// space, and each string has one spelling. Numbers keep their spelling. Duplicate names stay, in
// order: programs differ about which one counts, so a change of either is a change. raw must be
// valid. For nil it returns nil.
func canonicalJSON(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return canonicalValue(dec)
}

// canonicalValue returns the next value of dec in canonical form. The depth of its recursion is
// bounded, because Decode has checked schema.MaxDepth.
func canonicalValue(dec *json.Decoder) json.RawMessage {
	tok, err := dec.Token()
	if err != nil {
		return json.RawMessage("null") // cannot happen: the JSON is valid
	}
	type member struct{ name, text []byte }

	var out []member
	delim, _ := tok.(json.Delim)
	switch delim {
	case '{':
		for dec.More() {
			name, text := canonicalValue(dec), canonicalValue(dec)
			out = append(out, member{name, append(append(slices.Clone(name), ':'), text...)})
		}
		slices.SortStableFunc(out, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	case '[':
		for dec.More() {
			out = append(out, member{text: canonicalValue(dec)})
		}
	default:
		var text bytes.Buffer // of a string, number, true, false or null
		enc := json.NewEncoder(&text)
		enc.SetEscapeHTML(false) // operators read it
		_ = enc.Encode(tok)
		return bytes.TrimSpace(text.Bytes())
	}

	_, _ = dec.Token() // the closing bracket
	texts := make([][]byte, len(out))
	for i, m := range out {
		texts[i] = m.text
	}

	open, end := byte('{'), byte('}')
	if delim == '[' {
		open, end = '[', ']'
	}
	return append(append([]byte{open}, bytes.Join(texts, []byte(","))...), end)
}
