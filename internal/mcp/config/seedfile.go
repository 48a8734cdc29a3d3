package config

import (
	"fmt"
	"time"
)

// seedServerFields maps each field of a server in the form of seed 004 to the function that reads it. seedSourceFields
// does so for the fields of source. The files are written for a Rust program, and spell a type (Http, http) and a
// source ({"type": "Http", …}, {"Http": {…}}) in two ways each.
var seedServerFields = map[string]fieldReader{
	// seedServerName has read id and name already, so these functions only check their types.
	"id":                   func(_ *Server, v jsonValue) error { _, err := v.readString(); return err },
	"name":                 func(_ *Server, v jsonValue) error { _, err := v.readString(); return err },
	"source":               parseSource,
	"enabled":              serverFields["enabled"],
	"tool_prefix":          serverFields["toolPrefix"],
	"resources":            func(s *Server, v jsonValue) (err error) { s.Resources, err = v.readStringList(); return },
	"bearer_token":         serverFields["bearerToken"],
	"tool_timeout_secs":    readToolTimeout,
	"max_concurrent_calls": serverFields["maxConcurrentCalls"],
	"auto_register_tools":  parseAutoRegister,
}

var seedSourceFields = map[string]fieldReader{
	"type":         serverFields["type"],
	"url":          serverFields["url"],
	"headers":      serverFields["headers"],
	"timeout_secs": func(s *Server, v jsonValue) error { return v.readSeconds(&s.Timeout) },
	"command":      serverFields["command"],
	"args":         serverFields["args"],
	"work_dir":     serverFields["workDir"],
	"env":          serverFields["env"],
}

// readToolTimeout reads tool_timeout_secs, which limits the time of a whole call.
func readToolTimeout(s *Server, v jsonValue) error { return v.readSeconds(&s.MaxTime) }

// readSeconds reads a timeout in seconds into *to. It leaves *to unchanged for null, which is how Rust's serde writes
// an absent value.
func (v jsonValue) readSeconds(to *time.Duration) (err error) {
	if !v.isNull() {
		*to, err = v.readDuration()
	}
	return err
}

// parseAutoRegister reads auto_register_tools. If it is false, tools can be called by name but are not offered to the
// model.
func parseAutoRegister(s *Server, v jsonValue) error {
	on, err := v.readBool()
	s.Hidden = !on
	return err
}

// seedDefaultFields maps each field of a file in the form of seed 004, except servers, to the function that reads it.
// The fields are defaults for all servers.
var seedDefaultFields = map[string]fieldReader{
	"auto_register_tools": parseAutoRegister,
	"tool_timeout_secs":   readToolTimeout,
	"max_concurrent_calls": func(s *Server, v jsonValue) (err error) {
		if !v.isNull() {
			s.MaxConcurrentCalls, err = v.readCount()
		}
		return err
	},
}

// parseSeedFile reads a file in the form of seed 004. servers is the member servers of the file, and fields are the
// others.
func parseSeedFile(servers jsonValue, fields []jsonValue) ([]Server, error) {
	var defaults Server
	if err := readFields(&defaults, fields, seedDefaultFields); err != nil {
		return nil, err
	}
	items, err := servers.readArray()
	if err != nil {
		return nil, err
	}
	var parsed []Server
	for i, item := range items {
		item.path = fmt.Sprintf("servers[%d]", i)
		server, err := parseSeedServer(item, defaults)
		if err != nil {
			return nil, err
		}
		parsed = append(parsed, server)
	}
	return parsed, nil
}

// parseSeedServer reads one server of a file in the form of seed 004. If the server lacks a field, it keeps that
// field's value in defaults.
func parseSeedServer(v jsonValue, defaults Server) (Server, error) {
	server := defaults
	fields, err := v.readObject()
	if err != nil {
		return server, err
	}
	if server.Name, err = seedServerName(fields); err != nil {
		return server, err
	}
	if server.Name != "" {
		// Read the fields again, so that their errors begin with v's new path, which has the server's name.
		v.path = fmt.Sprintf("server %.80q", server.Name)
		if fields, err = v.readObject(); err != nil {
			return server, err
		}
	}
	v.reader.startServer(fields)
	if err := readFields(&server, fields, seedServerFields); err != nil {
		return server, err
	}
	// In this form, timeout_secs and tool_timeout_secs both limit the whole call, regardless of progress. In a Server,
	// progress restarts Timeout, so set both fields to the smaller value: Timeout then never ends a call before
	// MaxTime.
	limit := smallerTimeout(server.Timeout, server.MaxTime)
	server.Timeout, server.MaxTime = limit, limit
	return server, server.completeServer(v, fields)
}

// seedServerName returns the server's id or, if it has no id, its name. It returns "" if it has neither.
func seedServerName(fields []jsonValue) (name string, err error) {
	for _, f := range fields {
		isID := f.name == "id"
		isFallback := f.name == "name" && name == ""
		if isID || isFallback {
			if name, err = f.readString(); err != nil {
				return "", err
			}
		}
	}
	return name, nil
}

// smallerTimeout returns the smaller of two timeouts, where 0 means that a timeout is not set. It returns 0 if neither
// is.
func smallerTimeout(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// parseSource reads the field source, which says how to reach the server.
func parseSource(server *Server, v jsonValue) error {
	fields, err := v.readObject()
	if err != nil {
		return err
	}
	// In serde's default representation of an enum, the object has one member, whose name is the type.
	if len(fields) == 1 && fields[0].raw.Kind() == '{' {
		variant := fields[0]
		if server.Type, err = variant.parseTransportType(variant.name); err != nil {
			return err
		}
		if fields, err = variant.readObject(); err != nil {
			return err
		}
	}
	return readFields(server, fields, seedSourceFields)
}
