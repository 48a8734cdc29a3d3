package importtest

import (
	"go/ast"
	"go/build"
	"go/types"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestReferenceCyclesAreSmall bounds how many files of a package are in one cycle: each uses an identifier that the
// next one declares. Files that are in no cycle can be read and changed without the files that use them.
func TestReferenceCyclesAreSmall(t *testing.T) {
	c := &checker{files: make(map[string][]*ast.File), checked: make(map[string]*types.Package), uses: make(map[string]map[*ast.Ident]types.Object)}
	for _, dir := range []string{"bench", "cmd", "internal"} {
		eachFile(t, dir, func(name string, file *ast.File) {
			// Of two files for different systems only one counts.
			if built, err := build.Default.MatchFile(filepath.Dir(name), filepath.Base(name)); strings.HasSuffix(name, "_test.go") || err != nil || !built {
				return
			}
			rel, err := filepath.Rel(root, filepath.Dir(name))
			if err != nil {
				t.Fatal(err)
			}
			of := "answerd/" + filepath.ToSlash(rel)
			c.files[of] = append(c.files[of], file)
		})
	}
	for of, files := range c.files {
		if cycle := largestCycle(c.references(of)); len(cycle) > 1 && len(cycle) > len(files)/2 {
			slices.Sort(cycle)
			t.Errorf("%s: got a reference cycle over %d of %d files, want at most half of them: %s", of, len(cycle), len(files), strings.Join(cycle, ", "))
		}
	}
}

// checker finds out what the identifiers of our packages mean. It knows nothing of other modules and of the standard
// library, so it does not see a field or a method of what their generic functions return.
type checker struct {
	files   map[string][]*ast.File // by import path
	checked map[string]*types.Package
	uses    map[string]map[*ast.Ident]types.Object
}

// Import implements types.Importer.
func (c *checker) Import(of string) (*types.Package, error) {
	if p := c.checked[of]; p != nil {
		return p, nil
	}
	files := c.files[of]
	if files == nil {
		p := types.NewPackage(of, path.Base(of))
		p.MarkComplete()
		c.checked[of] = p
		return p, nil
	}
	uses := make(map[*ast.Ident]types.Object)
	conf := types.Config{Importer: c, Error: func(error) {}} // the compiler reports the errors that count
	p, _ := conf.Check(of, fileSet, files, &types.Info{Uses: uses})
	c.checked[of], c.uses[of] = p, uses
	return p, nil
}

// references returns which files of a package use identifiers of which others.
func (c *checker) references(of string) map[string][]string {
	p, _ := c.Import(of)
	to := make(map[string][]string)
	for id, object := range c.uses[of] {
		if object.Pkg() != p || !object.Pos().IsValid() {
			continue
		}
		if _, imported := object.(*types.PkgName); imported {
			continue
		}
		from, declared := filepath.Base(fileSet.Position(id.Pos()).Filename), filepath.Base(fileSet.Position(object.Pos()).Filename)
		if from != declared && !slices.Contains(to[from], declared) {
			to[from] = append(to[from], declared)
		}
	}
	return to
}

// largestCycle returns the largest set of nodes of which each can be reached from each, by Tarjan's algorithm.
func largestCycle(to map[string][]string) (largest []string) {
	number, low, onStack := make(map[string]int), make(map[string]int), make(map[string]bool)
	var stack []string
	var visit func(node string)
	visit = func(node string) {
		number[node] = len(number) + 1
		low[node] = number[node]
		stack, onStack[node] = append(stack, node), true
		for _, next := range to[node] {
			if number[next] == 0 {
				visit(next)
				low[node] = min(low[node], low[next])
			} else if onStack[next] {
				low[node] = min(low[node], number[next])
			}
		}
		if low[node] < number[node] {
			return
		}
		first := slices.Index(stack, node)
		component := slices.Clone(stack[first:])
		stack = stack[:first]
		for _, member := range component {
			onStack[member] = false
		}
		if len(component) > len(largest) {
			largest = component
		}
	}

	for node := range to {
		if number[node] == 0 {
			visit(node)
		}
	}
	return largest
}
