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

// expandModels replaces ${NAME} in the endpoints of models by variables of the environment, and
// resolves relative paths against the directory of MODELS_FILE. A variable that is not set is an error:
// with an empty key, the endpoint would refuse requests, and its error does not name the variable.
func (c *config) expandModels() error {
	for i := range c.models {
		profile, missing := &c.models[i], ""
		expand := func(s string) string {
			return os.Expand(s, func(name string) string {
				value := c.lookup(name)
				if value == "" {
					missing = name
				}
				return value
			})
		}
		for _, text := range []*string{&profile.BaseURL, &profile.APIKey, &profile.APIKeyFile, &profile.TLS.CAFile, &profile.TLS.CertFile, &profile.TLS.KeyFile} {
			if strings.Contains(*text, "${") {
				*text = expand(*text)
			}
		}
		for _, values := range []map[string]string{profile.Headers, profile.Query} {
			for name, v := range values {
				if strings.Contains(v, "${") {
					values[name] = expand(v)
				}
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
		for _, path := range []*string{&profile.APIKeyFile, &profile.TLS.CAFile, &profile.TLS.CertFile, &profile.TLS.KeyFile} {
			if *path != "" && !filepath.IsAbs(*path) {
				*path = filepath.Join(filepath.Dir(c.ModelsFile), *path)
			}
		}
	}
	return nil
}

// secretFile reads a secret from a file, again when the file changes. It looks at the file each time
// that the secret is needed, which is one stat call. So the next request uses the new secret, and no goroutine has
// to watch the file.
type secretFile struct {
	path   string
	what   string // the setting or the model that it is for, in the log
	logger *slog.Logger

	mu     sync.Mutex  // protects what follows
	seen   os.FileInfo // of the file that secret was read from; nil until read has read it
	secret string
}

// newSecretFile returns the secret of a setting that was read from NAME_FILE at the start; nil if
// the setting has no file.
func (c *config) newSecretFile(setting string, secret auth.Secret, logger *slog.Logger) *secretFile {
	path := c.lookup(setting + "_FILE")
	if path == "" {
		return nil
	}
	return &secretFile{path: path, what: setting, logger: logger, secret: secret.Reveal()}
}

// read returns the secret. If the file cannot be read or is empty, it returns the last one, because
// a file may be missing or incomplete for a moment while it is replaced.
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

// addEndpoints opens an endpoint for each profile that has a URL, a key, headers, a query or TLS files of its own,
// and makes the router ask its model there. The other models are asked at LLM_BASE_URL. closeAll closes the idle
// connections of the endpoints that were opened.
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

// hasOwnEndpoint reports whether the requests of a model differ from those of the endpoint at LLM_BASE_URL.
func hasOwnEndpoint(profile llm.Profile) bool {
	return profile.BaseURL != "" || profile.APIKey != "" || profile.APIKeyFile != "" ||
		len(profile.Headers) > 0 || len(profile.Query) > 0 || profile.TLS != (llm.TLSFiles{})
}

// endpointConfig returns the configuration of a model's own endpoint. A profile without a base_url asks LLM_BASE_URL
// with what it has of its own. One with a base_url is never sent LLM_API_KEY or LLM_TLS_CERT_FILE, which are for
// another host.
func (c config) endpointConfig(profile llm.Profile, tel *telemetry.Telemetry, logger *slog.Logger) openai.Config {
	cfg := openAIConfig(c, tel, logger)
	if profile.BaseURL != "" {
		cfg.BaseURL = profile.BaseURL
		cfg.APIKey = ""
		cfg.Key = nil
		cfg.TLS = nil
	}
	if certificate := c.modelCertificates.models[profile.ID]; certificate != nil {
		cfg.TLS = certificate
	}
	if profile.APIKey != "" {
		cfg.APIKey, cfg.Key = profile.APIKey, nil
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

// newModel returns the model at LLM_BASE_URL.
func newModel(c config, tel *telemetry.Telemetry, logger *slog.Logger) *openai.Model {
	return openai.New(openAIConfig(c, tel, logger))
}

// openAIConfig returns the configuration of LLM_BASE_URL, from which addEndpoints derives those of
// other endpoints.
func openAIConfig(c config, tel *telemetry.Telemetry, logger *slog.Logger) openai.Config {
	cfg := openai.Config{
		BaseURL: c.LLMBaseURL, APIKey: c.LLMAPIKey.Reveal(), TLS: c.certificates.llm,
		FirstByteTimeout: c.LLMFirstByteTimeout, IdleTimeout: c.LLMIdleTimeout, MaxRetries: c.LLMMaxRetries, ShowErrors: c.LLMShowErrors,
		Transport: tel.Transport, MetricModels: c.metricModels(), Price: c.prices(), TraceContent: c.TraceContent,
		Tracer: tel.Tracer("answerd/llm"), Meter: tel.Meter("answerd/llm"), Logger: logger,
	}
	if file := c.newSecretFile("LLM_API_KEY", c.LLMAPIKey, logger); file != nil {
		cfg.Key = file.read
	}
	return cfg
}
