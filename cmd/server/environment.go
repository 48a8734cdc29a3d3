package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"

	"answerd/internal/auth"
	"answerd/internal/auth/sealed"
	"answerd/internal/llm"
	mcpconfig "answerd/internal/mcp/config"
)

// environment maps the names of environment variables to their values. Only main reads the variables of the process.
type environment map[string]string

// newEnvironment returns the environment in list, which has the form of os.Environ. It removes line breaks at the end
// of a value, because .env files from Windows and Kubernetes Secrets made with echo have them.
func newEnvironment(list []string) environment {
	e := make(environment, len(list))
	for _, variable := range list {
		name, value, _ := strings.Cut(variable, "=")
		e[name] = strings.TrimRight(value, "\r\n")
	}
	return e
}

// get returns the value of the variable name, or "" if it is not set.
func (e environment) get(name string) string { return e[name] }

// override sets the variables in settings. A variable also replaces its counterpart with or without _FILE. Otherwise a
// secret and the file for the same secret could both be set.
func (e environment) override(settings map[string]string) {
	for name := range settings {
		delete(e, name+"_FILE")
		delete(e, strings.TrimSuffix(name, "_FILE"))
	}
	maps.Copy(e, settings)
}

// readSettings returns the values of all settings that are set, by the names in the tags of config. An empty variable
// counts as unset, because compose files set variables to "". If the _FILE variable of a secret is set, the secret
// comes from that file, even if its own variable is set too. The error is a *configError for a file that is empty or
// cannot be read.
func (e environment) readSettings() (map[string]string, error) {
	values := make(map[string]string)
	for f := range reflect.TypeFor[config]().Fields() {
		name := f.Tag.Get("env")
		if name == "" {
			continue
		}
		value := e.get(name)
		if isSecret := f.Type == reflect.TypeFor[auth.Secret](); isSecret && e.get(name+"_FILE") != "" {
			var err error
			if value, err = e.readSecretFile(name + "_FILE"); err != nil {
				return nil, err
			}
		}
		if value != "" {
			values[name] = value
		}
	}
	return values, nil
}

// readSecretFile returns the secret in the file that setting names (readSecretText). An empty file is an error, because
// otherwise the setting without _FILE would silently take effect.
func (e environment) readSecretFile(setting string) (string, error) {
	secret, err := readSecretText(e.get(setting))
	switch {
	case errors.Is(err, errEmptySecret):
		return "", &configError{setting, "is empty"}
	case err != nil:
		return "", &configError{setting, "cannot be read: " + fileReason(err)}
	}
	return secret, nil
}

const (
	maxUnknownSettings = 20  // warnings that unknownSettings returns
	maxVariableName    = 100 // bytes; longer names are not compared with settings
	minComparedName    = 8   // bytes; shorter names without the prefix of a setting often belong to another program
	maxMisspelling     = 2   // a library's variable counts as a misspelled setting up to this edit distance
)

// libraryVariable matches variables that the OpenTelemetry and OCI libraries may read. Not all of them are settings.
var libraryVariable = regexp.MustCompile(`^(OTEL|OCI)_`)

// serviceVariable matches variables that Kubernetes sets for each Service.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$`)

// unknownSettings returns a warning for each variable that is probably a misspelled setting: it has the same prefix as
// a setting, up to the first underscore, or one edit turns it into a setting. It skips variables that Kubernetes or a
// library uses, and those for which isUsed returns true. It returns at most maxUnknownSettings warnings, sorted by
// name.
func (e environment) unknownSettings(isUsed func(name string) bool) []*configError {
	known := settingNames()
	prefixes := make(map[string]bool)
	for _, name := range known {
		if prefix, _, ok := strings.Cut(name, "_"); ok {
			prefixes[prefix] = true
		}
	}
	var warnings []*configError
	for name := range e {
		if len(name) > maxVariableName || slices.Contains(known, name) || serviceVariable.MatchString(name) || isUsed(name) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int { return editDistance(name, a) - editDistance(name, b) })
		if isMisspelled(name, nearest, prefixes) {
			warnings = append(warnings, &configError{name, "is not a setting and has no effect; the nearest setting is " + nearest})
		}
	}
	slices.SortFunc(warnings, func(a, b *configError) int { return strings.Compare(a.name, b.name) })
	return warnings[:min(len(warnings), maxUnknownSettings)]
}

// isMisspelled reports whether the variable name is probably a misspelled setting. nearest is the setting with the least
// edit distance to name, and prefixes has the prefixes of all settings.
func isMisspelled(name, nearest string, prefixes map[string]bool) bool {
	distance := editDistance(name, nearest)
	if libraryVariable.MatchString(name) && distance > maxMisspelling {
		return false
	}
	prefix, _, hasPrefix := strings.Cut(name, "_")
	isOneEditAway := distance <= 1 && len(name) >= minComparedName
	return hasPrefix && prefixes[prefix] || isOneEditAway
}

// literalSettings returns a warning for each setting whose value has quotes around it, or a space at one of its ends.
// Shells and Compose remove them from an env file, docker run --env-file does not. An endpoint would only refuse such a
// key or name of a model.
func (e environment) literalSettings() (warnings []*configError) {
	for _, name := range settingNames() {
		value := e.get(name)
		if strings.TrimSpace(value) != value {
			warnings = append(warnings, &configError{name, "begins or ends with a space, which is part of the value"})
			continue
		}
		last := len(value) - 1
		if last > 0 && (value[0] == '"' || value[0] == '\'') && value[last] == value[0] {
			warnings = append(warnings, &configError{name, "is in quotes, which are part of the value; docker run --env-file does not remove them"})
		}
	}
	return warnings
}

// editDistance returns the Levenshtein distance of a and b: the least number of insertions, deletions and replacements
// of bytes that turn a into b.
func editDistance(a, b string) int {
	// row is one row of the matrix: after i rounds, row[j] is the distance of a[:i] and b[:j].
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0] // the distance of a[:i] and b[:j]
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

// findWarnings returns a warning for each setting that is probably a mistake but does not keep the service from
// starting.
func (c *config) findWarnings(environ environment) []*configError {
	warnings := append(environ.unknownSettings(c.usedInFiles()), environ.literalSettings()...)
	usesDefaultEndpoint := slices.ContainsFunc(c.servedModels(), func(p llm.Profile) bool { return !hasOwnEndpoint(p) })
	if c.usesOpenAI() && c.LLMAPIKey.IsZero() && usesDefaultEndpoint {
		warnings = append(warnings, &configError{"LLM_API_KEY", "is not set, and OpenAI's endpoint answers no request without a key; set it, or OPENAI_API_KEY, or LLM_BASE_URL to another endpoint"})
	}
	if c.exportsOTLP() {
		warnings = append(warnings, otlpWarnings(environ)...)
	}
	exporter, effective := environ.get("OTEL_TRACES_EXPORTER"), "none"
	if c.EnableTracing {
		effective = "otlp"
	}
	if exporter != "" && exporter != effective && !c.OTelSDKDisabled {
		warnings = append(warnings, &configError{"OTEL_TRACES_EXPORTER", "has no effect: ENABLE_TRACING says whether traces are exported, by OTLP"})
	}
	if c.EnableTracing {
		warnings = append(warnings, samplerWarnings(environ)...)
	}
	return warnings
}

// otlpWarnings returns warnings about OpenTelemetry SDK variables that do not affect the OTLP export. The specification
// requires the SDK to use its default for a number that it cannot parse.
func otlpWarnings(environ environment) (warnings []*configError) {
	for _, name := range slices.Sorted(maps.Keys(environ)) {
		value := environ.get(name)
		isProtocol := strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") && strings.HasSuffix(name, "PROTOCOL")
		if isProtocol && value == "grpc" {
			warnings = append(warnings, &configError{name, "has no effect: OTLP is sent as http/protobuf, and collectors often have another port for it, 4318"})
		}
		if _, err := strconv.Atoi(value); err != nil && value != "" && otlpNumber.MatchString(name) {
			warnings = append(warnings, &configError{name, "has no effect, as if it were unset: must be a whole number; times are in milliseconds"})
		}
	}
	return warnings
}

// samplerWarnings returns warnings about a sampler or ratio that the OpenTelemetry SDK would replace with its default,
// which samples all traces.
func samplerWarnings(environ environment) (warnings []*configError) {
	sampler := strings.ToLower(strings.TrimSpace(environ.get("OTEL_TRACES_SAMPLER")))
	if sampler != "" && !slices.Contains(samplers, sampler) {
		warnings = append(warnings, &configError{"OTEL_TRACES_SAMPLER", "has no effect, as if it were unset: must be " + strings.Join(samplers, ", ")})
	}
	arg := strings.TrimSpace(environ.get("OTEL_TRACES_SAMPLER_ARG"))
	ratio, err := strconv.ParseFloat(arg, 64)
	isRatio := err == nil && ratio >= 0 && ratio <= 1 // false for NaN
	if strings.HasSuffix(sampler, "traceidratio") && arg != "" && !isRatio {
		warnings = append(warnings, &configError{"OTEL_TRACES_SAMPLER_ARG", "has no effect, as if it were unset: must be a number from 0 to 1, such as 0.1 for a tenth of the traces"})
	}
	return warnings
}

// samplers lists the values of OTEL_TRACES_SAMPLER that the OpenTelemetry SDK for Go supports.
var samplers = []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}

// exportsOTLP reports whether traces, metrics or the log are exported with OTLP.
func (c *config) exportsOTLP() bool {
	return c.EnableTracing || c.exportsMetrics() || c.OTelLogsExporter == "otlp"
}

// usedInFiles reads mcp.json and MODELS_FILE. It returns a function that reports whether one of these files uses the
// variable name. Operators choose such names freely, so they are not misspelled settings.
func (c *config) usedInFiles() func(name string) bool {
	var texts strings.Builder
	inMCPConfig := make(map[string]bool) // variables in mcp.json, also in the syntax of other MCP hosts: ${input:ID}
	for _, path := range []string{c.MCPConfigPath, c.ModelsFile} {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the code that needs the file reports it
		}
		texts.Write(data)
		if path == c.MCPConfigPath {
			_, _, _ = mcpconfig.Parse(data, func(name string) string { // its error is reported by mcpServers
				inMCPConfig[name] = true
				return c.lookup(name)
			})
		}
	}
	return func(name string) bool { return inMCPConfig[name] || strings.Contains(texts.String(), "${"+name) }
}

// logSettingWarnings logs c.warnings, each with the page that explains the setting.
func (c *config) logSettingWarnings(logger *slog.Logger) {
	for _, w := range c.warnings {
		logger.Warn("setting needs attention", "setting", w.name, "reason", w.reason, "help", helpPage(w))
	}
}

// deriveSettings sets the settings that follow from others. OTEL_SDK_DISABLED turns off all telemetry, PORT sets the
// address if ADDR is not set, and OPENAI_BASE_URL and OPENAI_API_KEY replace an unset model endpoint and key.
func (c *config) deriveSettings() {
	if c.OTelSDKDisabled {
		c.EnableTracing = false
		c.OTelMetricsExporter = nil
		c.OTelLogsExporter = "none"
	}
	if c.portSetsAddr {
		c.Addr = ":" + c.Port
	}
	c.LLMBaseURL = cmp.Or(c.LLMBaseURL, c.lookup("OPENAI_BASE_URL"), "https://"+openAIHost+"/v1")
	if c.LLMAPIKey.IsZero() {
		c.LLMAPIKey = auth.NewSecret(c.lookup("OPENAI_API_KEY"))
	}
}

// loadConfig reads the settings, the files of models and agents, the keys and the TLS files. It makes every check that
// needs neither the network nor the parts that serve builds. The error is a *configError for the first wrong setting.
// With an error the config is incomplete; only runDemo uses it then, to learn the model endpoint.
func loadConfig(environ environment) (config, error) {
	settings, err := environ.readSettings()
	if err != nil {
		return config{}, err
	}
	cfg := config{
		lookup:            environ.get,
		modelSet:          settings["DEFAULT_MODEL_ID"] != "",
		eventsMaxBytesSet: settings["EVENTS_MAX_BYTES"] != "",
	}
	if err := env.ParseWithOptions(&cfg, env.Options{Environment: settings, FuncMap: settingParsers}); err != nil {
		return config{}, parseError(err)
	}
	cfg.portSetsAddr = settings["ADDR"] == "" && cfg.Port != ""
	cfg.deriveSettings()
	if err := cfg.readModels(); err != nil {
		return config{}, err
	}
	cfg.warnings = cfg.findWarnings(environ)
	for _, checkOrRead := range []func() error{
		cfg.validate, cfg.checkOTLPHeaders, func() error { return cfg.checkOTLPFiles(environ) },
		cfg.readModelCertificates, cfg.readAgents, cfg.readTokenKeys, cfg.readCertificates,
	} {
		if err := checkOrRead(); err != nil {
			return cfg, err
		}
	}
	return cfg, nil
}

// otlpHeader matches a percent-encoded name=value pair (OpenTelemetry specification, "Protocol Exporter", "Specifying
// headers via environment variables").
var otlpHeader = regexp.MustCompile("^\\s*[-!#$%&'*+.^_`|~0-9A-Za-z]+\\s*=([^%]|%[0-9A-Fa-f]{2})*$")

// checkOTLPHeaders returns a *configError if the OpenTelemetry SDK would not accept a header for OTLP. The SDK would
// drop the header and write it to its own log, although such headers usually are credentials.
func (c *config) checkOTLPHeaders() error {
	if !c.exportsOTLP() {
		return nil // the headers are not used
	}
	for _, signal := range []string{"", "TRACES_", "METRICS_", "LOGS_"} {
		name := "OTEL_EXPORTER_OTLP_" + signal + "HEADERS"
		for header := range strings.SplitSeq(c.lookup(name), ",") {
			if strings.TrimSpace(header) != "" && !otlpHeader.MatchString(header) {
				return &configError{name, "must be name=value, several of them separated by commas; other commas and % are percent-encoded"}
			}
		}
	}
	return nil
}

// otlpNumber matches OpenTelemetry SDK variables that hold whole numbers, and otlpFile those that hold file paths.
var (
	otlpNumber = regexp.MustCompile(`^OTEL_(EXPORTER_OTLP_\w*TIMEOUT|(BSP|BLRP|METRIC_EXPORT)_\w+|\w+_LIMIT)$`)
	otlpFile   = regexp.MustCompile(`^OTEL_EXPORTER_OTLP_\w*(CERTIFICATE|CLIENT_KEY)$`)
)

// checkOTLPFiles returns a *configError if a certificate or key file for OTLP cannot be read. The OpenTelemetry SDK
// would export without it.
func (c *config) checkOTLPFiles(environ environment) error {
	if !c.exportsOTLP() {
		return nil // the files are not used
	}
	for _, name := range slices.Sorted(maps.Keys(environ)) {
		path := environ.get(name)
		if path == "" || !otlpFile.MatchString(name) {
			continue
		}
		if _, err := os.ReadFile(path); err != nil {
			return &configError{name, "cannot be read: " + fileReason(err)}
		}
	}
	return nil
}

// readTokenKeys sets c.tokenKeys from TOKENS_KEY_FILE. It does nothing if that is not set. Every error is a
// *configError.
func (c *config) readTokenKeys() (err error) {
	if c.TokensKeyFile == "" {
		return nil
	}
	c.tokenKeys, err = sealed.ReadKeys(c.TokensKeyFile)
	if _, ok := errors.AsType[*os.PathError](err); ok {
		return &configError{"TOKENS_KEY_FILE", "cannot be read: " + fileReason(err)}
	}
	if err != nil {
		return &configError{"TOKENS_KEY_FILE", err.Error()}
	}
	return nil
}

// settingParsers parses settings by their type. The parsers accept more than strconv and time do: yes and on for true,
// and a duration without a unit as seconds.
var settingParsers = map[reflect.Type]env.ParserFunc{
	reflect.TypeFor[bool](): func(s string) (any, error) { return parseBool(s) },
	reflect.TypeFor[time.Duration](): func(s string) (any, error) {
		if seconds, err := strconv.ParseUint(s, 10, 31); err == nil {
			return time.Duration(seconds) * time.Second, nil
		}
		return time.ParseDuration(s)
	},
}

// parseBool parses a setting that is true or false. It accepts yes, y, on, no, n and off in any case, and what
// strconv.ParseBool accepts.
func parseBool(s string) (bool, error) {
	switch strings.ToLower(s) {
	case "yes", "y", "on":
		return true, nil
	case "no", "n", "off":
		return false, nil
	}
	return strconv.ParseBool(s)
}

// parseError turns err, an error of package env, into a *configError that names the setting instead of the config
// field.
func parseError(err error) error {
	if parseErr, ok := errors.AsType[env.ParseError](err); ok {
		field, _ := reflect.TypeFor[config]().FieldByName(parseErr.Name)
		return &configError{field.Tag.Get("env"), fmt.Sprintf("not a %s: %v", typeName(parseErr.Type), parseReason(parseErr.Err))}
	}
	return &configError{"environment", strings.ReplaceAll(err.Error(), "\n", " ")}
}

// parseReason removes the rejected value from err, if err comes from strconv, which quotes it.
func parseReason(err error) error {
	if number, ok := errors.AsType[*strconv.NumError](err); ok {
		return number.Err
	}
	return err
}

// typeName describes the value that a setting of type t must have, for error messages.
func typeName(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[time.Duration]():
		return "duration like 30s"
	case reflect.TypeFor[rateLimit]():
		return "rate like 10/s"
	case reflect.TypeFor[limitBy]():
		return "kind of caller"
	case reflect.TypeFor[callerBudgets]():
		return "budget like cost=5/24h"
	case reflect.TypeFor[byteSize]():
		return "size like 1MiB"
	case reflect.TypeFor[int](), reflect.TypeFor[int64]():
		return "whole number"
	case reflect.TypeFor[float64]():
		return "number"
	case reflect.TypeFor[bool]():
		return "truth value"
	}
	return t.String()
}
