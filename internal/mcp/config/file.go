package config

import (
	"fmt"
	"strings"
)

// ParseConfig reads mcp.json: the mcpServers that other hosts have, with the
// additions of CONTRACT section 7, or the file of seed 004 (servers with source).
// Servers come in the file's order. getenv gives the values of ${NAME}; an unset
// one without default is an error. A field that is unknown is
// an error rather than ignored; `_comment` and `$schema` may stand anywhere. Errors are one line, name server, field and line, and quote no values.
func Parse(data []byte, getenv func(string) string) ([]Server, error) {
	top, err := parseJSON(data, getenv)
	if err != nil {
		return nil, fmt.Errorf("mcp.json: %w", err)
	}
	servers, err := parseFile(top)
	if err != nil {
		return nil, fmt.Errorf("mcp.json: %w", err)
	}
	if err := Check(servers, false); err != nil {
		return nil, fmt.Errorf("mcp.json: %w", err)
	}
	return servers, nil
}

// parseServers tells the two kinds of file apart and reads the servers of either.
func parseFile(top jsonValue) ([]Server, error) {
	var out []Server
	fields, err := top.readObject()
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
		return parseSeedFile(fields)
	case !host:
		return nil, top.errorf("has no mcpServers")
	}
	for _, f := range fields {
		if f.name != "mcpServers" {
			return nil, f.unknownField()
		}
		servers, err := f.readObject()
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
var serverFields = map[string]func(*Server, jsonValue) error{
	"enabled": func(s *Server, v jsonValue) error {
		on, err := v.readBool()
		s.Disabled = !on
		return err
	},
	"type":               parseType,
	"url":                func(s *Server, v jsonValue) (err error) { s.URL, err = v.readString(); return },
	"headers":            func(s *Server, v jsonValue) (err error) { s.Headers, err = v.readSecretMap(); return },
	"query":              func(s *Server, v jsonValue) (err error) { s.Query, err = v.readStringMap(); return },
	"bearerToken":        func(s *Server, v jsonValue) (err error) { s.BearerToken, err = v.readSecret(); return },
	"auth":               parseAuth,
	"command":            func(s *Server, v jsonValue) (err error) { s.Command, err = v.readString(); return },
	"args":               func(s *Server, v jsonValue) (err error) { s.Args, err = v.readStringList(); return },
	"env":                func(s *Server, v jsonValue) (err error) { s.Env, err = v.readSecretMap(); return },
	"workDir":            func(s *Server, v jsonValue) (err error) { s.WorkDir, err = v.readOptionalString(); return },
	"toolPrefix":         func(s *Server, v jsonValue) (err error) { s.ToolPrefix, err = v.readOptionalString(); return },
	"timeout":            func(s *Server, v jsonValue) (err error) { s.Timeout, err = v.readDuration(); return },
	"maxTime":            func(s *Server, v jsonValue) (err error) { s.MaxTime, err = v.readDuration(); return },
	"standaloneStream":   func(s *Server, v jsonValue) (err error) { s.StandaloneStream, err = v.readBool(); return },
	"maxConcurrentCalls": func(s *Server, v jsonValue) (err error) { s.MaxConcurrentCalls, err = v.readCount(); return },
	"protocolVersion":    func(s *Server, v jsonValue) (err error) { s.ProtocolVersion, err = v.readString(); return },
	"sampling":           func(s *Server, v jsonValue) (err error) { s.Sampling, err = v.readBool(); return },
	"idempotentTools":    func(s *Server, v jsonValue) (err error) { s.IdempotentTools, err = v.readStringList(); return },
	"tools":              parseTools,
	"approval": func(s *Server, v jsonValue) error {
		mode, err := v.readString()
		s.Approval = Approval(mode)
		if err == nil && mode == "" { // which by hand is never, and here an oversight
			err = v.errorf("must be never, destructive or always")
		}
		return err
	},
	"resources": func(s *Server, v jsonValue) (err error) { s.Resources, err = v.readStringList(); return },
	"pin":       func(s *Server, v jsonValue) (err error) { s.Pin, err = v.readBool(); return },
}

// parseType reads how a server is reached.
func parseType(s *Server, v jsonValue) error {
	t, err := v.readString()
	if err == nil {
		s.Type, err = v.parseTransportType(t)
	}
	return err
}

// parseServer reads one member of mcpServers; its name is the server's.
func parseServer(v jsonValue) (Server, error) {
	v.path = fmt.Sprintf("server %.80q", v.name)
	s := Server{Name: v.name}
	fields, err := v.readObject()
	if err != nil {
		return s, err
	}
	if err := applyFields(&s, fields, serverFields); err != nil {
		return s, err
	}
	return s, s.completeServer(v, fields)
}

// apply reads fields into s.
func applyFields(s *Server, fields []jsonValue, setters map[string]func(*Server, jsonValue) error) error {
	for _, f := range fields {
		set := setters[f.name]
		if set == nil {
			return f.unknownField()
		}
		if err := set(s, f); err != nil {
			return err
		}
	}
	return nil
}

// complete finds the type of a server from what it has, and what is missing.
func (s *Server) completeServer(v jsonValue, fields []jsonValue) error {
	if s.Type == "" && s.URL != "" && s.Command != "" {
		return v.errorf("has both url and command")
	}
	s.Type = s.TransportType()
	if s.Type == TypeStdio && s.Command == "" {
		return v.errorf("command is missing")
	}
	// The same check as New makes, here with the line. Whether the service has a token
	// of its own is not known yet.
	if f := s.checkServer(false); f != nil {
		v.path += ", " + f.field
		for _, m := range fields { // point at the field's own line where there is one
			if m.name == strings.SplitN(f.field, ".", 2)[0] {
				v.nameOffset = m.nameOffset
			}
		}
		return v.errorf("%s", f.problem)
	}
	return nil
}

// parseTools reads which tools are offered.
func parseTools(s *Server, v jsonValue) error {
	fields, err := v.readObject()
	if err != nil {
		return err
	}
	for _, f := range fields {
		switch f.name {
		case "allow":
			s.AllowTools, err = f.readStringList()
		case "deny":
			s.DenyTools, err = f.readStringList()
		case "approve":
			s.ApproveTools, err = f.readStringList()
		default:
			err = f.unknownField()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// seedSetters read the fields of one server of seed 004; seedSource those of its
// source. Both spellings of a type (Http, http) and of a tagged source
// ({"type": "Http", …}, {"Http": {…}}) occur in the wild.
var seedServerFields = map[string]func(*Server, jsonValue) error{
	// Both were read before the others, to name the server in errors.
	"id":                   func(_ *Server, v jsonValue) error { _, err := v.readString(); return err },
	"name":                 func(_ *Server, v jsonValue) error { _, err := v.readString(); return err },
	"source":               parseSource,
	"enabled":              serverFields["enabled"],
	"tool_prefix":          serverFields["toolPrefix"],
	"resources":            func(s *Server, v jsonValue) (err error) { s.Resources, err = v.readStringList(); return },
	"bearer_token":         serverFields["bearerToken"],
	"tool_timeout_secs":    serverFields["timeout"],
	"max_concurrent_calls": serverFields["maxConcurrentCalls"],
	"auto_register_tools":  parseAutoRegister,
}

var seedSourceFields = map[string]func(*Server, jsonValue) error{
	"type":         serverFields["type"],
	"url":          serverFields["url"],
	"headers":      serverFields["headers"],
	"timeout_secs": optionalTimeout,
	"command":      serverFields["command"],
	"args":         serverFields["args"],
	"work_dir":     serverFields["workDir"],
	"env":          serverFields["env"],
}

// optionalTimeout reads a time-out that may be null, as serde writes None.
func optionalTimeout(s *Server, v jsonValue) (err error) {
	if !v.isNull() {
		s.Timeout, err = v.readDuration()
	}
	return err
}

// parseRegister reads auto_register_tools: without it, tools can be called by name
// but are kept out of the model's list (S4.8).
func parseAutoRegister(s *Server, v jsonValue) error {
	on, err := v.readBool()
	s.Hidden = !on
	return err
}

// parseSeed reads the file of seed 004. What it says for all servers is what a
// server doesn't say itself.
func parseSeedFile(fields []jsonValue) ([]Server, error) {
	var all Server
	var list jsonValue
	for _, f := range fields {
		var err error
		switch f.name {
		case "servers":
			list = f
		case "auto_register_tools":
			err = parseAutoRegister(&all, f)
		case "tool_timeout_secs":
			err = optionalTimeout(&all, f)
		case "max_concurrent_calls":
			if !f.isNull() {
				all.MaxConcurrentCalls, err = f.readCount()
			}
		default:
			err = f.unknownField()
		}
		if err != nil {
			return nil, err
		}
	}
	items, err := list.readArray()
	if err != nil {
		return nil, err
	}
	var out []Server
	for i, v := range items {
		v.path = fmt.Sprintf("servers[%d]", i)
		s, err := parseSeedServer(v, all)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// parseSeedServer reads one server; all is what holds for all of them.
func parseSeedServer(v jsonValue, all Server) (Server, error) {
	s := all
	fields, err := v.readObject()
	if err != nil {
		return s, err
	}
	for _, f := range fields { // the id is the name; without one the name is
		if f.name == "id" || f.name == "name" && s.Name == "" {
			if s.Name, err = f.readString(); err != nil {
				return s, err
			}
		}
	}
	if s.Name != "" {
		v.path = fmt.Sprintf("server %.80q", s.Name)
		if fields, err = v.readObject(); err != nil {
			return s, err
		}
	}
	if err := applyFields(&s, fields, seedServerFields); err != nil {
		return s, err
	}
	return s, s.completeServer(v, fields)
}

// parseSource reads how a server is reached.
func parseSource(s *Server, v jsonValue) error {
	fields, err := v.readObject()
	if err != nil {
		return err
	}
	// serde's default tagging: the variant is the only member's name.
	if len(fields) == 1 && fields[0].raw.Kind() == '{' {
		tag := fields[0]
		if s.Type, err = tag.parseTransportType(tag.name); err != nil {
			return err
		}
		if fields, err = tag.readObject(); err != nil {
			return err
		}
	}
	return applyFields(s, fields, seedSourceFields)
}
