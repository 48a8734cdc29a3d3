// Package usage counts what the model calls of runs use: as metrics, by agent, model and a claim of
// the caller's token.
//
//	m, err := usage.New(usage.Options{Claim: "tenant", Meter: meter})
//	account := m.AccountOf(caller) // kept with the run, also in another process
//	m.Count(ctx, account, "support", "fast", tokens, cost) // after each model call
//
// Each model call is counted once, by the run that makes it. A child run counts its own calls, so its
// parent does not count them again, although they are in the parent's answer and budget.
package usage

import (
	"context"
	"errors"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/auth"
	"answerd/internal/event"
)

// Bounds of the label sets of each of the two metrics: claims whose values they name, and sets of an
// agent, a model and a claim. What is beyond has Other in place of the claim, or of the agent and the
// model. So there are at most maxSets + maxClaims + 2 sets.
const (
	maxClaims = 1000
	maxSets   = 800
	// maxValue bounds the value of a claim, in bytes.
	maxValue = 128
)

// Values of labels.
const (
	Other = "_other" // too many, or not from the configuration
	None  = "_none"  // the token has no such claim
)

// Options configure a Meter. Meter is required.
type Options struct {
	Claim string // whose value the metrics have as the label claim; "" means no such label
	Meter metric.Meter
}

// Account says for whom a run uses something. It is stored with the run.
type Account struct {
	Claim string `json:"claim,omitempty"` // the value of Options.Claim; "" if there is none
}

// Meter counts. Its methods may be called concurrently.
type Meter struct {
	claim  string
	tokens metric.Int64Counter
	cost   metric.Float64Counter

	mu     sync.Mutex // protects the fields below
	claims map[string]bool
	sets   map[[3]string]bool
}

// New returns a Meter that has counted nothing.
func New(o Options) (*Meter, error) {
	m := &Meter{claim: o.Claim, claims: make(map[string]bool), sets: make(map[[3]string]bool)}
	var tokensErr, costErr error
	m.tokens, tokensErr = o.Meter.Int64Counter("answerd.tokens", metric.WithUnit("{token}"), metric.WithDescription("Tokens of prompts and answers, by agent and model, and by the claim of COST_CLAIM. Each model call is counted once, by the run that made it: those of a child run under the child's agent, and not again for its parent."))
	m.cost, costErr = o.Meter.Float64Counter("answerd.cost", metric.WithDescription("Cost of model calls in the currency of MODELS_FILE, by agent and model, and by the claim of COST_CLAIM. A model without a price has no cost. Each model call is counted once, by the run that made it, and not again for the run's parent."))
	return m, errors.Join(tokensErr, costErr)
}

// AccountOf returns the account of a caller's runs.
func (m *Meter) AccountOf(caller auth.Identity) (a Account) {
	if m.claim == "" {
		return a
	}
	if a.Claim = caller.Claim(m.claim); len(a.Claim) > maxValue {
		a.Claim = Other
	}
	return a
}

// Count counts a model call. The cost is nil if the model has no price.
func (m *Meter) Count(ctx context.Context, a Account, agent, model string, u event.Usage, cost *float64) {
	labels := m.labels(agent, model, a.Claim)
	m.tokens.Add(ctx, u.TotalTokens, labels)
	if cost != nil {
		m.cost.Add(ctx, *cost, labels)
	}
}

// labels returns the labels of a measurement, within the bounds.
func (m *Meter) labels(agent, model, claim string) metric.AddOption {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.claim == "":
		claim = ""
	case claim == "":
		claim = None
	case !m.claims[claim]:
		if len(m.claims) >= maxClaims {
			claim = Other
			break
		}
		m.claims[claim] = true
	}
	if set := [3]string{agent, model, claim}; !m.sets[set] {
		if len(m.sets) >= maxSets {
			agent, model = Other, Other
		} else {
			m.sets[set] = true
		}
	}
	labels := []attribute.KeyValue{attribute.String("agent", agent), attribute.String("model", model)}
	if m.claim != "" {
		labels = append(labels, attribute.String("claim", claim))
	}
	return metric.WithAttributeSet(attribute.NewSet(labels...))
}
