//go:build ignore

// Command collector stands in Jaeger's place where its image cannot be pulled: it
// takes spans by OTLP/HTTP on :4318 and answers GET /api/traces/{id} on :16686 as
// Jaeger does, as far as docker/test.sh reads it. It keeps everything in memory and
// is for that test only, hence the build tag: go build docker/collector.go.
package main

import (
	"encoding/json"
	"io"
	"log"
	"net/http"
	"sync"

	"answerd/internal/telemetry/otlptest"
)

const maxBody = 4 << 20 // bytes of one export

// span is the part of Jaeger's JSON that the test looks at.
type span struct {
	TraceID       string `json:"traceID"`
	OperationName string `json:"operationName"`
}

type store struct {
	mu    sync.Mutex // protects spans
	spans map[string][]span
}

func main() {
	s := &store{spans: map[string][]span{}}
	otlp, query := http.NewServeMux(), http.NewServeMux()
	otlp.HandleFunc("POST /v1/traces", s.export)
	query.HandleFunc("GET /api/traces/{id}", s.trace)
	go func() { log.Panic(http.ListenAndServe(":4318", otlp)) }()
	log.Panic(http.ListenAndServe(":16686", query))
}

func (s *store) export(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var exported []otlptest.Span
	if err == nil {
		exported, err = otlptest.Decode(body)
	}
	if err != nil {
		http.Error(w, "bad export", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range exported {
		s.spans[e.TraceID] = append(s.spans[e.TraceID], span{e.TraceID, e.Name})
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (s *store) trace(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	s.mu.Lock()
	spans := s.spans[id]
	s.mu.Unlock()
	if len(spans) == 0 {
		http.Error(w, "trace not found", http.StatusNotFound)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"data": []any{map[string]any{"traceID": id, "spans": spans}},
	})
}
