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

// definition is the part of a tool that the operator of a pinned server accepts: everything that a model sees or that
// affects calls, and the server's endpoint. If any of it changes, the tool is blocked until the operator accepts the
// new definition.
type definition struct {
	Name         string          `json:"name"` // on the server
	Title        string          `json:"title,omitempty"`
	Description  string          `json:"description,omitempty"`
	InputSchema  json.RawMessage `json:"input_schema"`
	OutputSchema json.RawMessage `json:"output_schema,omitempty"`
	Annotations  *Annotations    `json:"annotations,omitempty"`
	Endpoint     string          `json:"endpoint"`
}

// newDefinition returns a tool's definition. The schemas are in canonical form, so they do not depend on the order and
// spacing of the server's JSON.
func newDefinition(cfg *config.Server, t Tool) definition {
	return definition{
		Name: t.Original, Title: t.Title, Description: t.Description,
		InputSchema: canonicalJSON(t.InputSchema), OutputSchema: canonicalJSON(t.OutputSchema),
		Annotations: t.Annotations, Endpoint: Endpoint(cfg),
	}
}

// digest returns the SHA-256 of the definition's JSON, in hex. d must come from newDefinition, whose form is canonical.
func (d definition) digest() string {
	data, err := json.Marshal(d)
	if err != nil {
		return "" // cannot happen, because the schemas are JSON; and "" is never an accepted digest
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Endpoint describes where a server is, for the operator and for comparisons. It returns the URL without user and
// query, or the command with a digest of its arguments, because the query and the arguments may be secret.
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

// canonicalJSON returns raw in a form that does not depend on the order of members, on white space, or on how strings
// are escaped. Numbers keep their spelling. If several members have the same name, all are kept in their order:
// programs differ in which one they use, so changing any of them is a change. raw must be valid JSON or nil. For nil,
// the result is nil.
func canonicalJSON(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return nil
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	return canonicalValue(dec)
}

// canonicalValue reads the next value from dec and returns it in canonical form. Its recursion is limited, because
// Decode has checked schema.MaxDepth.
func canonicalValue(dec *json.Decoder) json.RawMessage {
	token, err := dec.Token()
	if err != nil {
		return json.RawMessage("null") // cannot happen: the JSON is valid
	}
	switch token {
	case json.Delim('{'):
		return canonicalObject(dec)
	case json.Delim('['):
		var elements [][]byte
		for dec.More() {
			elements = append(elements, canonicalValue(dec))
		}
		_, _ = dec.Token() // the closing bracket
		return slices.Concat([]byte("["), bytes.Join(elements, []byte(",")), []byte("]"))
	}
	var text bytes.Buffer // for a string, number, true, false or null
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false) // operators read the text
	_ = enc.Encode(token)
	return bytes.TrimSpace(text.Bytes())
}

// canonicalObject reads the rest of an object whose opening brace has been read from dec. It returns the object with
// its members sorted by name.
func canonicalObject(dec *json.Decoder) json.RawMessage {
	type member struct{ name, value []byte }
	var members []member
	for dec.More() {
		name := canonicalValue(dec)
		members = append(members, member{name: name, value: canonicalValue(dec)})
	}
	_, _ = dec.Token() // the closing brace
	slices.SortStableFunc(members, func(a, b member) int { return bytes.Compare(a.name, b.name) })
	texts := make([][]byte, len(members))
	for i, m := range members {
		texts[i] = slices.Concat(m.name, []byte(":"), m.value)
	}
	return slices.Concat([]byte("{"), bytes.Join(texts, []byte(",")), []byte("}"))
}
