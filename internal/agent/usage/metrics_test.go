package usage_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"answerd/internal/agent/usage"
	"answerd/internal/auth"
	"answerd/internal/event"
)

// tokensBy counts with some agents and models for many claims, and returns the tokens by label set.
func tokensBy(t *testing.T, claim string, count func(*usage.Meter)) map[attribute.Set]int64 {
	t.Helper()
	reader := sdkmetric.NewManualReader()
	m, err := usage.New(usage.Options{Claim: claim, Meter: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("")})
	if err != nil {
		t.Fatal(err)
	}
	count(m)
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := make(map[attribute.Set]int64)
	for _, metric := range all.ScopeMetrics[0].Metrics {
		if data, ok := metric.Data.(metricdata.Sum[int64]); ok {
			for _, p := range data.DataPoints {
				out[p.Attributes] = p.Value
			}
		}
	}
	return out
}

// Whatever callers, agents and models there are, there are few label sets, and the sum of a claim is
// right for the first 1,000.
func TestMeterBoundsItsLabelSets(t *testing.T) {
	const claims, models = 1500, 3
	sets := tokensBy(t, "tenant", func(m *usage.Meter) {
		for i := range claims {
			caller := auth.Identity{Claims: map[string]json.RawMessage{"tenant": fmt.Appendf(nil, `"t%d"`, i)}}
			for model := range models {
				m.Count(t.Context(), m.AccountOf(caller), "a", fmt.Sprint(model), event.Usage{TotalTokens: 1}, nil)
			}
		}
	})

	if len(sets) > 1482 {
		t.Errorf("label sets = %d, want at most 1482", len(sets))
	}

	byClaim := make(map[string]int64)
	for set, tokens := range sets {
		v, _ := set.Value("claim")
		byClaim[v.AsString()] += tokens
	}
	if len(byClaim) != 1001 || byClaim["t0"] != models || byClaim["t999"] != models || byClaim[usage.Other] != (claims-1000)*models {
		t.Errorf("claims = %d, t0 %d, t999 %d, others %d; want 1001, %d, %d and %d", len(byClaim), byClaim["t0"], byClaim["t999"], byClaim[usage.Other], models, models, (claims-1000)*models)
	}
}

func TestMeterNamesTheClaim(t *testing.T) {
	for _, c := range []struct{ name, claims, want string }{
		{"tenant", `{"tenant":"blue"}`, "blue"},
		{"tenant", `{"tenant":["blue","red"]}`, "blue"},
		{"tenant", `{"tenant":7}`, "7"},
		{"tenant", `{}`, usage.None},
		{"tenant", `{"tenant":{"id":1}}`, usage.None},
		{"tenant", `{"tenant":"` + strings.Repeat("x", 200) + `"}`, usage.Other},
		{"/org/team", `{"org":{"team":"green"}}`, "green"},
		{"", `{"tenant":"blue"}`, ""},
	} {
		var caller auth.Identity
		if err := json.Unmarshal([]byte(c.claims), &caller.Claims); err != nil {
			t.Fatal(err)
		}
		sets := tokensBy(t, c.name, func(m *usage.Meter) {
			m.Count(t.Context(), m.AccountOf(caller), "a", "m", event.Usage{TotalTokens: 1}, nil)
		})
		for set := range sets {
			v, labelled := set.Value("claim")
			if v.AsString() != c.want || labelled != (c.name != "") {
				t.Errorf("COST_CLAIM %q of %s: label claim = %q, %t; want %q", c.name, c.claims, v.AsString(), labelled, c.want)
			}
		}
	}
}
