//go:build ignore

// Command collector stands in Jaeger's place where its image cannot be pulled: it
// takes spans by OTLP/HTTP on :4318 and answers GET /api/traces/{id} on :16686 as
// Jaeger does, as far as docker/test.sh reads it. It keeps everything in memory and
// is for that test only, hence the build tag: go build docker/collector.go.
package main

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"sync"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/protobuf/proto"
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
	var req coltracepb.ExportTraceServiceRequest
	if err != nil || proto.Unmarshal(body, &req) != nil {
		http.Error(w, "bad export", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, rs := range req.ResourceSpans {
		for _, ss := range rs.ScopeSpans {
			for _, sp := range ss.Spans {
				id := hex.EncodeToString(sp.TraceId)
				s.spans[id] = append(s.spans[id], span{TraceID: id, OperationName: sp.Name})
			}
		}
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
