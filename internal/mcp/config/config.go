// Package config reads and checks mcp.json, the list of MCP servers.
//
//	servers, warnings, err := config.Parse(data, os.Getenv) // mcp.json, ${NAME} replaced
//	if err != nil {
//		return err // one line: the server, the field and the line of the file
//	}
//	client, err := mcp.New(servers, mcp.Options{})
//
// A Server can also be created in Go. Check applies the same rules to it as Parse does to a file. Errors never quote
// values, because they may be secret. The package opens no connection and has no state, so everything in it may be used
// concurrently.
//
// Parse reads jsonValues, which know their place in the file (jsonvalue.go). Tables map each member's name to the
// function that reads it, including the members of other MCP hosts (file.go, seedfile.go, auth.go). These functions
// replace variables (variables.go) and fill in a Server, which is then checked as a whole (Server.checkServer). Parse
// sets only two defaults, the type and the inherited environment. Package mcp applies the others, because a zero value
// must mean the same in a Server that was created in Go.
package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/tlsconfig"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The types of servers that a configuration may name.
const (
	TypeHTTP      = "http" // Streamable HTTP, and TypeSSE if the server does not support that
	TypeStdio     = "stdio"
	TypeWebSocket = "websocket"
	TypeSSE       = "sse" // HTTP+SSE, the transport of 2024-11-05
)

// Server describes one server of mcp.json. It needs a Name, and a URL or a Command; the zero
// value of every other field works.
type Server struct {
	Name     string // 1 to 64 printable characters, unique
	Disabled bool   // no tools and no connection
	Type     string // "" means TypeStdio with a Command and no URL, otherwise TypeHTTP

	URL         string                 // http or https; ws or wss for TypeWebSocket; without user and fragment
	Headers     map[string]auth.Secret // sent with every request, and with a WebSocket's handshake
	Query       map[string]string      // added to the URL
	BearerToken auth.Secret            // overrides an Authorization header
	Auth        AuthType               // "" means AuthNone
	Grant       Grant                  // for every AuthType with an authorization server
	TLS         tlsconfig.Files        // for the server, and for the authorization server of its tokens

	// Command starts a child process with Args, Env and WorkDir. It is searched for in the PATH of
	// Env, then in answerd's own, and started without a shell. A relative path is relative to WorkDir.
	Command string
	Args    []string
	// Env is the whole environment. Parse adds the variables that a child process inherits.
	Env     map[string]auth.Secret
	WorkDir string // "" means that of answerd
	onlyEnv bool   // "inheritEnv": false

	incomplete bool // disabled, and read from a file without the variables or files that its values need

	ToolPrefix string   // "" keeps the names of the tools
	Hidden     bool     // callable by name, but not offered to the model
	AllowTools []string // patterns; empty allows all tools
	DenyTools  []string // patterns; overrides AllowTools
	// Approval and ApproveTools select the calls that a person must approve, each time. A call needs approval if either
	// of the two selects it. AutoApprove are globs of tools that Approval does not select.
	Approval     Approval
	ApproveTools []string
	AutoApprove  []string
	// IdempotentTools are globs of tools that may be called again when the outcome of a call is unknown.
	IdempotentTools []string
	// Sampling lets the server use the run's language model during a call. The tokens count towards
	// the budget of the run.
	Sampling bool
	// Instructions gives what the server says about its own use to the model.
	Instructions bool
	// Meta lists what the server gets in the _meta of each call, as MetaMembers names it. nil means
	// the id of the call, an empty list means nothing.
	Meta []string
	// Pin disables tools whose definitions the operator has not accepted (Client.AcceptPins).
	Pin bool
	// Resources are patterns of URIs, in which * stands for any text. The model gets one tool
	// that reads the resources that match.
	Resources []string

	// StandaloneStream decides whether HTTP sessions of protocol versions before 2026-07-28 open the standalone SSE
	// stream (GET). nil: if the server announces changes of its tools or of the configured Resources, or with Sampling.
	// true: always, because some servers send elicitation requests only there. false: never.
	StandaloneStream *bool

	// Timeout bounds how long a server may be silent during a call; 0: the client's default. Each
	// message about the call restarts it. MaxTime bounds the whole call; 0: ten times Timeout. Both
	// stop while the call waits for a person.
	Timeout, MaxTime   time.Duration
	MaxConcurrentCalls int    // 0: the client's default
	ProtocolVersion    string // "" means the newest version that both sides support
}

// Approval selects the calls of a server's tools that a person must approve. Every selected call needs its own
// approval.
type Approval string

// The values of Approval.
const (
	ApproveNever       Approval = "never" // only calls of ApproveTools; "" means the same
	ApproveDestructive Approval = "destructive"
	ApproveAlways      Approval = "always"
)

// The members of Server.Meta.
const (
	MetaRunID    = "run_id"
	MetaThreadID = "thread_id"
	MetaSubject  = "subject" // of the caller's token
	MetaCallID   = "call_id"
)

// MetaMembers returns the values that Server.Meta may contain.
func MetaMembers() []string { return []string{MetaRunID, MetaThreadID, MetaSubject, MetaCallID} }

// Limits of a configuration.
const (
	maxServers    = 256
	maxServerName = 64
	maxCalls      = 10000
)

// SingleServer returns the configuration for MCP_URL: one server named "default" with AuthJWT. It returns an error if
// rawURL is not a valid server URL.
func SingleServer(rawURL string) (Server, error) {
	server := Server{Name: "default", Type: TypeHTTP, URL: rawURL, Auth: AuthJWT}
	// Whether the service has a token of its own is not known yet, so mcp.New checks the server again.
	if mistake := server.checkServer(false); mistake != nil {
		return Server{}, errors.New(mistake.problem)
	}
	return server, nil
}

// fieldError is a mistake in one field of a server. field is the field's name in mcp.json, with dots for members of
// objects. problem continues a sentence that begins with that name. fieldError does not implement error, so that it
// cannot be returned without the server's name, which callers add.
type fieldError struct{ field, problem string }

// fieldErrorf returns a fieldError with a formatted problem. The text must not quote values, because they may be
// secret.
func fieldErrorf(field, format string, args ...any) *fieldError {
	return &fieldError{field, fmt.Sprintf(format, args...)}
}

// Check returns an error for the first mistake in servers, or nil if there is none. hasServiceToken says whether
// servers with AuthJWT get the service's token, which must not be sent unencrypted.
func Check(servers []Server, hasServiceToken bool) error {
	if len(servers) > maxServers {
		return fmt.Errorf("%d MCP servers, more than %d", len(servers), maxServers)
	}
	seen := map[string]bool{}
	for _, s := range servers {
		if f := s.checkServer(hasServiceToken); f != nil {
			return fmt.Errorf("MCP server %.80q, %s: %s", s.Name, f.field, f.problem)
		}
		if seen[s.Name] {
			return fmt.Errorf("MCP server %q, name: it is used twice", s.Name)
		}
		seen[s.Name] = true
	}
	return nil
}

// CheckRedirects returns an error if an enabled server with AuthAuthorizationCode has no redirect URL. defaultURL
// applies to servers without a redirect URL of their own. It is "" if there is no default.
func CheckRedirects(servers []Server, defaultURL string) error {
	for _, s := range servers {
		hasRedirect := s.Grant.RedirectURL != "" || defaultURL != ""
		if s.Auth == AuthAuthorizationCode && !s.Disabled && !hasRedirect {
			return fmt.Errorf("MCP server %q, auth.redirectUrl: is missing, since PUBLIC_URL is not set either", s.Name)
		}
	}
	return nil
}

// checkServer returns the first mistake in a server's configuration, or nil if there is none. The order of the checks
// decides which mistake an operator sees first: those that concern all types come before those of the transport.
func (s *Server) checkServer(hasServiceToken bool) *fieldError {
	if n := utf8.RuneCountInString(s.Name); n < 1 || n > maxServerName || strings.ContainsFunc(s.Name, isUnprintable) {
		return fieldErrorf("name", "must be 1 to %d printable characters", maxServerName)
	}
	if s.incomplete {
		return nil // the server is checked when the file enables it
	}
	checks := []func() *fieldError{s.checkPatterns, s.checkSettings}
	switch s.TransportType() {
	case TypeStdio:
		checks = append(checks, s.checkCommand)
	case TypeHTTP, TypeWebSocket, TypeSSE:
		checkURL := func() *fieldError { return s.checkURL(hasServiceToken) }
		checks = append(checks, s.checkNoCommand, s.checkAuth, s.checkHeaders, checkURL, s.checkTLS)
	default: // mcp.New reports that it does not support this type
		checks = append(checks, s.checkNoCommand, s.checkAuth)
	}
	for _, check := range checks {
		if mistake := check(); mistake != nil {
			return mistake
		}
	}
	return nil
}

// checkSettings returns the first mistake in the settings that have the same meaning for all types, except patterns, or
// nil if there is none.
func (s *Server) checkSettings() *fieldError {
	isUnknownMeta := func(name string) bool { return !slices.Contains(MetaMembers(), name) }
	switch {
	case !slices.Contains([]Approval{"", ApproveNever, ApproveDestructive, ApproveAlways}, s.Approval):
		return fieldErrorf("approval", "must be never, destructive or always")
	case slices.ContainsFunc(s.Meta, isUnknownMeta):
		return fieldErrorf("meta", "may only have %s", strings.Join(MetaMembers(), ", "))
	case s.Timeout < 0 || s.Timeout > MaxTimeout:
		return fieldErrorf("timeout", "must be more than 0 and at most %s", MaxTimeout)
	case s.MaxTime < 0 || s.MaxTime > MaxTimeout:
		return fieldErrorf("maxTime", "must be more than 0 and at most %s", MaxTimeout)
	case s.MaxTime > 0 && s.MaxTime < s.Timeout:
		return fieldErrorf("maxTime", "must be no less than timeout")
	case s.StandaloneStream != nil && s.TransportType() != TypeHTTP:
		return fieldErrorf("standaloneStream", "is for servers of type http")
	case s.MaxConcurrentCalls < 0 || s.MaxConcurrentCalls > maxCalls:
		return fieldErrorf("maxConcurrentCalls", "must be 1 to %d", maxCalls)
	case s.ProtocolVersion != "" && !slices.Contains(sdk.SupportedProtocolVersions(), s.ProtocolVersion):
		return fieldErrorf("protocolVersion", "must be one of %s", strings.Join(sdk.SupportedProtocolVersions(), ", "))
	}
	return nil
}

// checkPatterns returns a fieldError for the first tool name pattern that path.Match does not accept, or nil.
func (s *Server) checkPatterns() *fieldError {
	for _, list := range []struct {
		field    string
		patterns []string
	}{
		{"tools.allow", s.AllowTools},
		{"tools.deny", s.DenyTools},
		{"tools.approve", s.ApproveTools},
		{"autoApprove", s.AutoApprove},
		{"idempotentTools", s.IdempotentTools},
	} {
		for _, pattern := range list.patterns {
			if _, err := path.Match(pattern, ""); err != nil {
				return fieldErrorf(list.field, "%.80q is not a pattern", pattern)
			}
		}
	}
	return nil
}

// checkTLS returns the first mistake in the names of the TLS files, or nil if there is none. It does not read the
// files. mcp.New reads them.
func (s *Server) checkTLS() *fieldError {
	if s.TLS == (tlsconfig.Files{}) {
		return nil
	}
	if e, ok := errors.AsType[*tlsconfig.FileError](s.TLS.Check()); ok {
		return fieldErrorf(TLSField(e.Field), "%s", e.Err)
	}
	u, err := url.Parse(s.URL)
	isPlain := err == nil && (u.Scheme == "http" || u.Scheme == "ws")
	if isPlain && !s.Auth.HasAuthorizationServer() {
		return fieldErrorf("tls", "has no effect, since url is %s://", u.Scheme)
	}
	return nil
}

// TLSField returns the name that a TLS file's field has in mcp.json.
func TLSField(f tlsconfig.Field) string { return "tls." + string(f) + "File" }

// isUnprintable reports whether r is not printable. Such characters could forge log lines or control a terminal.
func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// transportHeaders lists the headers that the transport sets itself, so mcp.json must not set them.
var transportHeaders = []string{
	"accept", "connection", "content-length", "content-type", "host", "last-event-id", "mcp-session-id",
	"mcp-protocol-version", "mcp-method", "mcp-name", "te", "trailer", "transfer-encoding", "upgrade",
	"sec-websocket-accept", "sec-websocket-extensions", "sec-websocket-key", "sec-websocket-protocol", "sec-websocket-version",
}

// checkHeaders rejects headers, and a bearer token, that net/http would reject in every request, so that the operator
// learns of them at start-up. It also rejects headers that the transport sets, and names that differ only in case.
func (s *Server) checkHeaders() *fieldError {
	seen := map[string]bool{} // names in lower case; of two that differ only in case, each request would send a random one
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		lower := strings.ToLower(name)
		switch {
		case !fetch.IsHeaderName(name):
			return fieldErrorf("headers", "%.80q is not a header name", name)
		case slices.Contains(transportHeaders, lower):
			return fieldErrorf("headers."+name, "is set by the transport")
		case !fetch.IsHeaderValue(s.Headers[name].Reveal()):
			return fieldErrorf("headers."+name, "has characters that a header cannot have")
		case seen[lower]:
			return fieldErrorf("headers."+name, "appears twice, since case does not matter in names")
		}
		seen[lower] = true
	}
	if !fetch.IsHeaderValue(s.BearerToken.Reveal()) {
		return fieldErrorf("bearerToken", "has characters that a header cannot have")
	}
	return nil
}

// checkURL returns the first mistake in the URL, or nil if there is none. It rejects plain http and ws, except to this
// machine, if a token would be sent, because anybody on the network could read the token.
func (s *Server) checkURL(hasServiceToken bool) *fieldError {
	plain, encrypted := "http", "https"
	if s.Type == TypeWebSocket {
		plain, encrypted = "ws", "wss"
	}

	parsed, err := url.Parse(s.URL)
	switch {
	case s.URL == "":
		return fieldErrorf("url", "is missing")
	case err != nil:
		return fieldErrorf("url", "is not a URL") // the parser's error would quote it
	case parsed.Scheme != plain && parsed.Scheme != encrypted:
		return fieldErrorf("url", "must begin with %s:// or %s://", plain, encrypted)
	case parsed.Hostname() == "":
		return fieldErrorf("url", "has no host")
	case parsed.User != nil:
		return fieldErrorf("url", "must not hold a user or password")
	case parsed.Fragment != "" || strings.Contains(s.URL, "#"):
		return fieldErrorf("url", "must not have a fragment")
	}

	if parsed.Scheme == encrypted || fetch.IsLoopback(parsed.Hostname()) {
		return nil
	}

	switch {
	case !s.BearerToken.IsZero():
		return fieldErrorf("url", "must be %s://, since bearerToken would be sent unencrypted", encrypted)
	case s.Auth == AuthJWT && hasServiceToken:
		return fieldErrorf("url", "must be %s://, since the service's token would be sent unencrypted", encrypted)
	case s.Auth.HasAuthorizationServer():
		return fieldErrorf("url", "must be %s://, since tokens would be sent unencrypted", encrypted)
	}

	for name := range s.Headers {
		if strings.EqualFold(name, "Authorization") {
			return fieldErrorf("url", "must be %s://, since headers.%s would be sent unencrypted", encrypted, name)
		}
	}
	return nil
}

// maxResourceURI is the maximum length of a resource's URI in bytes.
const maxResourceURI = 1 << 10

// AllowsResource reports whether the configuration permits reading the resource at uri. The URI must match one of the
// patterns in Resources, be printable, and have at most maxResourceURI bytes. A segment ".." is not allowed, even in
// escaped form, because it could lead out of the part that the pattern allows.
func (s *Server) AllowsResource(uri string) bool {
	if len(uri) > maxResourceURI || strings.ContainsFunc(uri, isUnprintable) {
		return false
	}
	unescaped, err := url.PathUnescape(uri)
	// A segment also ends where a query, a fragment or parameters begin.
	endsSegment := func(r rune) bool { return strings.ContainsRune(`/\?#;`, r) }
	if err != nil || slices.Contains(strings.FieldsFunc(unescaped, endsSegment), "..") {
		return false
	}
	return slices.ContainsFunc(s.Resources, func(p string) bool { return matchWildcard(p, uri) })
}

// matchWildcard reports whether s matches a pattern in which * matches any text, including slashes. It matches each
// part between two stars at its first occurrence. A later occurrence would only leave less text for the parts after it,
// so no backtracking is needed, and each star costs at most one search through s.
func matchWildcard(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return s == pattern
	}
	rest, hasPrefix := strings.CutPrefix(s, parts[0])
	rest, hasSuffix := strings.CutSuffix(rest, parts[len(parts)-1])
	if !hasPrefix || !hasSuffix {
		return false
	}
	for _, part := range parts[1 : len(parts)-1] {
		var found bool
		if _, rest, found = strings.Cut(rest, part); !found {
			return false
		}
	}
	return true
}

// TransportType returns Type or, if that is "", the type that Command and URL imply.
func (s *Server) TransportType() string {
	switch {
	case s.Type != "":
		return s.Type
	case s.Command != "" && s.URL == "":
		return TypeStdio
	}
	return TypeHTTP
}

// checkCommand returns the first mistake in the fields of a child process, or nil if there is none. NUL is the only
// special character, because no shell is involved: it would end the string for the operating system. Fields for URLs,
// except query, are an error and are not ignored, because they are probably a mistake.
func (s *Server) checkCommand() *fieldError {
	hasNUL := func(v string) bool { return strings.ContainsRune(v, 0) }
	switch {
	case s.Command == "":
		return fieldErrorf("command", "is missing")
	case hasNUL(s.Command):
		return fieldErrorf("command", "has a NUL byte")
	case hasNUL(s.WorkDir):
		return fieldErrorf("workDir", "has a NUL byte")
	case slices.ContainsFunc(s.Args, hasNUL):
		return fieldErrorf("args", "one has a NUL byte")
	case s.URL != "":
		return fieldErrorf("url", "a server of type stdio has none")
	case len(s.Headers) > 0:
		return fieldErrorf("headers", "a server of type stdio has none")
	case !s.BearerToken.IsZero():
		return fieldErrorf("bearerToken", "a server of type stdio gets none; put it into env")
	case s.Auth != "" && s.Auth != AuthNone:
		return fieldErrorf("auth.type", "a server of type stdio gets no token; put it into env")
	case s.TLS != (tlsconfig.Files{}):
		return fieldErrorf("tls", "a server of type stdio has none")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return fieldErrorf("env", "%.80q is not the name of a variable", name)
		case hasNUL(s.Env[name].Reveal()):
			return fieldErrorf("env."+name, "has a NUL byte")
		}
	}
	return nil
}

// checkNoCommand rejects the fields of a child process in a server of another type.
func (s *Server) checkNoCommand() *fieldError {
	const what = "is for servers of type stdio"
	switch {
	case s.Command != "":
		return fieldErrorf("command", what)
	case len(s.Args) > 0:
		return fieldErrorf("args", what)
	case len(s.Env) > 0:
		return fieldErrorf("env", what)
	case s.WorkDir != "":
		return fieldErrorf("workDir", what)
	}
	return nil
}
