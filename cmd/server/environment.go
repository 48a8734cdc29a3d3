package main

import (
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"answerd/internal/auth"
)

// environment holds the variables of a process by name. Only main reads the real ones, so tests
// run with their own.
type environment map[string]string

// newEnvironment returns the environment of os.Environ.
func newEnvironment(list []string) environment {
	e := make(environment, len(list))
	for _, variable := range list {
		name, value, _ := strings.Cut(variable, "=")
		e[name] = value
	}
	return e
}

// get returns the value of a variable, or "" if it is not set.
func (e environment) get(name string) string { return e[name] }

// override sets variables. A secret and the file that it is read from replace each other.
func (e environment) override(settings map[string]string) {
	for name := range settings {
		delete(e, name+"_FILE")
		delete(e, strings.TrimSuffix(name, "_FILE"))
	}
	maps.Copy(e, settings)
}

// readSettings returns the settings that are set, by the names in the tags of config. An empty
// variable counts as unset, because compose files set variables that way. Secrets with _FILE are
// read from their files.
func (e environment) readSettings() (map[string]string, error) {
	out := make(map[string]string)
	secret := reflect.TypeFor[auth.Secret]()
	for f := range reflect.TypeFor[config]().Fields() {
		name := f.Tag.Get("env")
		if name == "" {
			continue
		}
		value := e.get(name)
		if f.Type == secret {
			if path := e.get(name + "_FILE"); path != "" {
				b, err := os.ReadFile(path)
				if err != nil {
					return nil, &configError{name + "_FILE", "cannot be read: " + fileReason(err)}
				}
				value = strings.TrimRight(string(b), "\r\n")
			}
		}
		if value != "" {
			out[name] = value
		}
	}
	return out, nil
}

// settingNames returns the names of all settings, those of secrets also with _FILE.
func settingNames() []string {
	names := []string{"OPENAI_API_KEY", "OPENAI_BASE_URL"}
	for f := range reflect.TypeFor[config]().Fields() {
		name := f.Tag.Get("env")
		if name == "" {
			continue
		}
		names = append(names, name)
		if f.Type == reflect.TypeFor[auth.Secret]() {
			names = append(names, name+"_FILE")
		}
	}
	return names
}

const (
	maxUnknownSettings = 20  // reported at a time
	maxVariableName    = 100 // bytes; longer names are not compared
	maxMisspelling     = 2   // edits that make another name of a setting a misspelling of it
)

// libraryVariable matches variables that the OpenTelemetry and OCI libraries may read.
var libraryVariable = regexp.MustCompile(`^(OTEL|OCI)_`)

// serviceVariable matches variables that Kubernetes sets for each Service.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$`)

// unknownSettings returns a warning for each variable that is probably a misspelled setting: it
// begins like a setting, up to the first underscore, and is not one. It omits variables for which
// uses is true.
func (e environment) unknownSettings(uses func(name string) bool) []*configError {
	known := settingNames()
	prefixes := make(map[string]bool)
	for _, name := range known {
		if prefix, _, ok := strings.Cut(name, "_"); ok {
			prefixes[prefix] = true
		}
	}
	var out []*configError
	for name := range e {
		prefix, _, ok := strings.Cut(name, "_")
		if !ok || !prefixes[prefix] || len(name) > maxVariableName || slices.Contains(known, name) || serviceVariable.MatchString(name) || uses(name) {
			continue
		}
		like := nearestName(name, known)
		if libraryVariable.MatchString(name) && editDistance(name, like) > maxMisspelling {
			continue
		}
		out = append(out, &configError{name, "is not a setting and has no effect; the nearest setting is " + like})
	}
	slices.SortFunc(out, func(a, b *configError) int { return strings.Compare(a.name, b.name) })
	return out[:min(len(out), maxUnknownSettings)]
}

// nearestName returns the first of names with the least edit distance to name.
func nearestName(name string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return editDistance(name, a) - editDistance(name, b) })
}

// editDistance returns the least number of insertions, deletions and replacements of bytes that
// turn a into b (Levenshtein distance). It keeps one row of the matrix.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// findWarnings returns warnings about settings that are probably a mistake, although the service
// can start.
func (c *config) findWarnings(environ environment) []*configError {
	// ${NAME} in these files can use a variable of any name, so such a variable is not a mistake.
	var files strings.Builder
	for _, path := range []string{c.MCPConfigPath, c.ModelsFile} {
		if data, err := os.ReadFile(path); err == nil {
			files.Write(data)
		}
	}
	used := files.String()
	out := environ.unknownSettings(func(name string) bool { return strings.Contains(used, "${"+name) })
	if c.usesOpenAI() && c.LLMAPIKey.IsZero() {
		out = append(out, &configError{"LLM_API_KEY", "is not set, and OpenAI's endpoint answers no request without a key; set it, or OPENAI_API_KEY, or LLM_BASE_URL to another endpoint"})
	}
	return out
}

// logSettingWarnings logs the settings that are probably a mistake.
func (c *config) logSettingWarnings(logger *slog.Logger) {
	for _, w := range c.warnings {
		logger.Warn("setting needs attention", "setting", w.name, "reason", w.reason, "help", helpPage(w))
	}
}
