package main

import (
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"answerd/internal/llm"
	"answerd/internal/llm/openai"
	"answerd/internal/llm/texttool"
	"answerd/internal/telemetry"
)

// expandModels replaces ${NAME} in the endpoints of models by variables of the environment, and
// resolves relative paths against the directory of MODELS_FILE.
func (c *config) expandModels() error {
	for i := range c.models {
		p, missing := &c.models[i], ""
		expand := func(s string) string {
			return os.Expand(s, func(name string) string {
				value := c.lookup(name)
				if value == "" {
					missing = name
				}
				return value
			})
		}
		for _, text := range []*string{&p.BaseURL, &p.APIKey, &p.APIKeyFile, &p.TLS.CAFile, &p.TLS.CertFile, &p.TLS.KeyFile} {
			if strings.Contains(*text, "${") {
				*text = expand(*text)
			}
		}
		for _, values := range []map[string]string{p.Headers, p.Query} {
			for name, v := range values {
				if strings.Contains(v, "${") {
					values[name] = expand(v)
				}
			}
		}
		switch {
		case missing != "":
			return &configError{"MODELS_FILE", fmt.Sprintf("/%d needs the environment variable %s, which is not set", i, missing)}
		case p.BaseURL != "" && !isURL(p.BaseURL):
			return &configError{"MODELS_FILE", fmt.Sprintf("/%d/base_url: must be an http or https URL", i)}
		}
		for _, path := range []*string{&p.APIKeyFile, &p.TLS.CAFile, &p.TLS.CertFile, &p.TLS.KeyFile} {
			if *path != "" && !filepath.IsAbs(*path) {
				*path = filepath.Join(filepath.Dir(c.ModelsFile), *path)
			}
		}
	}
	return nil
}

// keyFile reads a key from a file, again when the file changes.
type keyFile struct {
	path   string
	logger *slog.Logger

	mu      sync.Mutex // protects what follows
	changed time.Time
	key     string
}

// readKey returns the key. If the file cannot be read, it returns the last key, because a file is
// missing for a moment while it is replaced.
func (f *keyFile) readKey() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err == nil && info.ModTime().Equal(f.changed) {
		return f.key
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(f.path)
	}
	if err != nil {
		f.logger.Warn("the file with a model's key cannot be read", "error", err)
		return f.key
	}
	f.changed, f.key = info.ModTime(), strings.TrimRight(string(data), "\r\n")
	return f.key
}

// addEndpoints makes the router ask models with an endpoint of their own there. LLM_API_KEY is
// never sent to them, and LLM_TLS_CERT_FILE is not either. closeAll closes their idle connections.
func addEndpoints(router *llm.Router, c config, tel *telemetry.Telemetry, logger *slog.Logger) (closeAll func()) {
	var opened []*openai.Model
	for _, p := range c.models {
		if p.BaseURL == "" && p.APIKey == "" && p.APIKeyFile == "" && len(p.Headers) == 0 && len(p.Query) == 0 && p.TLS == (llm.TLSFiles{}) {
			continue
		}
		cfg := openAIConfig(c, tel, logger)
		if p.BaseURL != "" {
			cfg.BaseURL, cfg.Key = p.BaseURL, nil
			cfg.APIKey, cfg.TLS = "", nil
		}
		if own := c.modelCertificates.models[p.ID]; own != nil {
			cfg.TLS = own
		}
		if p.APIKey != "" {
			cfg.APIKey, cfg.Key = p.APIKey, nil
		}
		if p.APIKeyFile != "" {
			cfg.Key = (&keyFile{path: p.APIKeyFile, logger: logger}).readKey
		}
		cfg.Headers, cfg.Query = make(map[string]string), p.Query
		for name, v := range p.Headers {
			cfg.Headers[http.CanonicalHeaderKey(name)] = v
		}
		model := openai.New(cfg)
		opened = append(opened, model)
		router.SetEndpoint(p.ID, texttool.Models(model))
	}
	return func() {
		for _, m := range opened {
			m.Close()
		}
	}
}
