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

// environment holds the values of environment variables by name. Only main reads those of the process.
type environment map[string]string

// newEnvironment returns the environment of list, which has the form of os.Environ. It leaves out line breaks at the
// end of a value: a .env file of Windows and a Kubernetes Secret that was made with echo have them.
func newEnvironment(list []string) environment {
	e := make(environment, len(list))
	for _, variable := range list {
		name, value, _ := strings.Cut(variable, "=")
		e[name] = strings.TrimRight(value, "\r\n")
	}
	return e
}

// get returns the value of a variable, or "" if it is not set.
func (e environment) get(name string) string { return e[name] }

// override sets the variables of settings. For each of them it first removes the variable of the same setting with or
// without _FILE, so that a secret replaces the file that it was read from, and the other way round.
func (e environment) override(settings map[string]string) {
	for name := range settings {
		delete(e, name+"_FILE")
		delete(e, strings.TrimSuffix(name, "_FILE"))
	}
	maps.Copy(e, settings)
}

// readSettings returns the values of the settings that are set, by the names in the tags of config. An empty variable
// counts as unset, because compose files set variables to "". A secret whose name with _FILE is set is read from that
// file, which comes before the variable of the secret itself. The error is a *configError about a file that cannot be
// read or is empty.
func (e environment) readSettings() (map[string]string, error) {
	out := make(map[string]string)
	secret := reflect.TypeFor[auth.Secret]()
	for f := range reflect.TypeFor[config]().Fields() {
		name := f.Tag.Get("env")
		if name == "" {
			continue
		}
		value := e.get(name)
		if f.Type == secret && e.get(name+"_FILE") != "" {
			var err error
			if value, err = e.readSecretFile(name + "_FILE"); err != nil {
				return nil, err
			}
		}
		if value != "" {
			out[name] = value
		}
	}
	return out, nil
}

// readSecretFile returns the secret in the file that a setting names, without line breaks at its end. An empty file is
// an error, because a setting of another name must not take its place unnoticed.
func (e environment) readSecretFile(setting string) (string, error) {
	content, err := os.ReadFile(e.get(setting))
	if err != nil {
		return "", &configError{setting, "cannot be read: " + fileReason(err)}
	}
	secret := strings.TrimRight(string(content), "\r\n")
	if strings.TrimSpace(secret) == "" {
		return "", &configError{setting, "is empty"}
	}
	return secret, nil
}

const (
	maxUnknownSettings = 20  // warnings of unknownSettings
	maxVariableName    = 100 // bytes; longer names are not compared with settings
	minComparedName    = 8   // bytes; shorter names without the prefix of a setting often belong to another program
	maxMisspelling     = 2   // edit distance up to which a variable of a library counts as a misspelled setting
)

// libraryVariable matches variables that the OpenTelemetry and OCI libraries may read, although they are not settings.
var libraryVariable = regexp.MustCompile(`^(OTEL|OCI)_`)

// serviceVariable matches variables that Kubernetes sets for each Service.
var serviceVariable = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$`)

// unknownSettings returns a warning for each variable that is not a setting, but probably a misspelled one: it begins
// like a setting, up to the first underscore, or one edit turns it into a setting. It leaves out variables that
// Kubernetes or a library uses, and those for which isUsed returns true. At most maxUnknownSettings, by name.
func (e environment) unknownSettings(isUsed func(name string) bool) []*configError {
	known := settingNames()
	prefixes := make(map[string]bool)
	for _, name := range known {
		if prefix, _, ok := strings.Cut(name, "_"); ok {
			prefixes[prefix] = true
		}
	}
	var out []*configError
	for name := range e {
		if len(name) > maxVariableName || slices.Contains(known, name) || serviceVariable.MatchString(name) || isUsed(name) {
			continue
		}
		nearest := nearestName(name, known)
		distance := editDistance(name, nearest)
		prefix, _, ok := strings.Cut(name, "_")
		beginsLikeSetting := ok && prefixes[prefix]
		isOneEditAway := distance <= 1 && len(name) >= minComparedName
		if !beginsLikeSetting && !isOneEditAway {
			continue
		}
		if libraryVariable.MatchString(name) && distance > maxMisspelling {
			continue
		}
		out = append(out, &configError{name, "is not a setting and has no effect; the nearest setting is " + nearest})
	}
	slices.SortFunc(out, func(a, b *configError) int { return strings.Compare(a.name, b.name) })
	return out[:min(len(out), maxUnknownSettings)]
}

// literalSettings returns a warning for each setting whose value has quotes around it, or a space at one of its ends.
// Shells and Compose remove them from an env file, docker run --env-file does not. An endpoint would only refuse such a
// key or name of a model.
func (e environment) literalSettings() (out []*configError) {
	for _, name := range settingNames() {
		value := e.get(name)
		trimmed := strings.TrimSpace(value)
		n := len(trimmed)
		switch {
		case trimmed != value:
			out = append(out, &configError{name, "begins or ends with a space, which is part of the value"})
		case n > 1 && strings.ContainsAny(value[:1], `"'`) && value[0] == value[n-1]:
			out = append(out, &configError{name, "is in quotes, which are part of the value; docker run --env-file does not remove them"})
		}
	}
	return out
}

// nearestName returns the element of names with the least edit distance to name; of several, the first one.
func nearestName(name string, names []string) string {
	return slices.MinFunc(names, func(a, b string) int { return editDistance(name, a) - editDistance(name, b) })
}

// editDistance returns the least number of insertions, deletions and replacements of bytes that
// turn a into b (Levenshtein distance).
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

// findWarnings returns warnings about settings that are probably a mistake, although the service can start with them.
func (c *config) findWarnings(environ environment) []*configError {
	out := append(environ.unknownSettings(c.usedInFiles()), environ.literalSettings()...)
	usesDefaultEndpoint := slices.ContainsFunc(c.servedModels(), func(p llm.Profile) bool { return !hasOwnEndpoint(p) })
	if c.usesOpenAI() && c.LLMAPIKey.IsZero() && usesDefaultEndpoint {
		out = append(out, &configError{"LLM_API_KEY", "is not set, and OpenAI's endpoint answers no request without a key; set it, or OPENAI_API_KEY, or LLM_BASE_URL to another endpoint"})
	}
	if c.exportsOTLP() {
		out = append(out, otlpWarnings(environ)...)
	}
	exporter := environ.get("OTEL_TRACES_EXPORTER")
	ignored := c.EnableTracing && exporter != "otlp" || !c.EnableTracing && exporter != "none"
	if exporter != "" && ignored && !c.OTelSDKDisabled {
		out = append(out, &configError{"OTEL_TRACES_EXPORTER", "has no effect: ENABLE_TRACING says whether traces are exported, by OTLP"})
	}
	if c.EnableTracing {
		out = append(out, samplerWarnings(environ)...)
	}
	return out
}

// otlpWarnings returns warnings about variables of the OpenTelemetry SDK that have no effect on an export by OTLP. The
// specification requires that the SDK uses its default in place of a number that it cannot read.
func otlpWarnings(environ environment) (out []*configError) {
	for _, name := range slices.Sorted(maps.Keys(environ)) {
		value := environ.get(name)
		isProtocol := strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") && strings.HasSuffix(name, "PROTOCOL")
		if isProtocol && value == "grpc" {
			out = append(out, &configError{name, "has no effect: OTLP is sent as http/protobuf, and collectors often have another port for it, 4318"})
		}
		if _, err := strconv.Atoi(value); err != nil && value != "" && otlpNumber.MatchString(name) {
			out = append(out, &configError{name, "has no effect, as if it were unset: must be a whole number; times are in milliseconds"})
		}
	}
	return out
}

// samplerWarnings returns warnings about a sampler or a ratio in place of which the OpenTelemetry SDK uses its default:
// it would sample all traces.
func samplerWarnings(environ environment) (out []*configError) {
	sampler := strings.ToLower(strings.TrimSpace(environ.get("OTEL_TRACES_SAMPLER")))
	if sampler != "" && !slices.Contains(samplers, sampler) {
		out = append(out, &configError{"OTEL_TRACES_SAMPLER", "has no effect, as if it were unset: must be " + strings.Join(samplers, ", ")})
	}
	arg := strings.TrimSpace(environ.get("OTEL_TRACES_SAMPLER_ARG"))
	ratio, err := strconv.ParseFloat(arg, 64)
	isRatio := err == nil && ratio >= 0 && ratio <= 1 // false for NaN
	if strings.HasSuffix(sampler, "traceidratio") && arg != "" && !isRatio {
		out = append(out, &configError{"OTEL_TRACES_SAMPLER_ARG", "has no effect, as if it were unset: must be a number from 0 to 1, such as 0.1 for a tenth of the traces"})
	}
	return out
}

// samplers are the values of OTEL_TRACES_SAMPLER that the OpenTelemetry SDK for Go has.
var samplers = []string{"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio"}

// exportsOTLP reports whether traces, metrics or the log are exported with OTLP.
func (c *config) exportsOTLP() bool {
	return c.EnableTracing || c.exportsMetrics() || c.OTelLogsExporter == "otlp"
}

// usedInFiles reads mcp.json and MODELS_FILE, and returns a function that reports whether one of them uses the variable
// with this name. Such a variable can have any name, so it is not a misspelled setting.
func (c *config) usedInFiles() func(name string) bool {
	var texts strings.Builder
	inMCPConfig := make(map[string]bool) // variables that mcp.json uses, also in the forms of other hosts: ${input:ID}
	for _, path := range []string{c.MCPConfigPath, c.ModelsFile} {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // reported where the file is needed
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

// logSettingWarnings logs the warnings that findWarnings returned, each with the page that explains the setting.
func (c *config) logSettingWarnings(logger *slog.Logger) {
	for _, w := range c.warnings {
		logger.Warn("setting needs attention", "setting", w.name, "reason", w.reason, "help", helpPage(w))
	}
}

// deriveSettings sets the settings that follow from others: OTEL_SDK_DISABLED turns off all telemetry, PORT can decide
// the address, and the variables of OpenAI's clients take the place of the model endpoint and its key.
func (c *config) deriveSettings() {
	if c.OTelSDKDisabled {
		c.EnableTracing, c.OTelMetricsExporter, c.OTelLogsExporter = false, nil, "none"
	}
	if c.portDecides {
		c.Addr = ":" + c.Port
	}
	c.LLMBaseURL = cmp.Or(c.LLMBaseURL, c.lookup("OPENAI_BASE_URL"), "https://"+openAIHost+"/v1")
	if c.LLMAPIKey.IsZero() {
		c.LLMAPIKey = auth.NewSecret(c.lookup("OPENAI_API_KEY"))
	}
}

// loadConfig reads the settings, the files of models and agents, the keys and the TLS files. It checks what can be
// checked without the network and without the parts that serve builds. The error is a *configError about the first
// setting that is wrong. The config that comes with an error is incomplete: only runDemo looks at it, for the model
// endpoint.
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
	cfg.portDecides = settings["ADDR"] == "" && cfg.Port != ""
	cfg.deriveSettings()
	if err := cfg.readModels(); err != nil {
		return config{}, err
	}
	cfg.warnings = cfg.findWarnings(environ)
	if err := cfg.validate(); err != nil {
		return cfg, err
	}
	if err := cfg.checkOTLPHeaders(); err != nil {
		return cfg, err
	}
	if err := cfg.checkOTLPFiles(environ); err != nil {
		return cfg, err
	}
	if err := cfg.readModelCertificates(); err != nil {
		return cfg, err
	}
	if err := cfg.readAgents(); err != nil {
		return cfg, err
	}
	if err := cfg.readTokenKeys(); err != nil {
		return cfg, err
	}
	return cfg, cfg.readCertificates()
}

// otlpHeader matches a header in the form of the OpenTelemetry specification ("Protocol Exporter", "Specifying
// headers via environment variables"): name=value, percent-encoded.
var otlpHeader = regexp.MustCompile("^\\s*[-!#$%&'*+.^_`|~0-9A-Za-z]+\\s*=([^%]|%[0-9A-Fa-f]{2})*$")

// checkOTLPHeaders returns an error if a header for OTLP has a form that the OpenTelemetry SDK does not accept. The SDK
// would leave the header out and write it to its own log, although headers usually are credentials.
func (c *config) checkOTLPHeaders() error {
	if !c.exportsOTLP() {
		return nil // they are not read
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

// otlpNumber and otlpFile match the variables of the OpenTelemetry SDK whose values are whole numbers, and those whose
// values are paths of files.
var (
	otlpNumber = regexp.MustCompile(`^OTEL_(EXPORTER_OTLP_\w*TIMEOUT|(BSP|BLRP|METRIC_EXPORT)_\w+|\w+_LIMIT)$`)
	otlpFile   = regexp.MustCompile(`^OTEL_EXPORTER_OTLP_\w*(CERTIFICATE|CLIENT_KEY)$`)
)

// checkOTLPFiles returns an error for a file with certificates that cannot be read. The OpenTelemetry SDK would export
// without it.
func (c *config) checkOTLPFiles(environ environment) error {
	if !c.exportsOTLP() {
		return nil // The files are not read.
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

// readTokenKeys sets c.tokenKeys from TOKENS_KEY_FILE, if that is set. Its error is a *configError.
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

// settingParsers parse settings by their type. They accept more spellings than strconv and time: yes and on for true,
// and a number without a unit for seconds.
var settingParsers = map[reflect.Type]env.ParserFunc{
	reflect.TypeFor[bool](): func(s string) (any, error) { return parseBool(s) },
	reflect.TypeFor[time.Duration](): func(s string) (any, error) {
		if seconds, err := strconv.ParseUint(s, 10, 31); err == nil {
			return time.Duration(seconds) * time.Second, nil
		}
		return time.ParseDuration(s)
	},
}

// parseBool returns the value of a setting that is true or false: yes, y, on, no, n, off in any case, or what
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

// parseError returns err, an error of package env, as a *configError. It names the setting, not the field of config.
func parseError(err error) error {
	if failed, ok := errors.AsType[env.ParseError](err); ok {
		f, _ := reflect.TypeFor[config]().FieldByName(failed.Name)
		return &configError{f.Tag.Get("env"), fmt.Sprintf("not a %s: %v", typeName(failed.Type), parseReason(failed.Err))}
	}
	return &configError{"environment", strings.ReplaceAll(err.Error(), "\n", " ")}
}

// parseReason returns err without the value that an error of strconv quotes.
func parseReason(err error) error {
	var number *strconv.NumError
	if errors.As(err, &number) {
		return number.Err
	}
	return err
}

// typeName returns what a setting of type t is, in words and often with an example, for the error about its value.
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
