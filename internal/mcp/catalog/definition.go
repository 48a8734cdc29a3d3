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

// definition is what the operator of a pinned server accepts: all of a tool that
// reaches a model or a decision, and where it is reached.
type definition struct {
	Name         string          `json:"name"` // the server's own
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  *Annotations    `json:"annotations,omitempty"`
	Endpoint     string          `json:"endpoint"`
}

// newDefinition is the definition of a server's tool in its canonical form, which is the same
// however the server orders and spaces its JSON.
func newDefinition(cfg *config.Server, t Tool) definition {
	return definition{
		Name: t.Original, Title: t.Title, Description: t.Description,
		InputSchema: canonicalJSON(t.InputSchema), OutputSchema: canonicalJSON(t.OutputSchema),
		Annotations: t.Annotations, Endpoint: Endpoint(cfg),
	}
}

// digest is the SHA-256 of a definition that define made, in hex.
func (d definition) digest() string {
	data, err := json.Marshal(d)
	if err != nil {
		return "" // can't be: the schemas are JSON; and nothing is accepted with it
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Endpoint is where a server is, without what may be secret or change from one start
// to the next: a URL's query, and the arguments of a command, of which the digest
// stands for them.
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
		return cfg.Type // can't be: the configuration was checked
	}
	return u.Scheme + "://" + u.Host + u.EscapedPath()
}

// canonicalJSON is JSON with the members of its objects in the order of their names,
// without blanks, and with one spelling of each string. Numbers stay as written. A
// name that occurs twice stays twice, in order: which of them a reader takes is his
// own affair, so a change of either is a change. raw must be valid; nil stays nil.
func canonicalJSON(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return canonicalValue(dec)
}

// canonicalValue reads one value. It recurses no deeper than schema.MaxDepth, which schemas
// were checked for.
func canonicalValue(dec *json.Decoder) json.RawMessage {
	tok, err := dec.Token()
	if err != nil {
		return json.RawMessage("null") // can't be: the JSON is valid
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
