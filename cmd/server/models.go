package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"answerd/internal/llm"
)

// readModels reads MODELS_FILE, if it is set, and checks the default model against it.
func (c *config) readModels(defaultSet bool) error {
	if c.ModelsFile == "" {
		return nil
	}
	data, err := os.ReadFile(c.ModelsFile)
	if err != nil {
		return &configError{"MODELS_FILE", "cannot be read: " + fileReason(err)}
	}
	if c.models, err = llm.ParseProfiles(data); err != nil {
		return &configError{"MODELS_FILE", err.Error()}
	}
	if err := c.expandModels(); err != nil {
		return err
	}
	if !defaultSet {
		c.DefaultModelID = c.models[0].ID
	}
	if _, served := c.profiles()[c.DefaultModelID]; !served {
		return &configError{"DEFAULT_MODEL_ID", "is not one of the models of MODELS_FILE"}
	}
	return nil
}

// profiles returns the models of MODELS_FILE by the ids that requests name.
func (c *config) profiles() map[string]llm.Profile {
	out := make(map[string]llm.Profile, len(c.models))
	for _, p := range c.models {
		out[p.ID] = p
	}
	return out
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
func printModels(stdout io.Writer, c config) {
	w := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "MODEL\tUPSTREAM\tTOOLS\tCONTEXT\tOUTPUT\tTAKES\tPRICE PER MILLION")
	for _, p := range c.servedModels() {
		takes := "text"
		if p.Images {
			takes += ", images"
		}
		if p.Audio {
			takes += ", audio"
		}
		price := "–"
		if p.Price != nil {
			price = fmt.Sprintf("%g in, %g out", p.Price.Input, p.Price.Output)
		}
		if p.ID == c.DefaultModelID {
			price += "  (default)"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.ID, cmp.Or(p.Upstream, p.ID),
			cmp.Or(p.ToolCalling, llm.ToolCalling(c.LLMToolCalling)), formatTokens(p.ContextTokens), formatTokens(p.MaxOutputTokens), takes, price)
	}
	w.Flush()
	fmt.Fprintln(stdout)
}

// formatTokens returns a number of tokens, or a dash if it is unknown.
func formatTokens(n int64) string {
	if n == 0 {
		return "–"
	}
	return fmt.Sprint(n)
}
