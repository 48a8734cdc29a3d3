package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"
	"text/tabwriter"

	"answerd/internal/agent"
	"answerd/internal/llm"
	"answerd/internal/llm/openai"
	"answerd/internal/llm/texttool"
	"answerd/internal/telemetry"
)

// readModels sets c.models and c.modelsWatch from MODELS_FILE. It does nothing if that is not set. DEFAULT_MODEL_ID
// must name one of the models. If DEFAULT_MODEL_ID is not set, the first model becomes the default. Every error is a
// *configError.
func (c *config) readModels() (err error) {
	if c.ModelsFile == "" {
		return nil
	}
	if c.modelsWatch == nil { // at the start; a reload keeps the watch
		c.modelsWatch = newFileWatch(c.ModelsFile)
	}
	if c.models, err = parseFile("MODELS_FILE", c.ModelsFile, llm.ParseProfiles); err != nil {
		return err
	}
	for i := range c.models {
		if err := c.expandProfile(i); err != nil {
			return err
		}
	}
	if !c.modelSet {
		c.DefaultModelID = c.models[0].ID
	}
	if _, served := c.profiles()[c.DefaultModelID]; !served {
		return &configError{"DEFAULT_MODEL_ID", "is not one of the models of MODELS_FILE"}
	}
	return nil
}

// reloadModels returns a copy of c with the current content of MODELS_FILE. It applies the same checks as the start.
// The receiver is a copy, so the settings in use do not change. Only modelsWatch is shared, which no other goroutine
// uses after the start.
func (c config) reloadModels() (config, error) {
	if err := c.readModels(); err != nil {
		return config{}, err
	}
	if err := c.checkPrice(); err != nil { // the only setting whose check depends on the models
		return config{}, err
	}
	if err := c.readModelCertificates(); err != nil {
		return config{}, err
	}
	if c.AgentsFile == "" {
		return c, nil
	}
	_, err := c.parseAgents(c.DefaultModelID, c.profiles(), nil) // each agent's model must still be in the file
	return c, err
}

// servedModels holds the router to all model endpoints. A changed MODELS_FILE replaces the endpoints.
type servedModels struct {
	router *llm.Router
	tel    *telemetry.Telemetry
	logger *slog.Logger
	// closeEndpoints closes the idle connections of the current endpoints, and stops watching the models' TLS files.
	// replaceEndpoints sets it for the endpoints that it opens.
	closeEndpoints func()
	certificates   atomic.Pointer[certificates] // of models that have their own TLS files; set by replaceEndpoints
}

// openModels returns a router to the models of c, and watches the models' TLS files until ctx ends or the caller calls
// close. It sends no request.
func openModels(ctx context.Context, c config, tel *telemetry.Telemetry, logger *slog.Logger) *servedModels {
	m := &servedModels{router: llm.NewRouter(nil, "", nil), tel: tel, logger: logger, closeEndpoints: func() {}}
	m.router.Logger = logger
	m.replaceEndpoints(ctx, c)
	return m
}

// close closes the endpoints. The caller must first call the end function of startReloading.
func (m *servedModels) close() { m.closeEndpoints() }

// replaceEndpoints makes the router use the models of cfg. Requests in flight end at the endpoint at which they began.
// It closes the old endpoints only after the router has the new ones, so that no request gets a closed endpoint. Calls
// must not overlap: after openModels only the goroutine of startReloading makes them.
func (m *servedModels) replaceEndpoints(ctx context.Context, cfg config) {
	defaultEndpoint := openai.New(openAIConfig(cfg, m.tel, m.logger))
	router := llm.NewRouter(texttool.Models(defaultEndpoint), llm.ToolCalling(cfg.LLMToolCalling), cfg.profiles())
	closeOwnEndpoints := addEndpoints(router, cfg, m.tel, m.logger)
	m.router.Replace(router)
	m.closeEndpoints()
	endReloading := cfg.modelCertificates.startReloading(ctx, "TLS certificates of models", m.logger)
	m.closeEndpoints = func() {
		endReloading()
		defaultEndpoint.Close()
		closeOwnEndpoints()
	}
	m.certificates.Store(&cfg.modelCertificates)
}

// usedCertificates returns the certificates of the models that have their own.
func (m *servedModels) usedCertificates() []usedCertificate {
	return m.certificates.Load().inUse()
}

// startReloading reloads MODELS_FILE when it changes, and at SIGHUP, until end is called. The router and runs then use
// the new models. If the file cannot be used, they keep the current ones. Without MODELS_FILE it does nothing.
func (m *servedModels) startReloading(ctx context.Context, c config, runs *agent.Agent) (end func()) {
	if c.ModelsFile == "" {
		return func() {}
	}
	return startFollowing(ctx, c.modelsWatch, "MODELS_FILE", m.logger, func() (slog.Attr, error) {
		reloaded, err := c.reloadModels()
		if err != nil {
			return slog.Attr{}, err
		}
		m.replaceEndpoints(ctx, reloaded)
		runs.ReplaceModels(reloaded.DefaultModelID, reloaded.profiles())
		return slog.Int("models", len(reloaded.models)), nil
	})
}

// profiles returns the models in MODELS_FILE by id. The map is empty without such a file.
func (c *config) profiles() map[string]llm.Profile {
	byID := make(map[string]llm.Profile, len(c.models))
	for _, profile := range c.models {
		byID[profile.ID] = profile
	}
	return byID
}

// upstreamModel returns the id by which the endpoint knows the model of profile.
func upstreamModel(profile llm.Profile) string { return cmp.Or(profile.Upstream, profile.ID) }

// prices returns a function that returns the price of a model, or nil if the price is unknown. It takes the model's id
// at the endpoint.
func (c *config) prices() func(model string) *llm.Price {
	byUpstreamID := make(map[string]*llm.Price)
	for _, profile := range c.models {
		byUpstreamID[upstreamModel(profile)] = profile.Price
	}
	return func(model string) *llm.Price { return byUpstreamID[model] }
}

// metricModels returns the model ids that may appear in metrics: the default model and those of MODELS_FILE, each with
// the id that its endpoint uses. Requests may name any model, so metrics with every name would create an unlimited
// number of series.
func (c *config) metricModels() (ids []string) {
	if c.DefaultModelID != "" {
		ids = append(ids, c.DefaultModelID)
	}
	for _, profile := range c.models {
		ids = append(ids, profile.ID)
		if profile.Upstream != "" {
			ids = append(ids, profile.Upstream)
		}
	}
	return ids
}

// printModels prints a table of the models and their abilities.
func printModels(stdout io.Writer, cfg config) {
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MODEL\tUPSTREAM\tTOOLS\tCONTEXT\tOUTPUT\tTAKES\tPRICE PER MILLION")
	for _, profile := range cfg.servedModels() {
		inputs := "text"
		if profile.Images {
			inputs += ", images"
		}
		if profile.Audio {
			inputs += ", audio"
		}
		if profile.PDF {
			inputs += ", PDF"
		}
		price := "–"
		if profile.Price != nil {
			price = fmt.Sprintf("%g in, %g out", profile.Price.Input, profile.Price.Output)
		}
		if profile.ID == cfg.DefaultModelID {
			price += "  (default)"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", profile.ID, upstreamModel(profile),
			cmp.Or(profile.ToolCalling, llm.ToolCalling(cfg.LLMToolCalling)),
			formatTokens(profile.ContextTokens), formatTokens(profile.MaxOutputTokens), inputs, price)
	}
	table.Flush()
	fmt.Fprintln(stdout)
}

// formatTokens formats a number of tokens. 0 means that the number is unknown, and gives a dash.
func formatTokens(n int64) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprint(n)
}

// servedModels returns the models of MODELS_FILE in the order of the file. Without the file it returns only the default
// model.
func (c *config) servedModels() []llm.Profile {
	if len(c.models) > 0 {
		return c.models
	}
	return []llm.Profile{{ID: c.DefaultModelID, Images: llm.AcceptsImages(c.DefaultModelID)}}
}
