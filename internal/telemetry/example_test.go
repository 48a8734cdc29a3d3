package telemetry_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"answerd/internal/telemetry"
)

// Every request has a trace id, even without tracing: the caller's, or a random one.
func ExampleTelemetry_Handler() {
	tel, err := telemetry.New(context.Background(), telemetry.Config{Version: "1.0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer tel.Shutdown(context.Background())

	handler := tel.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println(telemetry.TraceID(r.Context()))
	}), nil)
	request := httptest.NewRequest("GET", "/answer", nil)
	request.Header.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	handler.ServeHTTP(httptest.NewRecorder(), request)
	// Output: 0af7651916cd43dd8448eb211c80319c
}
