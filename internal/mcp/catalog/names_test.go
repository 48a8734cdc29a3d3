package catalog

import (
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"testing"

	"answerd/internal/mcp/config"
)

var safeName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func TestPrefixedNameIsSafeForProviders(t *testing.T) {
	long := strings.Repeat("x", 70)
	for _, test := range []struct{ prefix, tool, want string }{
		{"", "list_files", "list_files"},
		{"fs", "list_files", "fs_list_files"},
		{"", "_private", "_private"},
		{"", "get weather", "get_weather"},
		{"", "ns.tool/v1", "ns_tool_v1"},
		{"a b", "c", "a_b_c"},
		{"", "-x-", "-x-"},
		{"", "café", "caf"},
		{"", "日本語", "tool_524f5e89"},
		{"jp", "日本語", "jp"},
		{"", long, strings.Repeat("x", 55) + "_fe6c03e8"},
		{"", strings.Repeat("x", 64), strings.Repeat("x", 64)},
	} {
		got := prefixedName(&config.Server{Name: "srv", ToolPrefix: test.prefix}, test.tool)
		if got != test.want {
			t.Errorf("prefixedName with prefix %q of %q = %q, want %q", test.prefix, test.tool, got, test.want)
		}
	}
}

// newTestCatalog returns a catalog of servers 0 to 3 without tools.
func newTestCatalog() *Catalog {
	c := New(slog.New(slog.DiscardHandler))
	c.SetServers([]int{0, 1, 2, 3}, nil, nil)
	return c
}

// namesIn sets the lists of tools of servers a, b and so on, and returns the names as
// server/tool=name.
func namesIn(c *Catalog, lists ...[]string) string {
	for i, list := range lists {
		var tools []Tool
		cfg := &config.Server{Name: string(rune('a' + i))}
		for _, n := range list {
			tools = append(tools, Tool{Original: n, Server: cfg.Name})
		}
		c.SetTools(i, cfg, tools)
	}
	var out []string
	for _, t := range c.Offered() {
		out = append(out, t.Server+"/"+t.Original+"="+t.Name)
	}
	return strings.Join(out, " ")
}

// The names do not depend on the order in which a server lists its tools.
func TestNamesOfClashingToolsDoNotDependOnTheListsOrder(t *testing.T) {
	for _, test := range []struct {
		lists [][]string
		want  string
	}{
		{[][]string{{"x"}, {"x"}, {"x"}}, "a/x=x b/x=b_x c/x=c_x"},
		{[][]string{{"x", "b_x"}, {"x"}}, "a/b_x=b_x a/x=x b/x=x_e1707ddf"},
		{[][]string{{"x.y", "x_y", "x/y"}}, "a/x_y=x_y a/x.y=x_y_7ace4eaa a/x/y=x_y_f723596c"},
		{[][]string{{"x.y"}, {"x_y"}}, "a/x.y=x_y b/x_y=b_x_y"},
	} {
		if got := namesIn(newTestCatalog(), test.lists...); got != test.want {
			t.Errorf("%v:\n got %s\nwant %s", test.lists, got, test.want)
		}
		for _, l := range test.lists {
			slices.Reverse(l)
		}
		if got := namesIn(newTestCatalog(), test.lists...); got != test.want {
			t.Errorf("%v reversed:\n got %s\nwant %s", test.lists, got, test.want)
		}
	}
}

// The order of the configuration decides who gets a name, also if the earlier server comes up late. A
// run that was offered the name finds the tool of its server under the present name, and no other.
func TestNameGoesToTheEarlierServerAndRunsKeepTheirTool(t *testing.T) {
	c := newTestCatalog()
	if got := namesIn(c, nil, []string{"search"}); got != "b/search=search" {
		t.Fatalf("names = %q, want b/search=search", got)
	}
	c.SetServers([]int{0, 1}, nil, map[int]*config.Server{0: {Name: "a"}, 1: {Name: "b"}})
	if got := namesIn(c, []string{"search"}, []string{"search"}); got != "a/search=search b/search=b_search" {
		t.Errorf("names = %q, want a/search=search b/search=b_search as after a restart", got)
	}

	for server, want := range map[string]string{"a": "search", "b": "b_search", "": "search"} {
		if got := c.NameOf(server, "search"); got != want {
			t.Errorf("NameOf(%q, search) = %q, want %q", server, got, want)
		}
	}

	if got := namesIn(c, []string{"search"}, nil); got != "a/search=search" || c.NameOf("b", "search") != "" {
		t.Errorf("names = %q and NameOf(b, search) = %q, want a/search=search and none", got, c.NameOf("b", "search"))
	}
}

// A run finds the tool that it was offered, and not another one of the server that could have had the same name. In
// another process, nobody knows any more which of them had it.
func TestNameOfDoesNotGuessBetweenToolsOfAServer(t *testing.T) {
	a := map[int]*config.Server{0: {Name: "a"}}
	offered, restarted := newTestCatalog(), newTestCatalog()
	namesIn(offered, []string{"x.y"})
	for range 20 { // the order of a map is random
		for c, want := range map[*Catalog]string{offered: "x_y_7ace4eaa", restarted: ""} {
			c.SetServers([]int{0}, nil, a)
			if names := namesIn(c, []string{"x.y", "x/y"}); names != "a/x.y=x_y_7ace4eaa a/x/y=x_y_f723596c" {
				t.Fatalf("names = %q, want digests in both", names)
			}
			if got := c.NameOf("a", "x_y"); got != want {
				t.Fatalf("NameOf(a, x_y) = %q, want %q", got, want)
			}
		}
	}
	if namesIn(offered, []string{"x/y"}); offered.NameOf("a", "x_y") != "" {
		t.Errorf("NameOf(a, x_y) = %q without the tool that was offered, want none", offered.NameOf("a", "x_y"))
	}
}

// A later server does not get a name that the configuration of an earlier one speaks of, although that
// one was never listed.
func TestNameIsReservedForAServerThatWasNeverUp(t *testing.T) {
	c := newTestCatalog()
	allowed := []string{"search"}
	c.SetServers([]int{0, 1}, nil, map[int]*config.Server{0: {Name: "a", AllowTools: allowed}, 1: {Name: "b", AllowTools: allowed}})
	c.SetTools(1, &config.Server{Name: "b"}, []Tool{{Original: "search", Server: "b"}, {Original: "add", Server: "b"}})
	var got []string
	for _, tool := range c.Offered() {
		got = append(got, tool.Name)
	}
	if names := strings.Join(got, " "); names != "add b_search" {
		t.Errorf("names = %q, want add b_search", names)
	}
	if _, ok := c.Resolve("b_add"); !ok {
		t.Error("Resolve(b_add) = none, want the tool add of b")
	}
}

// The names that a server listed in an earlier process stay with it until it is listed: those that its
// configuration still allows, and no longer than that.
func TestNameIsReservedForAToolOfAnEarlierProcess(t *testing.T) {
	for name, c := range map[string]struct {
		earlier config.Server
		listed  []Tool // by the earlier server; nil: it is down
		want    string
	}{
		"down":                {config.Server{Name: "a"}, nil, "add b_search"},
		"denied meanwhile":    {config.Server{Name: "a", DenyTools: []string{"search"}}, nil, "add search"},
		"prefixed meanwhile":  {config.Server{Name: "a", ToolPrefix: "x"}, nil, "add search"},
		"disabled":            {config.Server{Name: "a", Disabled: true}, nil, "add search"},
		"pinned meanwhile":    {config.Server{Name: "a", Pin: true}, nil, "add search"},
		"nobody signed in":    {config.Server{Name: "a", Auth: config.AuthAuthorizationCode}, []Tool{{Original: "sign_in", Server: "a", SignsIn: true}}, "sign_in add b_search"},
		"listed without it":   {config.Server{Name: "a"}, []Tool{{Original: "other", Server: "a"}}, "other add search"},
		"listed, and with it": {config.Server{Name: "a"}, []Tool{{Original: "search", Server: "a"}}, "search add b_search"},
	} {
		catalog, servers := newTestCatalog(), []config.Server{c.earlier, {Name: "b"}}
		catalog.ExpectTools("a", []string{"search"})
		catalog.SetServers([]int{0, 1}, nil, map[int]*config.Server{0: &servers[0], 1: &servers[1]})
		catalog.SetTools(1, &servers[1], []Tool{{Original: "search", Server: "b"}, {Original: "add", Server: "b"}})
		if c.listed != nil {
			catalog.SetTools(0, &servers[0], c.listed)
		}

		var got []string
		for _, tool := range catalog.Offered() {
			got = append(got, tool.Name)
		}

		if names := strings.Join(got, " "); names != c.want {
			t.Errorf("%s: names = %q, want %q", name, names, c.want)
		}
	}
}

func TestNameThatWasNotOfferedIsNotReserved(t *testing.T) {
	c := newTestCatalog()
	c.SetTools(1, &config.Server{Name: "b"}, []Tool{{Original: "search", Server: "b"}})
	if _, ok := c.Resolve("search"); !ok {
		t.Error("Resolve(search) = not found, want the tool of b")
	}
	if got := namesIn(c, []string{"search"}, []string{"search"}); got != "a/search=search b/search=b_search" {
		t.Errorf("names = %q, want a/search=search b/search=b_search", got)
	}
}

// Globs match a tool's own name and the names that it may be offered under.
func TestAllowAndDenyListsMatchAllNamesOfATool(t *testing.T) {
	all := []string{"get_a", "get_b", "set_a"}
	for _, test := range []struct {
		allow, deny []string
		want        string
	}{
		{nil, nil, "get_a get_b set_a"},
		{[]string{"get_*"}, nil, "get_a get_b"},
		{nil, []string{"*_a"}, "get_b"},
		{[]string{"get_*"}, []string{"p_get_a"}, "get_b"},
		{[]string{"p_set_?"}, nil, "set_a"},
		{[]string{"srv_set_a"}, nil, "set_a"},
		{[]string{"nothing"}, nil, ""},
	} {
		cfg := &config.Server{Name: "srv", ToolPrefix: "p", AllowTools: test.allow, DenyTools: test.deny}
		var got []string
		for _, n := range all {
			if isAllowed(cfg, n) {
				got = append(got, n)
			}
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("tools with allow %v and deny %v = %q, want %q", test.allow, test.deny, s, test.want)
		}
	}
}

// Every tool gets a safe, unique name that resolves to it.
func FuzzNames(f *testing.F) {
	f.Add("fs", "list files", "list.files", "日本語")
	f.Add("", strings.Repeat("x", 80), strings.Repeat("x", 81), "tool")
	f.Add("_", "_", "__", "")
	f.Fuzz(func(t *testing.T, prefix, x, y, z string) {
		c := newTestCatalog()
		want := 0
		for i, name := range []string{"a", "b b"} {
			cfg := &config.Server{Name: name, ToolPrefix: prefix}
			var tools []Tool
			for _, o := range slices.Compact(slices.Sorted(slices.Values([]string{x, y, z, "b_b_" + x}))) {
				tools = append(tools, Tool{Original: o, Server: name})
			}
			want += c.SetTools(i, cfg, tools)
		}
		list := c.Offered()
		seen := map[string]bool{}
		for _, tool := range list {
			b, ok := c.Resolve(tool.Name)
			if !safeName.MatchString(tool.Name) || seen[tool.Name] || !ok || b.Server != tool.Server || b.Original != tool.Original {
				t.Errorf("Resolve(%q) = %v, %v, want %q of %s, and the name safe and unique", tool.Name, b, ok, tool.Original, tool.Server)
			}
			seen[tool.Name] = true
		}
		if len(list) != want {
			t.Errorf("Offered() has %d tools, want %d", len(list), want)
		}
	})
}

func TestAliasOfSeveralToolsIsTheFirstOnes(t *testing.T) {
	for range 20 { // the order of a map must not decide
		c := newTestCatalog()
		namesIn(c, []string{"b_c", "x/y", "x_y"}, nil, nil)
		c.SetTools(1, &config.Server{Name: "a_b"}, []Tool{{Original: "c", Server: "a_b"}})
		for alias, want := range map[string]string{"a_b_c": "b_c", "a_x_y": "x_y"} {
			if got, _ := c.Resolve(alias); got.Server != "a" || got.Original != want {
				t.Fatalf("Resolve(%q) = %s of server %s, want %s of server a", alias, got.Original, got.Server, want)
			}
		}
	}
}
