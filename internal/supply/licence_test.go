package supply

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// licencePatterns match a sentence of each licence, by SPDX identifier. They are applied to
// text whose white space is reduced to single spaces.
var licencePatterns = map[string]*regexp.Regexp{
	"Apache-2.0":   regexp.MustCompile(`Apache License,? Version 2\.0`),
	"MIT":          regexp.MustCompile(`Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation`),
	"ISC":          regexp.MustCompile(`Permission to use, copy, modify, and(/or)? distribute this software`),
	"BSD-2-Clause": regexp.MustCompile(`Redistributions in binary form must reproduce`),
	"BSD-3-Clause": regexp.MustCompile(`(Neither the name|The name|names) of .{1,200} (may|be used) (not )?(be used )?to endorse or promote`),
	"UPL-1.0":      regexp.MustCompile(`Universal Permissive License`),
	"MPL-2.0":      regexp.MustCompile(`Mozilla Public License,? (v\. |Version )?2\.0`),
	"GPL":          regexp.MustCompile(`GNU (Lesser |Affero )?General Public License`),
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying)`)

// readLicences returns the SPDX identifiers of the licence files in a module's directory.
func readLicences(dir string) (ids []string, _ error) {
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("find licences: %w", err)
	}
	for _, file := range files {
		if file.IsDir() || !licenceFile.MatchString(file.Name()) {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, file.Name()))
		if err != nil {
			return nil, fmt.Errorf("read a licence: %w", err)
		}
		text := strings.Join(strings.Fields(string(data)), " ")
		for id, pattern := range licencePatterns {
			if pattern.MatchString(text) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	ids = slices.Compact(ids)
	if slices.Contains(ids, "BSD-3-Clause") { // its text contains that of BSD-2-Clause
		ids = slices.DeleteFunc(ids, func(id string) bool { return id == "BSD-2-Clause" })
	}
	if len(ids) == 0 {
		return nil, errors.New("no known licence")
	}
	return ids, nil
}

var noticeFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice)`)

// noticesOf returns the licence and notice files of Go's standard library and of the modules.
func noticesOf(modules []module) (string, error) {
	var b strings.Builder
	b.WriteString("answerd is under the Apache License 2.0. Its binary contains these modules under these licences.\n")
	goroot, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find Go's licence: %w", err)
	}
	standard := module{Path: "Go standard library", Version: runtime.Version(), Dir: strings.TrimSpace(string(goroot))}
	for _, m := range append([]module{standard}, modules...) {
		fmt.Fprintf(&b, "\n%s\n%s %s\n", strings.Repeat("=", 80), m.Path, m.Version)
		files, err := os.ReadDir(m.Dir)
		if err != nil {
			return "", fmt.Errorf("find the licences of %s: %w", m.Path, err)
		}
		for _, file := range files {
			if file.IsDir() || !noticeFile.MatchString(file.Name()) {
				continue
			}
			text, err := os.ReadFile(filepath.Join(m.Dir, file.Name()))
			if err != nil {
				return "", fmt.Errorf("read a licence of %s: %w", m.Path, err)
			}
			fmt.Fprintf(&b, "\n%s\n\n%s\n", file.Name(), strings.TrimSpace(string(text)))
		}
	}
	return b.String(), nil
}

// licencesPage returns the text of docs/licences.md.
func licencesPage(modules []module) string {
	var b strings.Builder
	b.WriteString("# Licences\n\n" +
		"answerd is under the Apache License 2.0 (`LICENSE`). These modules are linked into its binary; a module with more than one licence\n" +
		"holds parts under each. `make licences` renews this page, and a test fails when a module joins under a licence that is not\n" +
		"permissive.\n\n| module | licence |\n|---|---|\n")
	for _, m := range modules {
		fmt.Fprintf(&b, "| %s | %s |\n", m.Path, strings.Join(m.licences, ", "))
	}
	return b.String()
}

func TestReadLicencesKnowsTheirText(t *testing.T) {
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
		got, err := readLicences(dir)
		if strings.Join(got, " ") != want || (err != nil) != (want == "") {
			t.Errorf("readLicences(%q) = %v, %v, want %q", text, got, err, want)
		}
	}
}
