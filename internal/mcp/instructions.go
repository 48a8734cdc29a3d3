package mcp

import (
	"context"
	"strconv"
	"strings"
	"unicode"

	"answerd/internal/auth"
)

// maxInstructions bounds one server's instructions, in bytes.
const maxInstructions = 4 << 10

// Instructions are a server's hints about its own use (MCP lifecycle, InitializeResult).
type Instructions struct {
	Server string // its configured name
	// Text comes from the server and must not be trusted. It has at most 4 KiB. Characters that could hide or reorder
	// text are escaped; line feeds and tabs are kept.
	Text string
}

// InstructionsFor returns the instructions of the servers for which isUsed returns true and whose configuration passes
// instructions to the model, in the configuration's order. If a server uses per-user tokens, its instructions are
// those of a session of user. InstructionsFor opens that session if needed, which may take until ctx ends or
// Options.StartWait has passed. A server whose session cannot be opened is left out.
func (c *Client) InstructionsFor(ctx context.Context, user auth.Identity, isUsed func(server string) bool) []Instructions {
	var all []Instructions
	for _, s := range c.allServers() {
		if !s.cfg.Instructions || !s.isLive() || !isUsed(s.cfg.Name) {
			continue
		}
		text := cleanInstructions(s.instructionsFor(ctx, user))
		if text != "" {
			all = append(all, Instructions{Server: s.cfg.Name, Text: text})
		}
	}
	return all
}

// instructionsFor returns the server's instructions, unchanged: those of the session that listed the tools last, or
// those of a session of user, for which it may have to wait. It returns "" if no session has them.
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
		return "" // user's calls will report the failure
	}
	return used.Instructions()
}

// cleanInstructions returns text in a form for a prompt: trimmed, and cut to maxInstructions bytes. It escapes control
// and format characters except line feeds and tabs. These include invisible characters and those that reorder text
// (Unicode Bidirectional Algorithm).
func cleanInstructions(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.TrimSpace(strings.ReplaceAll(text, "\r\n", "\n"))
	var cleaned strings.Builder
	for _, r := range text {
		printed := string(r)
		isInvisible := unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) && r != '\n' && r != '\t'
		if isInvisible {
			printed = strings.Trim(strconv.QuoteRuneToASCII(r), "'")
		}
		if cleaned.Len()+len(printed) > maxInstructions {
			break
		}
		cleaned.WriteString(printed)
	}
	return cleaned.String()
}
