package main

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"answerd/internal/auth"
)

// newAuthFailureCounter puts the count of requests that were not let in on m, and returns what
// counts one.
func newAuthFailureCounter(m metric.Meter) (func(ctx context.Context, reason string), error) {
	counter, err := m.Int64Counter("answerd.logins.refused", metric.WithUnit("{request}"),
		metric.WithDescription("Requests whose token was not taken, or that had none, by reason."))
	if err != nil {
		return nil, fmt.Errorf("create the metric of refused logins: %w", err)
	}
	by := make(map[string]metric.AddOption)
	for _, reason := range auth.Reasons() {
		by[reason] = metric.WithAttributeSet(attribute.NewSet(attribute.String("reason", reason)))
		counter.Add(context.Background(), 0, by[reason]) // an alert on the first needs a zero to rise from
	}
	return func(ctx context.Context, reason string) { counter.Add(ctx, 1, by[reason]) }, nil
}
