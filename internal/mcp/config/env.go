package config

import (
	"fmt"
	"maps"
	"regexp"
	"runtime"
	"strings"

	"answerd/internal/auth"
)

// inheritedNames returns the names of the variables that a child process inherits. They are the same as in the official
// SDKs (modelcontextprotocol/typescript-sdk, DEFAULT_INHERITED_ENV_VARS). Other variables may be secrets that the MCP
// server must not get.
func inheritedNames() []string {
	if runtime.GOOS == "windows" {
		return []string{"APPDATA", "HOMEDRIVE", "HOMEPATH", "LOCALAPPDATA", "PATH", "PATHEXT", "PROCESSOR_ARCHITECTURE",
			"SYSTEMDRIVE", "SYSTEMROOT", "TEMP", "USERNAME", "USERPROFILE", "PROGRAMFILES"}
	}
	return []string{"HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER"}
}

// inheritedEnv returns the variables that a child process inherits. Like the SDKs, it leaves out values that begin with
// (), which are functions exported by a shell.
func inheritedEnv(getenv func(string) string) map[string]auth.Secret {
	out := map[string]auth.Secret{}
	for _, name := range inheritedNames() {
		if value := getenv(name); value != "" && !strings.HasPrefix(value, "()") {
			out[name] = auth.NewSecret(value)
		}
	}
	return out
}

// mergeEnv returns the variables of both environments, with the values of overrides for those that both have. It
// returns nil if there are none.
func mergeEnv(defaults, overrides map[string]auth.Secret) map[string]auth.Secret {
	if len(defaults)+len(overrides) == 0 {
		return nil
	}
	merged := map[string]auth.Secret{}
	maps.Copy(merged, defaults)
	maps.Copy(merged, overrides)
	return merged
}

// readEnv reads the variables in the field env. It keeps the spelling of numbers, which VS Code allows, and of
// booleans. It leaves out a variable whose value is null. If v itself is null, it returns nil.
func (v jsonValue) readEnv() (map[string]auth.Secret, error) {
	if v.isNull() {
		return nil, nil
	}
	members, err := v.readObject()
	if err != nil {
		return nil, err
	}
	env := make(map[string]auth.Secret, len(members))
	for _, m := range members {
		switch m.raw.Kind() {
		case 'n': // null
		case '0', 't', 'f': // a number, true or false
			env[m.name] = auth.NewSecret(string(m.raw))
		default:
			if env[m.name], err = m.readSecret(); err != nil {
				return nil, err
			}
		}
	}
	return env, nil
}

// parseEnvFile reads the file that the field envFile names. As in VS Code and Cursor, its lines have the form
// NAME=value. Variables of the field env override those of the file, regardless of the order of the two fields in
// mcp.json.
func parseEnvFile(server *Server, v jsonValue) error {
	name, err := v.readString()
	if err != nil {
		return err
	}
	text, err := readText(name, v.reader.getenv)
	if err != nil {
		if err = v.reader.reportMissing(err); err == nil {
			return nil
		}
		return v.errorf("%s", err)
	}
	variables, err := ReadEnv(text)
	if err != nil {
		return v.errorf("%s", err)
	}
	env := make(map[string]auth.Secret, len(variables))
	for name, value := range variables {
		env[name] = auth.NewSecret(value)
	}
	server.Env = mergeEnv(env, server.Env)
	return nil
}

// ReadEnv returns the variables in the text of an environment file. It returns an error with the number of the first
// line that is not NAME=value, a comment or empty.
func ReadEnv(text string) (map[string]string, error) {
	env := make(map[string]string)
	for i, line := range strings.Split(strings.TrimPrefix(text, byteOrderMark), "\n") {
		line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "export "))
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name = strings.TrimSpace(name)
		if !ok || !envFileName.MatchString(name) {
			return nil, fmt.Errorf("line %d of that file is not NAME=value", i+1)
		}
		env[name] = unquoteEnv(strings.TrimSpace(value))
	}
	return env, nil
}

// envFileName matches the names of variables in environment files. As in VS Code and Docker, they may have dots and
// hyphens, such as those of Spring.
var envFileName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.-]*$`)

// unquoteEnv removes the quotes around a value of an environment file, and a comment after the value. Between double
// quotes it also replaces the escapes \n, \" and \\.
func unquoteEnv(value string) string {
	if end := closingQuote(value); end > 0 {
		inside := value[1:end]
		if value[0] == '"' {
			inside = strings.NewReplacer(`\n`, "\n", `\"`, `"`, `\\`, `\`).Replace(inside)
		}
		return inside
	}
	value, _, _ = strings.Cut(value, " #")
	return strings.TrimSpace(value)
}

// closingQuote returns the offset of the quote that closes a quoted value, or 0 if value is not quoted or not closed.
// The closing quote is the first unescaped one that only a comment or nothing follows. If there is none, it is the last
// byte, if that is such a quote, even an escaped one. A backslash escapes only between double quotes.
func closingQuote(value string) int {
	if !strings.HasPrefix(value, `"`) && !strings.HasPrefix(value, "'") {
		return 0
	}
	quote := value[0]
	for i := 1; i < len(value); i++ {
		switch {
		case value[i] == '\\' && quote == '"':
			i++ // the next byte is escaped, and may be a quote
		case value[i] == quote:
			rest := strings.TrimSpace(value[i+1:])
			if rest == "" || rest[0] == '#' {
				return i
			}
		}
	}
	if last := len(value) - 1; value[last] == quote {
		return last
	}
	return 0
}
