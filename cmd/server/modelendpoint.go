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
	"answerd/internal/help"
	"answerd/internal/llm"
	"answerd/internal/llm/openai"
	"answerd/internal/llm/texttool"
	"answerd/internal/telemetry"
)

// expandModels prepares the profiles of MODELS_FILE for use (expandProfile). It returns the first error.
func (c *config) expandModels() error {
	for i := range c.models {
		if err := c.expandProfile(i); err != nil {
			return err
		}
	}
	return nil
}

// expandProfile replaces ${NAME} by variables of the environment in what c.models[i] says of its endpoint, checks the
// URL, and resolves relative paths against the directory of MODELS_FILE. A variable that is not set is an error: with
// an empty key, the endpoint would refuse requests, and its error would not name the variable. The error is a
// *configError.
func (c *config) expandProfile(i int) error {
	profile := &c.models[i]
	missing := "" // a variable that is used and not set
	expand := func(text string) string {
		if !strings.Contains(text, "${") {
			return text // os.Expand would also replace $NAME, which may be part of a key
		}
		return os.Expand(text, func(name string) string {
			value := c.lookup(name)
			if value == "" {
				missing = name
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
	case missing != "":
		return &configError{"MODELS_FILE", fmt.Sprintf("/%d needs the environment variable %s, which is not set", i, missing)}
	case profile.BaseURL != "" && !isURL(profile.BaseURL):
		return &configError{"MODELS_FILE", fmt.Sprintf("/%d/base_url: must be an http or https URL", i)}
	case hasChatPath(profile.BaseURL):
		return &configError{"MODELS_FILE", fmt.Sprintf("/%d/base_url: must end before /chat/completions, which answerd appends", i)}
	}
	for _, path := range paths {
		if *path != "" && !filepath.IsAbs(*path) {
			*path = filepath.Join(filepath.Dir(c.ModelsFile), *path)
		}
	}
	return nil
}

// secretFile is a secret in a file, which may change. read checks the file with one stat call each time that the secret
// is needed, so the next request uses a changed secret without a goroutine that watches the file. It may be used
// concurrently.
type secretFile struct {
	path   string
	what   string // the setting or the model that the secret is for, in the log
	logger *slog.Logger

	mu     sync.Mutex  // protects the fields below
	seen   os.FileInfo // state of the file when secret was read from it; nil before the first successful read
	secret string      // the secret in use
}

// newSecretFile returns the file with the secret of a setting, which is named by the setting with _FILE at its end; nil
// if that is not set. secret is the value that was read from the file at the start.
func (c *config) newSecretFile(setting string, secret auth.Secret, logger *slog.Logger) *secretFile {
	path := c.lookup(setting + "_FILE")
	if path == "" {
		return nil
	}
	return &secretFile{path: path, what: setting, logger: logger, secret: secret.Reveal()}
}

// read returns the secret, without line breaks at its end. If the file cannot be read or is empty, read logs that and
// returns the last secret, because a file may be missing or incomplete for a moment while it is replaced. It returns ""
// if the file of a model has never been readable.
func (f *secretFile) read() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && sameFile(info, f.seen) {
		return f.secret
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(f.path)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if err == nil && text == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		f.logger.Warn("the file of a secret cannot be used; the last secret stays in use", "for", f.what, "error", fileReason(err), help.SecretFiles.Attr())
		return f.secret
	}
	f.seen, f.secret = info, text
	return f.secret
}

// addEndpoints makes router ask each model that hasOwnEndpoint at an endpoint with the configuration of its profile.
// All other models are asked at LLM_BASE_URL. closeAll closes the idle connections of the endpoints that were added.
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

// hasOwnEndpoint reports whether the profile of a model has a URL, a key, headers, a query or TLS files of its own, so
// that its requests differ from those of models without them.
func hasOwnEndpoint(profile llm.Profile) bool {
	return profile.BaseURL != "" || profile.APIKey != "" || profile.APIKeyFile != "" ||
		len(profile.Headers) > 0 || len(profile.Query) > 0 || profile.TLS != (llm.TLSFiles{})
}

// endpointConfig returns the configuration of the endpoint of a profile that hasOwnEndpoint. Without a base_url it is
// the one for LLM_BASE_URL, changed by what the profile has. A base_url is never sent LLM_API_KEY or the certificate of
// LLM_TLS_CERT_FILE, because these are for another host.
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

// openAIConfig returns the configuration of the endpoint at LLM_BASE_URL; endpointConfig changes it for a model.
func openAIConfig(c config, tel *telemetry.Telemetry, logger *slog.Logger) openai.Config {
	cfg := openai.Config{
		BaseURL: c.LLMBaseURL, APIKey: c.LLMAPIKey.Reveal(), TLS: c.certificates.llm,
		FirstByteTimeout: c.LLMFirstByteTimeout, IdleTimeout: c.LLMIdleTimeout,
		MaxRetries: c.LLMMaxRetries, ShowErrors: c.LLMShowErrors,
		Transport: tel.Transport, MetricModels: c.metricModels(), Price: c.prices(), TraceContent: c.TraceContent,
		Tracer: tel.Tracer("answerd/llm"), Meter: tel.Meter("answerd/llm"), Logger: logger,
	}
	if file := c.newSecretFile("LLM_API_KEY", c.LLMAPIKey, logger); file != nil {
		cfg.Key = file.read
	}
	return cfg
}
