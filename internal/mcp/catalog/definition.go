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
// model sees or that decides about calls, and the server's endpoint.
type definition struct {
	Name         string          `json:"name"` // on the server
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  *Annotations    `json:"annotations,omitempty"`
	Endpoint     string          `json:"endpoint"`
}

// newDefinition returns the definition of a tool in canonical form: it does not depend on how the
// server orders and spaces its JSON.
func newDefinition(cfg *config.Server, t Tool) definition {
	return definition{
		Name: t.Original, Title: t.Title, Description: t.Description,
		InputSchema: canonicalJSON(t.InputSchema), OutputSchema: canonicalJSON(t.OutputSchema),
		Annotations: t.Annotations, Endpoint: Endpoint(cfg),
	}
}

// digest returns the SHA-256 of a definition of newDefinition, in hex.
func (d definition) digest() string {
	data, err := json.Marshal(d)
	if err != nil {
		return "" // cannot happen: the schemas are JSON. No accepted digest is empty.
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Endpoint returns the address of a server without what may be secret or differ from one start to
// the next: a URL without its query, a command with a digest of its arguments.
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

// canonicalJSON returns JSON with the members of objects sorted by name, without blanks, and with
// one spelling of each string. Numbers stay as written. Duplicate names stay, in order: readers
// differ in which one counts, so a change of either is a change. raw must be valid or nil; it
// returns nil for nil.
func canonicalJSON(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return canonicalValue(dec)
}

// canonicalValue returns the next value of dec in canonical form. It recurses at most
// schema.MaxDepth levels, since Decode has checked the schemas.
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
		enc.SetEscapeHTML(false) // people read it
		_ = enc.Encode(tok)
		return bytes.TrimSpace(text.Bytes())
	}
	_, _ = dec.Token() // the closing one
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
