package supply

import (
	"bytes"
	"encoding/json"
)

// bom is a bill of materials in CycloneDX 1.6, with the members that we set. It has neither a
// time nor a serial number, so that the same modules give the same bytes.
type bom struct {
	Format   string      `json:"bomFormat"`
	Spec     string      `json:"specVersion"`
	Version  int         `json:"version"`
	Metadata metadata    `json:"metadata"`
	Parts    []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type     string    `json:"type"`
	Name     string    `json:"name"`
	Version  string    `json:"version"`
	Ref      string    `json:"bom-ref"`
	URL      string    `json:"purl"`
	Licenses []license `json:"licenses,omitempty"`
}

type license struct {
	License struct {
		ID string `json:"id"`
	} `json:"license"`
}

// newComponent returns a component for a Go module, with its package URL.
func newComponent(kind, path, version string, licences []string) component {
	url := "pkg:golang/" + path + "@" + version
	c := component{Type: kind, Name: path, Version: version, Ref: url, URL: url}
	for _, id := range licences {
		var l license
		l.License.ID = id
		c.Licenses = append(c.Licenses, l)
	}
	return c
}

// newBOM returns the bill of materials of a version of answerd.
func newBOM(version string, modules []module) bom {
	b := bom{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{newComponent("application", "answerd", version, []string{"Apache-2.0"})}}
	for _, m := range modules {
		b.Parts = append(b.Parts, newComponent("library", m.Path, m.Version, m.licences))
	}
	return b
}

// encode returns b as indented JSON.
func (b bom) encode() ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetIndent("", "  ")
	err := e.Encode(b)
	return out.Bytes(), err
}
