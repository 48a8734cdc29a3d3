package mcp

import "fmt"

// seedSetters read the fields of one server of seed 004; seedSource those of its
// source. Both spellings of a type (Http, http) and of a tagged source
// ({"type": "Http", …}, {"Http": {…}}) occur in the wild.
var seedSetters = map[string]func(*ServerConfig, value) error{
	// Both were read before the others, to name the server in errors.
	"id":                   func(_ *ServerConfig, v value) error { _, err := v.text(); return err },
	"name":                 func(_ *ServerConfig, v value) error { _, err := v.text(); return err },
	"source":               parseSource,
	"enabled":              setters["enabled"],
	"tool_prefix":          setters["toolPrefix"],
	"resources":            func(s *ServerConfig, v value) (err error) { s.Resources, err = v.list(); return },
	"bearer_token":         setters["bearerToken"],
	"tool_timeout_secs":    setters["timeout"],
	"max_concurrent_calls": setters["maxConcurrentCalls"],
	"auto_register_tools":  parseRegister,
}

var seedSource = map[string]func(*ServerConfig, value) error{
	"type":         setters["type"],
	"url":          setters["url"],
	"headers":      setters["headers"],
	"timeout_secs": optionalTimeout,
	"command":      setters["command"],
	"args":         setters["args"],
	"work_dir":     setters["workDir"],
	"env":          setters["env"],
}

// optionalTimeout reads a time-out that may be null, as serde writes None.
func optionalTimeout(s *ServerConfig, v value) (err error) {
	if !v.null() {
		s.Timeout, err = v.duration()
	}
	return err
}

// parseRegister reads auto_register_tools: without it, tools can be called by name
// but are kept out of the model's list (S4.8).
func parseRegister(s *ServerConfig, v value) error {
	on, err := v.boolean()
	s.Hidden = !on
	return err
}

// parseSeed reads the file of seed 004. What it says for all servers is what a
// server doesn't say itself.
func parseSeed(fields []value) ([]ServerConfig, error) {
	var all ServerConfig
	var list value
	for _, f := range fields {
		var err error
		switch f.name {
		case "servers":
			list = f
		case "auto_register_tools":
			err = parseRegister(&all, f)
		case "tool_timeout_secs":
			err = optionalTimeout(&all, f)
		case "max_concurrent_calls":
			if !f.null() {
				all.MaxConcurrentCalls, err = f.count()
			}
		default:
			err = f.unknown()
		}
		if err != nil {
			return nil, err
		}
	}
	items, err := list.array()
	if err != nil {
		return nil, err
	}
	var out []ServerConfig
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
func parseSeedServer(v value, all ServerConfig) (ServerConfig, error) {
	s := all
	fields, err := v.object()
	if err != nil {
		return s, err
	}
	for _, f := range fields { // the id is the name; without one the name is
		if f.name == "id" || f.name == "name" && s.Name == "" {
			if s.Name, err = f.text(); err != nil {
				return s, err
			}
		}
	}
	if s.Name != "" {
		v.path = fmt.Sprintf("server %.80q", s.Name)
		if fields, err = v.object(); err != nil {
			return s, err
		}
	}
	if err := apply(&s, fields, seedSetters); err != nil {
		return s, err
	}
	return s, s.complete(v, fields)
}

// parseSource reads how a server is reached.
func parseSource(s *ServerConfig, v value) error {
	fields, err := v.object()
	if err != nil {
		return err
	}
	// serde's default tagging: the variant is the only member's name.
	if len(fields) == 1 && fields[0].raw.Kind() == '{' {
		tag := fields[0]
		if s.Type, err = tag.serverType(tag.name); err != nil {
			return err
		}
		if fields, err = tag.object(); err != nil {
			return err
		}
	}
	return apply(s, fields, seedSource)
}
