package supply

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// module is a Go module that is linked into the binary.
type module struct {
	Path, Version, Dir string
	licences           []string // SPDX identifiers, in alphabetical order
}

// linkedModules returns the modules that are linked into cmd/server, without ours, by path.
func linkedModules(t *testing.T) (all []module) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=Module", "answerd/cmd/server")
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0") // the platform of the image, not of this machine
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("list the packages of the binary: %v", err)
	}
	for dec := json.NewDecoder(bytes.NewReader(list)); ; {
		var p struct{ Module *module }
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("read the list of packages: %v", err)
		}
		if p.Module != nil && p.Module.Version != "" { // neither the standard library nor ours
			all = append(all, *p.Module)
		}
	}
	slices.SortFunc(all, func(a, b module) int { return strings.Compare(a.Path, b.Path) })
	all = slices.CompactFunc(all, func(a, b module) bool { return a.Path == b.Path })
	for i := range all {
		if all[i].licences, err = readLicences(all[i].Dir); err != nil {
			t.Fatalf("%s: %v", all[i].Path, err)
		}
	}
	return all
}
