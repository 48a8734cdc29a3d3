// Package supply says what the answerd binary is made of, from the modules that its
// packages come from, and holds that every licence is one of those that we may link. It
// has tests only; they write the table of docs/licences.md and a bill of materials
// (CycloneDX 1.6):
//
//	go test ./internal/supply -update
//	go test ./internal/supply -sbom /tmp/answerd.cdx.json -version v1.2.3
package supply

import (
	"encoding/json"
	"flag"
	"os"
	"slices"
	"testing"
)

var (
	update  = flag.Bool("update", false, "renew docs/licences.md")
	sbom    = flag.String("sbom", "", "the file that the bill of materials goes to, by its whole path")
	version = flag.String("version", "v1.2.3", "the version of answerd that the bill of materials is of")
)

// permissive are the licences under which a module may be linked in.
var permissive = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "UPL-1.0"}

func TestEveryModuleIsPermissivelyLicensedAndListed(t *testing.T) {
	modules := linked(t)
	if len(modules) < 20 {
		t.Fatalf("only %d modules: nothing was proved", len(modules))
	}
	for _, m := range modules {
		for _, id := range m.licences {
			if !slices.Contains(permissive, id) {
				t.Errorf("%s is under %s", m.Path, id)
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
		t.Errorf("%s is not what is linked (%v): make licences", page, err)
	}
}

func TestTheBillOfMaterialsNamesEveryModule(t *testing.T) {
	modules := linked(t)
	file, err := newBOM(*version, modules).bytes()
	if err != nil {
		t.Fatal(err)
	}
	var b bom
	if err := json.Unmarshal(file, &b); err != nil {
		t.Fatal(err)
	}
	if len(b.Parts) != len(modules) || b.Format != "CycloneDX" || b.Metadata.Component.URL != "pkg:golang/answerd@"+*version {
		t.Errorf("%d of %d modules, %+v", len(b.Parts), len(modules), b.Metadata)
	}
	for i, m := range modules {
		if c := b.Parts[i]; c.URL != "pkg:golang/"+m.Path+"@"+m.Version || len(c.Licenses) == 0 {
			t.Errorf("%+v", c)
		}
	}
	if *sbom != "" && !t.Failed() {
		if err := os.WriteFile(*sbom, file, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
