package mcp

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"answerd/internal/auth"
	"answerd/internal/mcp/config"
)

// instructionsOf returns the instructions that a question of who would get from server a.
func instructionsOf(t *testing.T, c *Client, who auth.Identity) string {
	t.Helper()
	c.ToolsFor(t.Context(), who)
	all := c.InstructionsFor(t.Context(), who, func(string) bool { return true })
	if len(all) == 0 {
		return ""
	}
	if len(all) != 1 || all[0].Server != "a" {
		t.Fatalf("got %+v, want those of server a alone", all)
	}
	return all[0].Text
}

func TestInstructionsAreReadOverEveryTransport(t *testing.T) {
	for name, cfg := range everyTransport {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg.Instructions = true
			c := newClient(t, Options{}, serveOver(t, cfg, newServerWithInstructions("Ask me over pipes.", nil)))
			if got := instructionsOf(t, c, auth.Identity{}); got != "Ask me over pipes." || c.Servers()[0].Protocol != cfg.ProtocolVersion {
				t.Errorf("got %q over %s, want the server's instructions over %s", got, c.Servers()[0].Protocol, cfg.ProtocolVersion)
			}
		})
	}
}

func TestInstructionsAreUsedOnlyIfConfigured(t *testing.T) {
	c := newClient(t, Options{}, serveOver(t, config.Server{}, newServerWithInstructions("Obey me.", nil)))
	if got := instructionsOf(t, c, auth.Identity{}); got != "" {
		t.Errorf("got %q, want none without the setting", got)
	}
	c = newClient(t, Options{}, serveOver(t, config.Server{Instructions: true}, newServerWithInstructions("Obey me.", nil)))
	c.Tools(t.Context())
	if got := c.InstructionsFor(t.Context(), auth.Identity{}, func(string) bool { return false }); got != nil {
		t.Errorf("got %+v, want none of a server that is not used", got)
	}
}

// A server that comes back with other instructions is listened to; while it is away, the last ones
// stay, as its tools do.
func TestInstructionsChangeWithTheSession(t *testing.T) {
	f := newRestartableServer(t, refusals["go-sdk 404 text"], func(*sdk.Server) {})
	setInstructions := func(text string) {
		for s := range f.mcp.Sessions() {
			_ = s.Close()
		}
		f.mcp = sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, &sdk.ServerOptions{
			Instructions: text, GetSessionID: func() string { return fmt.Sprintf("%s%d", f.prefix(), f.ids.Add(1)) },
		})
		addMetaTool(f.mcp)
		f.restart()
	}

	setInstructions("I am old.")
	w := serveHTTP(t, f)
	c := newClient(t, Options{}, config.Server{Name: "a", URL: w.URL, Instructions: true, ProtocolVersion: "2025-11-25"})
	if got := instructionsOf(t, c, auth.Identity{}); got != "I am old." {
		t.Errorf("got %q, want those of the first session", got)
	}
	setInstructions("I am new.")
	res, err := c.Call(t.Context(), Call{Tool: "meta"}) // finds the session lost
	mustResult(t, res, err)
	if err := c.Refresh(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if got := instructionsOf(t, c, auth.Identity{}); got != "I am new." {
		t.Errorf("got %q, want those of the new session", got)
	}
	w.CloseClientConnections()
	w.Close()
	if err := c.Refresh(t.Context(), "a"); err == nil {
		t.Fatal("got no error from a server that is away")
	}
	if got := instructionsOf(t, c, auth.Identity{}); got != "I am new." {
		t.Errorf("got %q of a server that is away, want the last ones", got)
	}
}

// Callers do not share sessions, and do not share instructions.
func TestInstructionsAreThoseOfTheCallersSession(t *testing.T) {
	i := newIAM(t)
	g := newProtectedServer(t, i, "")
	cfg := i.serverConfig("a", g.URL, config.AuthExchange)
	cfg.Instructions = true
	c := newClient(t, Options{}, cfg)
	for _, name := range []string{"ann", "bob", "ann"} {
		who := auth.Identity{Issuer: "https://iam", Subject: name, Token: auth.NewSecret("inbound-" + name)}
		if got, want := instructionsOf(t, c, who), "You are "+name+"."; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := instructionsOf(t, c, auth.Identity{}); got != "" {
		t.Errorf("got %q for a caller without a token, want none", got)
	}
}

func TestInstructionsAreCutAndEscaped(t *testing.T) {
	for text, want := range map[string]string{
		" a\r\n\tb \n":                 "a\n\tb",
		"a\x00b\x1b[2J\rc":             `a\x00b\x1b[2J\rc`,
		"to \u202eevil\u2069":          `to \u202eevil\u2069`,
		"\U000e0041hidden\u200b\ufeff": `\U000e0041hidden\u200b\ufeff`,
		"a\u2028b":                     `a\u2028b`,
		"\xff":                         "\uFFFD",
		"Größe 🙂":                      "Größe 🙂",
	} {
		if got := cleanInstructions(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	for _, c := range []string{"x", "ü", "🙂", "\u202e"} {
		got := cleanInstructions(strings.Repeat(c, 5000))
		if len(got) > 4096 || len(got) < 4096-len(`\u202e`) || !utf8.ValidString(got) || strings.HasSuffix(got, `\u202`) {
			t.Errorf("%q: got %d bytes that end with %q, want at most 4096 and a whole character", c, len(got), got[len(got)-8:])
		}
	}
}
