package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"answerd/internal/auth"
	"answerd/internal/auth/fetch"
	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/llm/openai"
	"answerd/internal/llm/texttool"
	"answerd/internal/telemetry"
)

// expandProfile prepares the endpoint settings of c.models[i]. It replaces each ${NAME} with the environment variable
// NAME, checks the URL, and resolves relative paths against the directory of MODELS_FILE. A variable that is not set is
// an error: an empty key would only show when the endpoint refuses requests, without a hint to the variable. Every
// error is a *configError.
func (c *config) expandProfile(i int) error {
	profile := &c.models[i]
	unset := "" // the last variable that is used but not set
	expand := func(text string) string {
		if !strings.Contains(text, "${") {
			return text // os.Expand would also replace $NAME, which may be part of a key
		}
		return os.Expand(text, func(name string) string {
			value := c.lookup(name)
			if value == "" {
				unset = name
			}
			return value
		})
	}
	paths := []*string{&profile.APIKeyFile, &profile.TLS.CAFile, &profile.TLS.CertFile, &profile.TLS.KeyFile}
	for _, text := range append([]*string{&profile.BaseURL, &profile.APIKey}, paths...) {
		*text = expand(*text)
	}
	for _, values := range []map[string]string{profile.Headers, profile.Query} {
		for name, value := range values {
			values[name] = expand(value)
		}
	}
	switch {
	case unset != "":
		return &configError{"MODELS_FILE", fmt.Sprintf("/%d needs the environment variable %s, which is not set", i, unset)}
	case profile.BaseURL != "" && !isURL(profile.BaseURL):
		return &configError{"MODELS_FILE", fmt.Sprintf("/%d/base_url: must be an http or https URL", i)}
	case hasChatPath(profile.BaseURL):
		return &configError{"MODELS_FILE", fmt.Sprintf("/%d/base_url: must end before /chat/completions, which answerd appends", i)}
	case !fetch.IsHeaderValue(profile.APIKey):
		return &configError{"MODELS_FILE", fmt.Sprintf("/%d/api_key: has a line break or another control character, which an HTTP header cannot have", i)}
	}
	for name, value := range profile.Headers {
		if !fetch.IsHeaderName(name) {
			return &configError{"MODELS_FILE", fmt.Sprintf("/%d/headers: %.80q is not a header name", i, name)}
		}
		if !fetch.IsHeaderValue(value) {
			return &configError{"MODELS_FILE", fmt.Sprintf("/%d/headers: %.80q has a line break or another control character, which an HTTP header cannot have", i, name)}
		}
	}
	for _, path := range paths {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(c.ModelsFile), *path)
		}
	}
	return nil
}

// secretFile is a secret in a file that may change. Each read checks the file with one stat call. So the next request
// uses a changed secret, and no goroutine has to watch the file. It is safe for concurrent use.
type secretFile struct {
	path   string
	what   string // names the setting or the model in the log
	logger *slog.Logger

	mu       sync.Mutex  // protects the fields below
	seen     os.FileInfo // the file's state when secret was read; nil before the first successful read
	secret   string      // last secret that was read
	reported string      // the last logged reason why the file cannot be used; "" if it can be used
}

// currentSecret returns a function that returns the secret of a setting as it is now in the file at the path in the
// variable with _FILE appended to the name of the setting. It returns nil if that variable is not set. secret is the
// value that was read from the file at the start.
func (c *config) currentSecret(setting string, secret auth.Secret, logger *slog.Logger) func() auth.Secret {
	path := c.lookup(setting + "_FILE")
	if path == "" {
		return nil
	}
	file := &secretFile{path: path, what: setting, logger: logger, secret: secret.Reveal()}
	return func() auth.Secret { return auth.NewSecret(file.read()) }
}

// read returns the secret, without line breaks at the end. If the file is empty or cannot be read, it logs the reason
// once and returns the last secret, or "" without one, because a file may be missing or incomplete for a moment while
// it is replaced.
func (f *secretFile) read() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	state := fileState(f.path)
	if state != nil && sameFile(state, f.seen) {
		f.reported = ""
		return f.secret
	}
	text, err := readSecretText(f.path)
	if err != nil {
		if reason := fileReason(err); reason != f.reported {
			f.logger.Warn("the file of a secret cannot be used; the last secret stays in use", "for", f.what, "error", reason, help.SecretFiles.Attr())
			f.reported = reason
		}
		return f.secret
	}
	f.seen, f.secret, f.reported = state, text, ""
	return f.secret
}

// errEmptySecret is the error for a file that has nothing but white space.
var errEmptySecret = errors.New("it is empty")

// readSecretText returns the secret in the file at path, without line breaks at the end, and without the byte order mark
// that editors on Windows write. The error is errEmptySecret or that of os.ReadFile.
func readSecretText(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := strings.TrimRight(strings.TrimPrefix(string(data), "\ufeff"), "\r\n")
	if strings.TrimSpace(text) == "" {
		return "", errEmptySecret
	}
	return text, nil
}

// addEndpoints gives router an own endpoint for each model that hasOwnEndpoint, as the model's profile configures it.
// The other models stay at LLM_BASE_URL. closeAll closes the idle connections of the endpoints that were added.
func addEndpoints(router *llm.Router, c config, tel *telemetry.Telemetry, logger *slog.Logger) (closeAll func()) {
	var opened []*openai.Model
	for _, profile := range c.models {
		if !hasOwnEndpoint(profile) {
			continue
		}
		model := openai.New(c.endpointConfig(profile, tel, logger))
		opened = append(opened, model)
		router.SetEndpoint(profile.ID, texttool.Models(model))
	}
	return func() {
		for _, model := range opened {
			model.Close()
		}
	}
}

// hasOwnEndpoint reports whether profile has its own URL, key, headers, query or TLS files, so that it cannot share the
// endpoint at LLM_BASE_URL.
func hasOwnEndpoint(profile llm.Profile) bool {
	return profile.BaseURL != "" || profile.APIKey != "" || profile.APIKeyFile != "" ||
		len(profile.Headers) > 0 || len(profile.Query) > 0 || profile.TLS != (llm.TLSFiles{})
}

// endpointConfig returns the configuration of the endpoint of a profile that hasOwnEndpoint. What the profile does not
// set comes from LLM_BASE_URL's configuration. But LLM_API_KEY and the certificate of LLM_TLS_CERT_FILE are for that
// host, so an endpoint with its own base_url never gets them.
func (c config) endpointConfig(profile llm.Profile, tel *telemetry.Telemetry, logger *slog.Logger) openai.Config {
	cfg := openAIConfig(c, tel, logger)
	if profile.BaseURL != "" {
		cfg.BaseURL = profile.BaseURL
		cfg.APIKey, cfg.Key, cfg.TLS = "", nil, nil
	}
	if certificate := c.modelCertificates.models[profile.ID]; certificate != nil {
		cfg.TLS = certificate
	}
	if profile.APIKey != "" {
		cfg.APIKey, cfg.Key = profile.APIKey, nil // Key would replace APIKey
	}
	if profile.APIKeyFile != "" {
		cfg.Key = (&secretFile{path: profile.APIKeyFile, what: "model " + profile.ID, logger: logger}).read
	}
	cfg.Headers, cfg.Query = make(map[string]string), profile.Query
	for name, value := range profile.Headers {
		cfg.Headers[http.CanonicalHeaderKey(name)] = value
	}
	cfg.Price = func(string) *llm.Price { return profile.Price }
	return cfg
}

// openAIConfig returns the configuration of the endpoint at LLM_BASE_URL. endpointConfig derives the other ones from
// it.
func openAIConfig(c config, tel *telemetry.Telemetry, logger *slog.Logger) openai.Config {
	cfg := openai.Config{
		BaseURL: c.LLMBaseURL, APIKey: c.LLMAPIKey.Reveal(), TLS: c.certificates.llm,
		FirstByteTimeout: c.LLMFirstByteTimeout, IdleTimeout: c.LLMIdleTimeout,
		MaxRetries: c.LLMMaxRetries, ShowErrors: c.LLMShowErrors,
		Transport: tel.Transport, MetricModels: c.metricModels(), Price: c.prices(), TraceContent: c.TraceContent,
		Tracer: tel.Tracer("answerd/llm"), Meter: tel.Meter("answerd/llm"), Logger: logger,
	}
	if key := c.currentSecret("LLM_API_KEY", c.LLMAPIKey, logger); key != nil {
		cfg.Key = func() string { return key().Reveal() }
	}
	return cfg
}
