package mcp

import (
	"maps"
	"slices"
	"strings"
)

// kind is the server's type, found from what it has where none is given.
func (s *ServerConfig) kind() string {
	switch {
	case s.Type != "":
		return s.Type
	case s.Command != "" && s.URL == "":
		return TypeStdio
	}
	return TypeHTTP
}

// checkCommand checks a child process. It is started without a shell, so nothing has a
// meaning beyond itself; a NUL byte would end what the system sees of a string. What
// is for URLs is refused rather than ignored, but for query (S0.1).
func (s *ServerConfig) checkCommand() *fieldError {
	nul := func(v string) bool { return strings.ContainsRune(v, 0) }
	switch {
	case s.Command == "":
		return wrong("command", "is missing")
	case nul(s.Command):
		return wrong("command", "has a NUL byte")
	case nul(s.WorkDir):
		return wrong("workDir", "has a NUL byte")
	case slices.ContainsFunc(s.Args, nul):
		return wrong("args", "one has a NUL byte")
	case s.URL != "":
		return wrong("url", "a server of type stdio has none")
	case len(s.Headers) > 0:
		return wrong("headers", "a server of type stdio has none")
	case !s.BearerToken.IsZero():
		return wrong("bearerToken", "a server of type stdio gets none; put it into env")
	case s.Auth != "" && s.Auth != AuthNone:
		return wrong("auth.type", "a server of type stdio gets no token; put it into env")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Env)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			return wrong("env", "%.80q is no name of a variable", name)
		case nul(s.Env[name].Reveal()):
			return wrong("env."+name, "has a NUL byte")
		}
	}
	return nil
}

// checkNoCommand refuses what belongs to a child process on a server that is none.
func (s *ServerConfig) checkNoCommand() *fieldError {
	const what = "is for servers of type stdio"
	switch {
	case s.Command != "":
		return wrong("command", what)
	case len(s.Args) > 0:
		return wrong("args", what)
	case len(s.Env) > 0:
		return wrong("env", what)
	case s.WorkDir != "":
		return wrong("workDir", what)
	}
	return nil
}
