package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"text/tabwriter"

	"answerd/internal/agent"
	"answerd/internal/llm"
	"answerd/internal/llm/texttool"
	"answerd/internal/telemetry"
)

// readModels reads MODELS_FILE, if it is set, and checks the default model against it.
func (c *config) readModels() (err error) {
	if c.ModelsFile == "" {
		return nil
	}
	if c.modelsWatch == nil {
		c.modelsWatch = newFileWatch(c.ModelsFile)
	}
	if c.models, err = parseFile("MODELS_FILE", c.ModelsFile, llm.ParseProfiles); err != nil {
		return err
	}
	if err := c.expandModels(); err != nil {
		return err
	}
	if !c.modelSet {
		c.DefaultModelID = c.models[0].ID
	}
	if _, served := c.profiles()[c.DefaultModelID]; !served {
		return &configError{"DEFAULT_MODEL_ID", "is not one of the models of MODELS_FILE"}
	}
	return nil
}

// reloadModels returns the configuration with MODELS_FILE as it is now. What would be an error at the start is one
// here too. c is a copy, so an error leaves the settings in use as they are; only modelsWatch is shared,
// and only the goroutine that reloads uses it.
func (c config) reloadModels() (config, error) {
	if err := c.readModels(); err != nil {
		return config{}, err
	}
	// validate writes to these lists, and requests read them meanwhile.
	c.AllowedHosts, c.CORSOrigins, c.CallbackOrigins = slices.Clone(c.AllowedHosts), slices.Clone(c.CORSOrigins), slices.Clone(c.CallbackOrigins)
	if err := c.validate(true); err != nil {
		return config{}, err
	}
	return c, c.readModelCertificates()
}

// servedModels has the endpoints of all models. MODELS_FILE may replace them.
type servedModels struct {
	router *llm.Router
	tel    *telemetry.Telemetry
	logger *slog.Logger
	end    func() // ends the use of the endpoints that the router asks

	mu           sync.Mutex   // protects certificates
	certificates certificates // of these endpoints
}

// openModels opens the endpoints of the models of c.
func openModels(ctx context.Context, c config, tel *telemetry.Telemetry, logger *slog.Logger) *servedModels {
	m := &servedModels{router: llm.NewRouter(nil, "", nil), tel: tel, logger: logger, end: func() {}}
	m.router.Logger = logger
	m.replaceEndpoints(ctx, c)
	return m
}

// replaceEndpoints makes the router ask the models of cfg. Requests in flight end at the endpoints at which
// they began. The old endpoints are closed after the router has the new ones, so that no request meets a
// closed one. It is called by openModels and then by the goroutine of startReloading only.
func (m *servedModels) replaceEndpoints(ctx context.Context, cfg config) {
	native := newModel(cfg, m.tel, m.logger)
	router := llm.NewRouter(texttool.Models(native), llm.ToolCalling(cfg.LLMToolCalling), cfg.profiles())
	closeOwnEndpoints := addEndpoints(router, cfg, m.tel, m.logger)
	m.router.Replace(router)
	m.end()
	endReloading := cfg.modelCertificates.startReloading(ctx, "TLS certificates of models", m.logger)
	m.end = func() {
		endReloading()
		native.Close()
		closeOwnEndpoints()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.certificates = cfg.modelCertificates
}

// usedCertificates returns the client certificates of the endpoints.
func (m *servedModels) usedCertificates() []usedCertificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.certificates.inUse()
}

// startReloading reads MODELS_FILE again when it changes, until end is called. A file that cannot be
// used is refused, and the models stay.
func (m *servedModels) startReloading(ctx context.Context, c config, runs *agent.Agent) (end func()) {
	if c.ModelsFile == "" {
		return func() {}
	}
	return startFollowing(ctx, c.modelsWatch, "MODELS_FILE", m.logger, func() (slog.Attr, error) {
		next, err := c.reloadModels()
		if err != nil {
			return slog.Attr{}, err
		}
		if err := checkAgentIDs(next.profiles(), runs); err != nil {
			return slog.Attr{}, err
		}
		m.replaceEndpoints(ctx, next)
		runs.ReplaceModels(next.DefaultModelID, next.profiles())
		return slog.Int("models", len(next.models)), nil
	})
}

// profiles returns the models of MODELS_FILE by the ids that requests name.
func (c *config) profiles() map[string]llm.Profile {
	out := make(map[string]llm.Profile, len(c.models))
	for _, p := range c.models {
		out[p.ID] = p
	}
	return out
}

// prices returns a function that returns the price of a model, by the id that is sent to LLM_BASE_URL.
func (c *config) prices() func(model string) *llm.Price {
	known := make(map[string]*llm.Price)
	for _, p := range c.models {
		known[cmp.Or(p.Upstream, p.ID)] = p.Price
	}
	return func(model string) *llm.Price { return known[model] }
}

// metricModels returns the models that metrics may name: those of the configuration, by the ids
// that requests name and by those of the endpoint. Requests can name any model, so other names
// would create series without bound.
func (c *config) metricModels() (out []string) {
	if c.DefaultModelID != "" {
		out = append(out, c.DefaultModelID)
	}
	for _, p := range c.models {
		out = append(out, p.ID)
		if p.Upstream != "" {
			out = append(out, p.Upstream)
		}
	}
	return out
}

// printModels prints the table of models.
func printModels(stdout io.Writer, cfg config) {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MODEL\tUPSTREAM\tTOOLS\tCONTEXT\tOUTPUT\tTAKES\tPRICE PER MILLION")
	for _, profile := range cfg.servedModels() {
		takes := "text"
		if profile.Images {
			takes += ", images"
		}
		if profile.Audio {
			takes += ", audio"
		}
		if profile.PDF {
			takes += ", PDF"
		}
		price := "–"
		if profile.Price != nil {
			price = fmt.Sprintf("%g in, %g out", profile.Price.Input, profile.Price.Output)
		}
		if profile.ID == cfg.DefaultModelID {
			price += "  (default)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", profile.ID, cmp.Or(profile.Upstream, profile.ID),
			cmp.Or(profile.ToolCalling, llm.ToolCalling(cfg.LLMToolCalling)), formatTokens(profile.ContextTokens), formatTokens(profile.MaxOutputTokens), takes, price)
	}
	table.Flush()
	fmt.Fprintln(stdout)
}

// formatTokens returns a number of tokens, or a dash if it is unknown.
func formatTokens(n int64) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprint(n)
}

// servedModels returns the models of MODELS_FILE, or the default model without such a file.
func (c *config) servedModels() []llm.Profile {
	if len(c.models) > 0 {
		return c.models
	}
	return []llm.Profile{{ID: c.DefaultModelID, Images: llm.AcceptsImages(c.DefaultModelID)}}
}
