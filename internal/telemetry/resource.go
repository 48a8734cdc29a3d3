package telemetry

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// describe is what every span and metric says about this process. Of attributes
// given twice the later option wins, hence the order: our default name, then
// OTEL_RESOURCE_ATTRIBUTES, then what the configuration says outright.
func describe(ctx context.Context, c Config) (*resource.Resource, error) {
	var set []attribute.KeyValue
	if c.ServiceName != "" {
		set = append(set, semconv.ServiceName(c.ServiceName))
	}
	if c.Version != "" {
		set = append(set, semconv.ServiceVersion(c.Version))
	}
	res, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("answerd")),
		resource.WithTelemetrySDK(),
		resource.WithHost(),
		resource.WithFromEnv(),
		resource.WithAttributes(set...),
	)
	if err != nil {
		return nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	return res, nil
}
