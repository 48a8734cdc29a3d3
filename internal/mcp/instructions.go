package mcp

import (
	"context"
	"strconv"
	"strings"
	"unicode"

	"answerd/internal/auth"
)

// maxInstructions bounds the instructions of one server, in bytes.
const maxInstructions = 4 << 10

// Instructions are what a server says about its own use (MCP lifecycle, InitializeResult).
type Instructions struct {
	Server string // its configured name
	// Text is from the server and must not be trusted. It has at most 4 KiB. Characters that could
	// hide or reorder text are escaped; line feeds and tabs are kept.
	Text string
}

// InstructionsFor returns the instructions of the servers that isUsed selects by name and whose
// configuration gives them to the model, in the configuration's order. They are those of the session
// whose tools were listed last. For a server that is used on behalf of its callers they are those of
// a session of the user, which InstructionsFor makes if there is none, as ToolsFor does.
func (c *Client) InstructionsFor(ctx context.Context, user auth.Identity, isUsed func(server string) bool) []Instructions {
	var out []Instructions
	for _, s := range c.allServers() {
		if !s.cfg.Instructions || !s.isLive() || !isUsed(s.cfg.Name) {
			continue
		}
		if text := cleanInstructions(s.instructionsFor(ctx, user)); text != "" {
			out = append(out, Instructions{s.cfg.Name, text})
		}
	}
	return out
}

// instructionsFor returns the instructions as the server sent them, or "".
func (s *server) instructionsFor(ctx context.Context, user auth.Identity) string {
	if s.callers == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.instructions
	}
	// Callers do not share sessions, and the text may be about the caller.
	t, failure := s.callers.acquireSession(user)
	if failure != nil {
		return ""
	}
	defer s.callers.releaseSession(t)
	ctx, stop := context.WithTimeout(ctx, s.c.opts.StartWait)
	defer stop()
	used, failure := t.pool.GetSession(ctx)
	if failure != nil {
		return "" // calls will report the failure
	}
	return used.Instructions()
}

// cleanInstructions returns at most maxInstructions bytes of the text. It escapes control and format
// characters, which include those that reorder text (Unicode Bidirectional Algorithm) and those
// that are not visible.
func cleanInstructions(text string) string {
	text = strings.TrimSpace(strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\r\n", "\n"))
	var b strings.Builder
	for _, r := range text {
		c := string(r)
		if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			c = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
		}
		if b.Len()+len(c) > maxInstructions {
			break
		}
		b.WriteString(c)
	}
	return b.String()
}
