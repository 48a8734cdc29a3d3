package config

import (
	"fmt"
	"slices"
	"strings"
)

// Parse decodes mcp.json in any of three forms: an object mcpServers, as in most MCP hosts, with answerd's additions;
// an object servers, as in VS Code; or an array servers whose items have a source (seed 004 in docs/mcp-servers.md). It
// checks the servers and returns them in the file's order.
//
// getenv returns the value of an environment variable for ${NAME}. A variable without a value or a default is an error.
// Unknown members cause warnings, except _comment and $schema. An error or a warning is one line that names the server,
// the member and the line of the file, and quotes no value. Parse checks the servers as if the service had no token of
// its own, because it does not know that. mcp.New checks them again with the token.
func Parse(data []byte, getenv func(string) string) (servers []Server, warnings []string, err error) {
	reader := &fileReader{getenv: getenv, inputs: map[string]string{}}
	top, err := parseJSON(data, reader)
	if err == nil {
		servers, err = parseFile(top)
	}
	if err == nil {
		err = Check(servers, false)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("mcp.json: %w", err)
	}
	if reader.more > 0 {
		reader.warnings = append(reader.warnings, fmt.Sprintf("%d more warnings", reader.more))
	}
	return servers, reader.warnings, nil
}

// parseFile reads the servers of a file in any of the three forms: an object "mcpServers", an object "servers" as VS
// Code has it, or a list "servers". top is the file's object. parseFile reads the inputs of VS Code before the servers,
// because the servers use the inputs' values, and warns about inputs after the servers, when their uses are known.
func parseFile(top jsonValue) ([]Server, error) {
	fields, err := top.readObject()
	if err != nil {
		return nil, err
	}

	var list, inputs *jsonValue
	var unknown []jsonValue
	for _, f := range fields {
		switch {
		case f.name == "inputs":
			inputs = &f
		case f.name != "mcpServers" && f.name != "servers":
			unknown = append(unknown, f)
		case list != nil:
			return nil, top.errorf("has both mcpServers and servers")
		default:
			list = &f
		}
	}
	switch {
	case list == nil:
		return nil, addUnknown(top.errorf("has no mcpServers"), unknown)
	case list.name == "servers" && list.raw.Kind() == '[':
		isList := func(f jsonValue) bool { return f.name == list.name }
		return parseSeedFile(*list, slices.DeleteFunc(fields, isList))
	}

	if inputs != nil {
		if err := inputs.readInputs(); err != nil {
			return nil, err
		}
	}
	for _, f := range unknown {
		f.warnUnknown()
	}
	servers, err := parseServers(*list)
	if err == nil && inputs != nil {
		inputs.warnInputs()
	}
	return servers, err
}

// parseServers reads the servers in the object list, whose member names are the servers' names.
func parseServers(list jsonValue) ([]Server, error) {
	members, err := list.readObject()
	if err != nil {
		return nil, err
	}
	var servers []Server
	for _, member := range members {
		server, err := parseServer(member)
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// fieldReader reads the value of one field, and sets what it means in a Server.
type fieldReader func(*Server, jsonValue) error

// serverFields maps each field of a server to the function that reads it. The fields after the blank line are those of
// other MCP hosts.
var serverFields = map[string]fieldReader{
	"enabled": func(s *Server, v jsonValue) error {
		on, err := v.readBool()
		s.Disabled = s.Disabled || !on
		return err
	},
	"type":        parseType,
	"url":         func(s *Server, v jsonValue) (err error) { s.URL, err = v.readString(); return },
	"headers":     parseHeaders,
	"query":       func(s *Server, v jsonValue) (err error) { s.Query, err = v.readStringMap(); return },
	"bearerToken": func(s *Server, v jsonValue) (err error) { s.BearerToken, err = v.readSecret(); return },
	"auth":        parseAuth,
	"tls":         parseTLS,
	"command":     func(s *Server, v jsonValue) (err error) { s.Command, err = v.readString(); return },
	"args":        func(s *Server, v jsonValue) (err error) { s.Args, err = v.readStringList(); return },
	"env": func(s *Server, v jsonValue) error {
		env, err := v.readEnv()
		s.Env = mergeEnv(s.Env, env)
		return err
	},
	"inheritEnv": func(s *Server, v jsonValue) error {
		on, err := v.readBool()
		s.onlyEnv = !on
		return err
	},
	"workDir":            func(s *Server, v jsonValue) (err error) { s.WorkDir, err = v.readOptionalString(); return },
	"toolPrefix":         func(s *Server, v jsonValue) (err error) { s.ToolPrefix, err = v.readOptionalString(); return },
	"timeout":            func(s *Server, v jsonValue) (err error) { s.Timeout, err = v.readTimeout(); return },
	"maxTime":            func(s *Server, v jsonValue) (err error) { s.MaxTime, err = v.readDuration(); return },
	"standaloneStream":   func(s *Server, v jsonValue) error { open, err := v.readBool(); s.StandaloneStream = &open; return err },
	"maxConcurrentCalls": func(s *Server, v jsonValue) (err error) { s.MaxConcurrentCalls, err = v.readCount(); return },
	"protocolVersion":    func(s *Server, v jsonValue) (err error) { s.ProtocolVersion, err = v.readString(); return },
	"sampling":           func(s *Server, v jsonValue) (err error) { s.Sampling, err = v.readBool(); return },
	"idempotentTools":    func(s *Server, v jsonValue) (err error) { s.IdempotentTools, err = v.readStringList(); return },
	"tools":              parseTools,
	"approval": func(s *Server, v jsonValue) error {
		mode, err := v.readString()
		s.Approval = Approval(mode)
		if err == nil && mode == "" { // valid in Go, but a mistake in a file
			err = v.errorf("must be never, destructive or always")
		}
		return err
	},
	"resources":    func(s *Server, v jsonValue) (err error) { s.Resources, err = v.readStringList(); return },
	"instructions": func(s *Server, v jsonValue) (err error) { s.Instructions, err = v.readBool(); return },
	"meta":         parseMeta,
	"pin":          func(s *Server, v jsonValue) (err error) { s.Pin, err = v.readBool(); return },

	"disabled": func(s *Server, v jsonValue) error {
		off, err := v.readBool()
		s.Disabled = s.Disabled || off
		return err
	},
	"cwd":           func(s *Server, v jsonValue) (err error) { s.WorkDir, err = v.readOptionalString(); return },
	"envFile":       parseEnvFile,
	"transport":     parseTransport,
	"httpUrl":       func(s *Server, v jsonValue) (err error) { s.URL, err = v.readString(); return },
	"serverUrl":     func(s *Server, v jsonValue) (err error) { s.URL, err = v.readString(); return },
	"autoApprove":   func(s *Server, v jsonValue) error { return v.appendStrings(&s.AutoApprove) },
	"alwaysAllow":   func(s *Server, v jsonValue) error { return v.appendStrings(&s.AutoApprove) },
	"includeTools":  func(s *Server, v jsonValue) error { return v.appendStrings(&s.AllowTools) },
	"excludeTools":  func(s *Server, v jsonValue) error { return v.appendStrings(&s.DenyTools) },
	"disabledTools": func(s *Server, v jsonValue) error { return v.appendStrings(&s.DenyTools) },
	"trust": func(s *Server, v jsonValue) error {
		trusted, err := v.readBool()
		if trusted {
			s.AutoApprove = append(s.AutoApprove, "*")
		}
		return err
	},
}

// parseHeaders reads the field headers. Files that were written for other MCP hosts often set Accept and Content-Type.
// The transport sets both itself, so parseHeaders leaves them out with a warning.
func parseHeaders(s *Server, v jsonValue) (err error) {
	s.Headers, err = v.readSecretMap()
	if err != nil {
		return err
	}
	for name := range s.Headers {
		if lower := strings.ToLower(name); lower == "accept" || lower == "content-type" {
			delete(s.Headers, name)
			v.reader.warn(v.errorf("%s is not sent: the transport sets it", name).Error())
		}
	}
	return nil
}

// parseMeta reads the field meta. It returns an empty list as a non-nil slice: in Server.Meta, an empty list means that
// the server gets no members, and nil means the default.
func parseMeta(s *Server, v jsonValue) (err error) {
	s.Meta, err = v.readStringList()
	if s.Meta == nil && !v.isNull() {
		s.Meta = []string{}
	}
	return err
}

// parseTLS reads the field tls.
func parseTLS(s *Server, v jsonValue) error {
	fields, err := v.readObject()
	if err != nil {
		return err
	}
	return readFields(s, fields, map[string]fieldReader{
		"caFile":   func(s *Server, v jsonValue) (err error) { s.TLS.CAFile, err = v.readString(); return },
		"certFile": func(s *Server, v jsonValue) (err error) { s.TLS.CertFile, err = v.readString(); return },
		"keyFile":  func(s *Server, v jsonValue) (err error) { s.TLS.KeyFile, err = v.readString(); return },
	})
}

// parseType reads the field type.
func parseType(s *Server, v jsonValue) error {
	if v.isNull() {
		return nil
	}
	text, err := v.readString()
	if err != nil {
		return err
	}
	transportType, err := v.parseTransportType(text)
	if err != nil {
		return err
	}
	s.Type = transportType
	return nil
}

// parseTransport reads the field transport, which FastMCP and LangChain use instead of type. Other hosts may use the
// field for something else, so a value that is not a transport type causes only a warning.
func parseTransport(s *Server, v jsonValue) error {
	if parseType(s, v) != nil {
		v.warnUnknown()
	}
	return nil
}

// parseServer reads one member of mcpServers, whose name is the server's name.
func parseServer(v jsonValue) (Server, error) {
	v.path = fmt.Sprintf("server %.80q", v.name)
	server := Server{Name: v.name}
	fields, err := v.readObject()
	if err != nil {
		return server, err
	}
	// Gemini CLI prefers httpUrl if a server has both.
	if slices.ContainsFunc(fields, func(f jsonValue) bool { return f.name == "httpUrl" }) {
		fields = slices.DeleteFunc(fields, func(f jsonValue) bool { return f.name == "url" })
	}
	v.reader.startServer(fields)
	if err := readFields(&server, fields, serverFields); err != nil {
		return server, err
	}
	err = server.completeServer(v, fields)
	if err != nil && server.URL == "" && server.Command == "" {
		isKnown := func(f jsonValue) bool { return serverFields[f.name] != nil }
		err = addUnknown(err, slices.DeleteFunc(fields, isKnown))
	}
	return server, err
}

// addUnknown adds the first unknown member to err, which says that a member is missing. The unknown member may be the
// missing one with a misspelled name.
func addUnknown(err error, unknown []jsonValue) error {
	if len(unknown) == 0 {
		return err
	}
	return fmt.Errorf("%w; %w", err, unknown[0].errorf("unknown member"))
}

// readFields reads fields into s in the file's order. readers maps a field's name to the function that reads it. A
// field that is not in readers causes a warning. If two fields set the same thing, such as cwd and workDir, the later
// one counts.
func readFields(s *Server, fields []jsonValue, readers map[string]fieldReader) error {
	for _, f := range fields {
		read := readers[f.name]
		if read == nil {
			f.warnUnknown()
			continue
		}
		if err := read(s, f); err != nil {
			return err
		}
	}
	return nil
}

// completeServer sets the type if the file has none, adds the inherited environment of a child process, and checks the
// server. v is the server in the file, and fields are its members. An error names the line of the wrong field, or the
// server's line if the file does not have that field.
func (s *Server) completeServer(v jsonValue, fields []jsonValue) error {
	s.incomplete = v.reader.incomplete
	if s.Type == "" && s.URL != "" && s.Command != "" {
		return v.errorf("has both url and command")
	}
	s.Type = s.TransportType()
	switch {
	case s.Type == TypeStdio && s.Command == "" && !s.incomplete:
		return v.errorf("command is missing")
	case s.Type == TypeStdio && !s.onlyEnv:
		s.Env = mergeEnv(inheritedEnv(v.reader.getenv), s.Env)
	case s.Type != TypeStdio:
		s.dropEnv(fields)
	}
	// Check the server here, where the line is known. Whether the service has a token of its own is not known yet, so
	// mcp.New checks the server again.
	mistake := s.checkServer(false)
	if mistake == nil {
		return nil
	}
	v.path += ", " + mistake.field
	name, _, _ := strings.Cut(mistake.field, ".") // of the server's own member: tls for tls.caFile
	for _, field := range fields {
		if field.name == name || slices.Contains(otherNames[name], field.name) {
			v.nameOffset = field.nameOffset // for the line number in the error
		}
	}
	return v.errorf("%s", mistake.problem)
}

// dropEnv drops the environment of a server that is not a child process, with a warning. Cursor's documentation had one
// beside a url, and no host uses it there. fields are the server's members in the file.
func (s *Server) dropEnv(fields []jsonValue) {
	for _, f := range fields {
		if len(s.Env) > 0 && (f.name == "env" || f.name == "envFile") {
			s.Env = nil
			f.reader.warn(f.errorf("is not used: it is for servers of type stdio").Error())
		}
	}
}

// otherNames maps some of answerd's fields to the fields of other MCP hosts that set the same thing.
var otherNames = map[string][]string{"url": {"httpUrl", "serverUrl"}, "workDir": {"cwd"}, "bearerToken": {"auth"}}

// parseTools reads the field tools, which says which tools may be called and which need approval. In files of GitHub
// Copilot, the field is a list of the tools that may be called. An empty list there allows none.
func parseTools(server *Server, v jsonValue) error {
	if v.raw.Kind() == '[' {
		allowed, err := v.readStringList()
		server.AllowTools = append(server.AllowTools, allowed...)
		if len(allowed) == 0 { // an empty AllowTools would allow all tools
			server.DenyTools = append(server.DenyTools, "*")
		}
		return err
	}
	fields, err := v.readObject()
	if err != nil {
		return err
	}
	return readFields(server, fields, map[string]fieldReader{
		"allow":   func(s *Server, v jsonValue) error { return v.appendStrings(&s.AllowTools) },
		"deny":    func(s *Server, v jsonValue) error { return v.appendStrings(&s.DenyTools) },
		"approve": func(s *Server, v jsonValue) (err error) { s.ApproveTools, err = v.readStringList(); return },
	})
}

// parseTransportType returns the transport type that text means, in any spelling that MCP hosts use. text is a part of
// v. If text is not a transport type, the error is about v.
func (v jsonValue) parseTransportType(text string) (string, error) {
	switch strings.NewReplacer("-", "", "_", "").Replace(strings.ToLower(text)) {
	case "http", "streamablehttp":
		return TypeHTTP, nil
	case "stdio", "process", "local":
		return TypeStdio, nil
	case "websocket", "ws":
		return TypeWebSocket, nil
	case "sse":
		return TypeSSE, nil
	}
	return "", v.errorf("must be http, stdio, websocket or sse")
}
