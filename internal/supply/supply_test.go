// Package supply lists the modules that are linked into the answerd binary, and checks that
// each of their licences is permissive. It has tests only; they write the table of
// docs/licences.md, a bill of materials (CycloneDX 1.6) and a file with all licence texts:
//
//	go test ./internal/supply -update
//	go test ./internal/supply -sbom /tmp/answerd.cdx.json -version v1.2.3
//	go test ./internal/supply -run Notices -notices /tmp/THIRD_PARTY_NOTICES
package supply

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var (
	update  = flag.Bool("update", false, "write docs/licences.md")
	sbom    = flag.String("sbom", "", "the absolute path of the file to write the bill of materials to")
	notices = flag.String("notices", "", "the absolute path of the file to write the licence texts to")
	version = flag.String("version", "v1.2.3", "the version of answerd in the bill of materials")
)

// permissive lists the licences that a linked module may have.
var permissive = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "UPL-1.0"}

func TestModulesHaveListedPermissiveLicences(t *testing.T) {
	modules := linkedModules(t)
	if len(modules) < 20 {
		t.Fatalf("got %d modules, want at least 20", len(modules))
	}

	for _, m := range modules {
		for _, id := range m.licences {
			if !slices.Contains(permissive, id) {
				t.Errorf("%s has the licence %s, want one of %v", m.Path, id, permissive)
			}
		}
	}

	const page = "../../docs/licences.md"
	want := licencesPage(modules)
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("%s differs from the linked modules (%v); run make licences: got\n%s\nwant\n%s", page, err, got, want)
	}
}

func TestBOMNamesEveryModule(t *testing.T) {
	modules := linkedModules(t)
	file, err := newBOM(*version, modules).encode()
	if err != nil {
		t.Fatal(err)
	}
	var b bom
	if err := json.Unmarshal(file, &b); err != nil {
		t.Fatal(err)
	}
	if len(b.Parts) != len(modules) || b.Format != "CycloneDX" || b.Metadata.Component.URL != "pkg:golang/answerd@"+*version {
		t.Errorf("got %d components and %+v, want %d components of answerd %s", len(b.Parts), b.Metadata, len(modules), *version)
	}

	for i, m := range modules {
		if c := b.Parts[i]; c.URL != "pkg:golang/"+m.Path+"@"+m.Version || len(c.Licenses) == 0 {
			t.Errorf("got component %+v, want %s@%s with a licence", c, m.Path, m.Version)
		}
	}

	if *sbom != "" && !t.Failed() {
		if err := os.WriteFile(*sbom, file, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Most licences require that their text comes with the binary, and Apache-2.0 (section 4d) that NOTICE files do.
func TestNoticesHaveTheTextsOfEveryModule(t *testing.T) {
	modules := linkedModules(t)
	text, err := noticesOf(modules)
	if err != nil {
		t.Fatal(err)
	}

	for _, m := range modules {
		if !strings.Contains(text, "\n"+m.Path+" "+m.Version+"\n") {
			t.Errorf("the notices lack %s, want its licence", m.Path)
		}
	}

	for _, want := range []string{"Apache License", "Permission is hereby granted", "Redistributions in binary form", "The Go Authors"} {
		if !strings.Contains(text, want) {
			t.Errorf("got notices without %q, want it", want)
		}
	}

	if *notices != "" && !t.Failed() {
		if err := os.WriteFile(*notices, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
