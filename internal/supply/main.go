// Command supply says what the answerd binary is made of, from the modules that its
// packages come from: a bill of materials (CycloneDX 1.6), or the table of docs/licences.md.
// A test holds that table, and that every licence is one of those that we may link.
//
//	go run ./internal/supply sbom v1.2.3 > answerd.cdx.json
//	go run ./internal/supply licences > docs/licences.md
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "supply:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	modules, err := linked(ctx)
	if err != nil {
		return err
	}
	switch {
	case len(args) == 2 && args[0] == "sbom":
		return writeSBOM(out, args[1], modules)
	case len(args) == 1 && args[0] == "licences":
		return writeLicences(out, modules)
	}
	return errors.New("sbom VERSION, or licences")
}

// module is a module that packages of the binary come from.
type module struct {
	Path, Version, Dir string
	licences           []string // SPDX identifiers, in alphabetical order
}

// linked are the modules that are linked into cmd/server, ours left out, in order.
func linked(ctx context.Context) ([]module, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-json=Module", "answerd/cmd/server")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0") // as the image is built, wherever we are
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of the binary: %w", err)
	}
	var all []module
	for dec := json.NewDecoder(strings.NewReader(string(list))); ; {
		var p struct{ Module *module }
		if err := dec.Decode(&p); err == io.EOF {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read the list of packages: %w", err)
		}
		if p.Module != nil && p.Module.Version != "" { // neither the standard library nor ours
			all = append(all, *p.Module)
		}
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	all = slices.CompactFunc(all, func(a, b module) bool { return a.Path == b.Path })
	for i := range all {
		if all[i].licences, err = licencesIn(all[i].Dir); err != nil {
			return nil, fmt.Errorf("%s: %w", all[i].Path, err)
		}
	}
	return all, nil
}
