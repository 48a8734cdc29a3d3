package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "renew docs/licences.md")

// permissive are the licences under which a module may be linked in.
var permissive = []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "UPL-1.0"}

func TestEveryModuleIsPermissivelyLicensedAndListed(t *testing.T) {
	modules, err := linked(t.Context())
	if err != nil {
		t.Fatal(err)
	}
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
	var want bytes.Buffer
	if err := run(t.Context(), []string{"licences"}, &want); err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(page, want.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s is not what is linked (%v): make licences", page, err)
	}
}

func TestLicencesAreKnownByTheirText(t *testing.T) {
	for want, text := range map[string]string{
		"MIT":          "Permission is hereby granted, free of\n charge, to any person obtaining a copy of this software and associated documentation files",
		"BSD-2-Clause": "Redistributions in binary form must reproduce the above copyright notice",
		"BSD-3-Clause": "Redistributions in binary form must reproduce … Neither the name of Google Inc. nor the names of its contributors may be used to endorse or promote products",
		"GPL":          "GNU AFFERO GENERAL PUBLIC LICENSE … the GNU Affero General Public License",
		"":             "All rights reserved.",
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "LICENSE.txt"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := licencesIn(dir)
		if strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("%q is %v, %v", want, got, err)
		}
	}
}

func TestTheBillOfMaterialsNamesEveryModule(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"sbom", "v1.2.3"}, &out); err != nil {
		t.Fatal(err)
	}
	var b bom
	if err := json.Unmarshal(out.Bytes(), &b); err != nil {
		t.Fatal(err)
	}
	modules, err := linked(t.Context())
	if err != nil || len(b.Parts) != len(modules) || b.Format != "CycloneDX" || b.Metadata.Component.URL != "pkg:golang/answerd@v1.2.3" {
		t.Errorf("%d of %d modules, %+v, %v", len(b.Parts), len(modules), b.Metadata, err)
	}
	for i, m := range modules {
		if c := b.Parts[i]; c.URL != "pkg:golang/"+m.Path+"@"+m.Version || len(c.Licenses) == 0 {
			t.Errorf("%+v", c)
		}
	}
}
