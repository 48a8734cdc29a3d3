package mcp

import (
	"fmt"
	"strings"
)

// ParseConfig reads mcp.json: the mcpServers that other hosts have, with the
// additions of CONTRACT section 7, or the file of seed 004 (servers with source).
// Servers come in the file's order. getenv gives the values of ${NAME}; an unset
// one without default is an error. A field that is unknown is
// an error rather than ignored; `_comment` and `$schema` may stand anywhere. Errors are one line, name server, field and line, and quote no values.
func ParseConfig(data []byte, getenv func(string) string) ([]ServerConfig, error) {
	top, err := readFile(data, getenv)
	if err != nil {
		return nil, fmt.Errorf("mcp.json: %w", err)
	}
	servers, err := parseServers(top)
	if err != nil {
		return nil, fmt.Errorf("mcp.json: %w", err)
	}
	if err := checkServers(servers, false); err != nil {
		return nil, fmt.Errorf("mcp.json: %w", err)
	}
	return servers, nil
}

// parseServers tells the two kinds of file apart and reads the servers of either.
func parseServers(top value) ([]ServerConfig, error) {
	var out []ServerConfig
	fields, err := top.object()
	if err != nil {
		return nil, err
	}
	var host, seed bool
	for _, f := range fields {
		host = host || f.name == "mcpServers"
		seed = seed || f.name == "servers"
	}
	switch {
	case host && seed:
		return nil, top.errorf("has both mcpServers and servers")
	case seed:
		return parseSeed(fields)
	case !host:
		return nil, top.errorf("has no mcpServers")
	}
	for _, f := range fields {
		if f.name != "mcpServers" {
			return nil, f.unknown()
		}
		servers, err := f.object()
		if err != nil {
			return nil, err
		}
		for _, s := range servers {
			cfg, err := parseServer(s)
			if err != nil {
				return nil, err
			}
			out = append(out, cfg)
		}
	}
	return out, nil
}

// setters read the fields of one server. No field is ever skipped in silence: a
// misspelt "deny" that loads is a hole.
var setters = map[string]func(*ServerConfig, value) error{
	"enabled": func(s *ServerConfig, v value) error {
		on, err := v.boolean()
		s.Disabled = !on
		return err
	},
	"type":               parseType,
	"url":                func(s *ServerConfig, v value) (err error) { s.URL, err = v.text(); return },
	"headers":            func(s *ServerConfig, v value) (err error) { s.Headers, err = v.secrets(); return },
	"query":              func(s *ServerConfig, v value) (err error) { s.Query, err = v.texts(); return },
	"bearerToken":        func(s *ServerConfig, v value) (err error) { s.BearerToken, err = v.secret(); return },
	"auth":               parseAuth,
	"command":            func(s *ServerConfig, v value) (err error) { s.Command, err = v.text(); return },
	"args":               func(s *ServerConfig, v value) (err error) { s.Args, err = v.list(); return },
	"env":                func(s *ServerConfig, v value) (err error) { s.Env, err = v.secrets(); return },
	"workDir":            func(s *ServerConfig, v value) (err error) { s.WorkDir, err = v.optional(); return },
	"toolPrefix":         func(s *ServerConfig, v value) (err error) { s.ToolPrefix, err = v.optional(); return },
	"timeout":            func(s *ServerConfig, v value) (err error) { s.Timeout, err = v.duration(); return },
	"maxTime":            func(s *ServerConfig, v value) (err error) { s.MaxTime, err = v.duration(); return },
	"standaloneStream":   func(s *ServerConfig, v value) (err error) { s.StandaloneStream, err = v.boolean(); return },
	"maxConcurrentCalls": func(s *ServerConfig, v value) (err error) { s.MaxConcurrentCalls, err = v.count(); return },
	"protocolVersion":    func(s *ServerConfig, v value) (err error) { s.ProtocolVersion, err = v.text(); return },
	"sampling":           func(s *ServerConfig, v value) (err error) { s.Sampling, err = v.boolean(); return },
	"idempotentTools":    func(s *ServerConfig, v value) (err error) { s.IdempotentTools, err = v.list(); return },
	"tools":              parseTools,
	"approval": func(s *ServerConfig, v value) error {
		mode, err := v.text()
		s.Approval = Approval(mode)
		if err == nil && mode == "" { // which by hand is never, and here an oversight
			err = v.errorf("must be never, destructive or always")
		}
		return err
	},
	"resources": func(s *ServerConfig, v value) (err error) { s.Resources, err = v.list(); return },
	"pin":       func(s *ServerConfig, v value) (err error) { s.Pin, err = v.boolean(); return },
}

// parseType reads how a server is reached.
func parseType(s *ServerConfig, v value) error {
	t, err := v.text()
	if err == nil {
		s.Type, err = v.serverType(t)
	}
	return err
}

// parseServer reads one member of mcpServers; its name is the server's.
func parseServer(v value) (ServerConfig, error) {
	v.path = fmt.Sprintf("server %.80q", v.name)
	s := ServerConfig{Name: v.name}
	fields, err := v.object()
	if err != nil {
		return s, err
	}
	if err := apply(&s, fields, setters); err != nil {
		return s, err
	}
	return s, s.complete(v, fields)
}

// apply reads fields into s.
func apply(s *ServerConfig, fields []value, setters map[string]func(*ServerConfig, value) error) error {
	for _, f := range fields {
		set := setters[f.name]
		if set == nil {
			return f.unknown()
		}
		if err := set(s, f); err != nil {
			return err
		}
	}
	return nil
}

// complete finds the type of a server from what it has, and what is missing.
func (s *ServerConfig) complete(v value, fields []value) error {
	if s.Type == "" && s.URL != "" && s.Command != "" {
		return v.errorf("has both url and command")
	}
	s.Type = s.kind()
	if s.Type == TypeStdio && s.Command == "" {
		return v.errorf("command is missing")
	}
	// The same check as New makes, here with the line. Whether the service has a token
	// of its own is not known yet.
	if f := s.check(false); f != nil {
		v.path += ", " + f.field
		for _, m := range fields { // point at the field's own line where there is one
			if m.name == strings.SplitN(f.field, ".", 2)[0] {
				v.at = m.at
			}
		}
		return v.errorf("%s", f.what)
	}
	return nil
}

// parseTools reads which tools are offered.
func parseTools(s *ServerConfig, v value) error {
	fields, err := v.object()
	if err != nil {
		return err
	}
	for _, f := range fields {
		switch f.name {
		case "allow":
			s.AllowTools, err = f.list()
		case "deny":
			s.DenyTools, err = f.list()
		case "approve":
			s.ApproveTools, err = f.list()
		default:
			err = f.unknown()
		}
		if err != nil {
			return err
		}
	}
	return nil
}
