package mcp

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"

	"answerd/internal/auth"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The types of servers that a configuration may name. This build connects to
// TypeHTTP, TypeStdio and TypeWebSocket; the others are reported as failed.
const (
	TypeHTTP      = "http"
	TypeStdio     = "stdio"
	TypeWebSocket = "websocket"
	TypeSSE       = "sse" // the transport of 2024-11-05
)

// ServerConfig is one server of mcp.json. Made by hand it needs a Name, and a URL or a
// Command;
// the zero value of everything else works.
type ServerConfig struct {
	Name     string // 1 to 64 printable characters, unique
	Disabled bool   // no tools and no connection
	Type     string // "" means TypeStdio with a Command and no URL, else TypeHTTP

	URL         string                 // http or https; ws or wss for TypeWebSocket; without user and fragment
	Headers     map[string]auth.Secret // sent with every request, and with a WebSocket's handshake
	Query       map[string]string      // added to the URL
	BearerToken auth.Secret            // wins over an Authorization header
	Auth        AuthType               // "" means AuthNone
	Grant       TokenGrant             // of every AuthType with an authorization server

	// Command is a child process, with the next three. It is found with our own PATH
	// and started without a shell; a relative path starts in WorkDir.
	Command string
	Args    []string
	Env     map[string]auth.Secret // its whole environment: it gets none of ours
	WorkDir string                 // "" means ours

	ToolPrefix string // "" keeps tools' bare names
	Hidden     bool   // callable by name, but not offered to the model
	AllowTools []string
	DenyTools  []string // wins over AllowTools
	// Approval and ApproveTools say to which calls a person must agree, each time: both
	// together, so that neither takes anything away from the other.
	Approval     Approval
	ApproveTools []string
	// IdempotentTools are the globs of tools that may be called again when the
	// outcome of a call is unknown.
	IdempotentTools []string
	// Sampling lets the server ask our language model, under the budget of the run
	// whose call it is about.
	Sampling bool
	// Pin disables tools whose definitions the operator has not accepted (Client.AcceptPins).
	Pin bool
	// Resources are patterns of URIs, in which * stands for any text: what matches is
	// offered to the model through one tool that reads it.
	Resources []string

	// StandaloneStream opens the stream that belongs to no request, in sessions over HTTP
	// of before 2026-07-28: some servers ask the user nowhere else.
	StandaloneStream bool

	// Timeout is the longest silence of a server that works on a call; 0:
	// Options.Timeout. Each message about the call begins it anew. MaxTime bounds the call
	// in all; 0: ten times that. Neither goes on while a person is asked.
	Timeout, MaxTime   time.Duration
	MaxConcurrentCalls int    // 0: Options.MaxConcurrentCalls
	ProtocolVersion    string // "" means the newest that both sides speak
}

// Bounds of a configuration.
const (
	maxServers    = 256
	maxServerName = 64
	maxCalls      = 10000
	maxTimeout    = 24 * time.Hour
)

// SingleServer is the configuration of MCP_URL: one server named "default", which
// gets the service's token when there is one.
func SingleServer(rawURL string) (ServerConfig, error) {
	cfg := ServerConfig{Name: "default", Type: TypeHTTP, URL: rawURL, Auth: AuthJWT}
	if f := cfg.check(false); f != nil {
		return ServerConfig{}, errors.New(f.what)
	}
	return cfg, nil
}

// fieldError is what is wrong with one field.
type fieldError struct{ field, what string }

// wrong is a fieldError. The text must not quote values: they may hold secrets.
func wrong(field, format string, args ...any) *fieldError {
	return &fieldError{field, fmt.Sprintf(format, args...)}
}

// checkServers checks what New is given. service says whether servers with auth
// type jwt get a token.
func checkServers(servers []ServerConfig, service bool) error {
	if len(servers) > maxServers {
		return fmt.Errorf("%d MCP servers, more than %d", len(servers), maxServers)
	}
	seen := map[string]bool{}
	for _, s := range servers {
		if f := s.check(service); f != nil {
			return fmt.Errorf("MCP server %.80q, %s: %s", s.Name, f.field, f.what)
		}
		if seen[s.Name] {
			return fmt.Errorf("MCP server %q, name: it is used twice", s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

// checkRedirects says which server lacks an address for browsers to come back to.
func checkRedirects(servers []ServerConfig, redirect string) error {
	for _, s := range servers {
		if s.Auth == AuthAuthorizationCode && !s.Disabled && s.Grant.RedirectURL == "" && redirect == "" {
			return fmt.Errorf("MCP server %q, auth.redirectUrl: is missing, since PUBLIC_URL is not set either", s.Name)
		}
	}
	return nil
}

// check is what is wrong with a server's configuration, nil if nothing.
func (s *ServerConfig) check(service bool) *fieldError {
	if n := len([]rune(s.Name)); n < 1 || n > maxServerName || strings.ContainsFunc(s.Name, unprintable) {
		return wrong("name", "must be 1 to %d printable characters", maxServerName)
	}
	for _, list := range []struct {
		field string
		globs []string
	}{{"tools.allow", s.AllowTools}, {"tools.deny", s.DenyTools}, {"tools.approve", s.ApproveTools}, {"idempotentTools", s.IdempotentTools}} {
		for _, g := range list.globs {
			if _, err := path.Match(g, ""); err != nil {
				return wrong(list.field, "%.80q is no pattern", g)
			}
		}
	}
	if !slices.Contains([]Approval{"", ApproveNever, ApproveDestructive, ApproveAlways}, s.Approval) {
		return wrong("approval", "must be never, destructive or always")
	}
	switch {
	case s.Timeout < 0 || s.Timeout > maxTimeout:
		return wrong("timeout", "must be more than 0 and at most %s", maxTimeout)
	case s.MaxTime < 0 || s.MaxTime > maxTimeout:
		return wrong("maxTime", "must be more than 0 and at most %s", maxTimeout)
	case s.MaxTime > 0 && s.MaxTime < s.Timeout:
		return wrong("maxTime", "must be no less than timeout")
	case s.StandaloneStream && s.kind() != TypeHTTP:
		return wrong("standaloneStream", "is for servers of type http")
	case s.MaxConcurrentCalls < 0 || s.MaxConcurrentCalls > maxCalls:
		return wrong("maxConcurrentCalls", "must be 1 to %d", maxCalls)
	case s.ProtocolVersion != "" && !slices.Contains(sdk.SupportedProtocolVersions(), s.ProtocolVersion):
		return wrong("protocolVersion", "must be one of %s", strings.Join(sdk.SupportedProtocolVersions(), ", "))
	case s.kind() == TypeStdio:
		return s.checkCommand()
	}
	if f := s.checkNoCommand(); f != nil {
		return f
	}
	if f := s.checkAuth(); f != nil {
		return f
	}
	if s.kind() != TypeHTTP && s.kind() != TypeWebSocket {
		return nil // New reports that it cannot be used
	}
	if f := s.checkHeaders(); f != nil {
		return f
	}
	return s.checkURL(service)
}

// unprintable characters in a name would let it forge log lines and terminals.
func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// ownHeaders are those that the transport sets.
var ownHeaders = []string{
	"accept", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-session-id",
	"mcp-protocol-version", "mcp-method", "mcp-name", "te", "trailer", "transfer-encoding", "upgrade",
	"sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-key", "sec-websocket-protocol", "sec-websocket-version",
}

// checkHeaders looks for what net/http would refuse with every request: an operator
// should learn of it at the start.
func (s *ServerConfig) checkHeaders() *fieldError {
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		value := s.Headers[name]
		// RFC 9110 sections 5.1 and 5.5.
		bad := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r) }
		switch {
		case name == "" || strings.ContainsFunc(name, bad):
			return wrong("headers", "%.80q is no header name", name)
		case slices.Contains(ownHeaders, strings.ToLower(name)):
			return wrong("headers."+name, "is set by the transport")
		case badHeaderValue(value.Reveal()):
			return wrong("headers."+name, "has characters that a header cannot have")
		}
	}
	if badHeaderValue(s.BearerToken.Reveal()) {
		return wrong("bearerToken", "has characters that a header cannot have")
	}
	return nil
}

func badHeaderValue(s string) bool {
	return strings.ContainsFunc(s, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f })
}

// checkURL checks the URL, and that no token would go over a network in the clear.
func (s *ServerConfig) checkURL(service bool) *fieldError {
	plain, safe := "http", "https"
	if s.Type == TypeWebSocket {
		plain, safe = "ws", "wss"
	}
	u, err := url.Parse(s.URL)
	switch {
	case s.URL == "":
		return wrong("url", "is missing")
	case err != nil:
		return wrong("url", "is no URL") // the cause would quote it
	case u.Scheme != plain && u.Scheme != safe:
		return wrong("url", "must begin with %s:// or %s://", plain, safe)
	case u.Host == "" || u.Hostname() == "":
		return wrong("url", "has no host")
	case u.User != nil:
		return wrong("url", "must not hold a user or password")
	case u.Fragment != "" || strings.Contains(s.URL, "#"):
		return wrong("url", "must not have a fragment")
	}
	if u.Scheme == safe || loopback(u.Hostname()) {
		return nil
	}
	switch {
	case !s.BearerToken.IsZero():
		return wrong("url", "must be %s://, since bearerToken would go there in the clear", safe)
	case s.Auth == AuthJWT && service:
		return wrong("url", "must be %s://, since the service's token would go there in the clear", safe)
	case s.Auth.granted():
		return wrong("url", "must be %s://, since tokens would go there in the clear", safe)
	}
	for name := range s.Headers {
		if strings.EqualFold(name, "Authorization") {
			return wrong("url", "must be %s://, since headers.%s would go there in the clear", safe, name)
		}
	}
	return nil
}

// loopback reports whether a host is this machine without asking DNS, which could
// answer otherwise the next time.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}
