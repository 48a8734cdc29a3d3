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

// InstructionsFor returns the instructions that servers have sent, in the configuration's order. It includes the
// servers for which isUsed returns true, and whose configuration gives their instructions to the model. For a server
// that is used on behalf of its callers, the instructions are those of a session of the user. InstructionsFor makes
// that session if there is none, and waits for it under ctx, for Options.StartWait at most. A failure leaves the
// server out.
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

// instructionsFor returns the instructions as the server sent them, of the session that was listed last or of one of
// the user; "" if there is no session. It may wait for a session of the user.
func (s *server) instructionsFor(ctx context.Context, user auth.Identity) string {
	if s.userSessions == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.instructions
	}
	// Do not use the session of another user: the text may be about that user.
	acquired, failure := s.userSessions.acquireSession(user)
	if failure != nil {
		return ""
	}
	defer s.userSessions.releaseSession(acquired)
	ctx, stop := context.WithTimeout(ctx, s.client.opts.StartWait)
	defer stop()
	used, failure := acquired.pool.GetSession(ctx)
	if failure != nil {
		return "" // the user's calls will report the failure
	}
	return used.Instructions()
}

// cleanInstructions returns the text for a prompt, without white space around it and cut to maxInstructions bytes. It
// escapes control and format characters except line feeds and tabs. That includes characters that reorder text
// (Unicode Bidirectional Algorithm) and characters that are not visible.
func cleanInstructions(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n"))
	var cleaned strings.Builder
	for _, r := range text {
		char := string(r)
		if r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) {
			char = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
		}
		if cleaned.Len()+len(char) > maxInstructions {
			break
		}
		cleaned.WriteString(char)
	}
	return cleaned.String()
}
