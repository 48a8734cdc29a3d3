// Package otlptest decodes the spans, metrics and log records of an OTLP/HTTP export, for tests that act as a
// collector. It decodes only what these tests check.
//
//	spans, err := otlptest.Decode(body) // the body of a POST to /v1/traces
package otlptest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"math"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Span is an exported span. Ids are in hex. ParentID is "" for a root span.
type Span struct {
	TraceID, SpanID, ParentID string
	Name                      string
	Attributes, Resource      map[string]string // numbers as decimal text, lists as JSON
}

// Decode returns the spans in an ExportTraceServiceRequest. Its field numbers come from opentelemetry/proto:
// collector/trace/v1/trace_service.proto, trace/v1/trace.proto, resource/v1/resource.proto and common/v1/common.proto.
func Decode(request []byte) ([]Span, error) {
	var d decoder
	var spans []Span
	for _, b := range d.splitMessage(request)[1] {
		resourceSpans := d.splitMessage(b)
		resource := d.decodeAttributes(d.splitMessage(resourceSpans.valueOf(1))[1])
		for _, b := range resourceSpans[2] {
			for _, b := range d.splitMessage(b)[2] {
				span := d.splitMessage(b)
				spans = append(spans, Span{
					TraceID: hex.EncodeToString(span.valueOf(1)), SpanID: hex.EncodeToString(span.valueOf(2)),
					ParentID: hex.EncodeToString(span.valueOf(4)), Name: string(span.valueOf(5)),
					Attributes: d.decodeAttributes(span[9]), Resource: resource,
				})
			}
		}
	}
	return spans, d.err
}

// Record is an exported log line. TraceID is in hex, and "" outside of a trace.
type Record struct {
	TraceID, Severity, Body string
	Attributes, Resource    map[string]string // as in Span
}

// DecodeLogs returns the records in an ExportLogsServiceRequest (collector/logs/v1/logs_service.proto,
// logs/v1/logs.proto).
func DecodeLogs(request []byte) ([]Record, error) {
	var d decoder
	var records []Record
	for _, b := range d.splitMessage(request)[1] {
		resourceLogs := d.splitMessage(b)
		resource := d.decodeAttributes(d.splitMessage(resourceLogs.valueOf(1))[1])
		for _, b := range resourceLogs[2] {
			for _, b := range d.splitMessage(b)[2] {
				r := d.splitMessage(b)
				records = append(records, Record{
					TraceID: hex.EncodeToString(r.valueOf(9)), Severity: string(r.valueOf(3)), Body: d.decodeValue(r.valueOf(5)),
					Attributes: d.decodeAttributes(r[6]), Resource: resource,
				})
			}
		}
	}
	return records, d.err
}

// DecodeMetrics returns the names of the metrics in an ExportMetricsServiceRequest
// (collector/metrics/v1/metrics_service.proto, metrics/v1/metrics.proto).
func DecodeMetrics(request []byte) (names []string, _ error) {
	var d decoder
	for _, b := range d.splitMessage(request)[1] {
		for _, b := range d.splitMessage(b)[2] {
			for _, b := range d.splitMessage(b)[2] {
				names = append(names, string(d.splitMessage(b).valueOf(1)))
			}
		}
	}
	return names, d.err
}

// fields has the values of a protobuf message by field number. Each field has a list of values, because it may be
// repeated.
type fields map[protowire.Number][][]byte

// valueOf returns the value of a field that is not repeated, or an empty slice if the message does not have the field.
func (f fields) valueOf(n protowire.Number) []byte { return bytes.Join(f[n], nil) }

// decoder decodes messages and keeps the first error in err, so that callers need to check it only once, at the end.
type decoder struct{ err error }

// splitMessage splits a message into its fields. If the message is invalid, it sets d.err and returns the fields before
// the error. Integers become decimal text. Fixed 64-bit fields become decimal text as doubles, which is wrong for
// times, but the tests do not read times.
func (d *decoder) splitMessage(b []byte) fields {
	all := fields{}
	for len(b) > 0 {
		n, kind, size := protowire.ConsumeField(b)
		if size < 0 {
			if d.err == nil {
				d.err = protowire.ParseError(size)
			}
			break
		}
		_, _, tag := protowire.ConsumeTag(b)
		switch kind {
		case protowire.BytesType:
			value, _ := protowire.ConsumeBytes(b[tag:])
			all[n] = append(all[n], value)
		case protowire.VarintType:
			value, _ := protowire.ConsumeVarint(b[tag:])
			all[n] = append(all[n], strconv.AppendUint(nil, value, 10))
		case protowire.Fixed64Type:
			value, _ := protowire.ConsumeFixed64(b[tag:])
			all[n] = append(all[n], strconv.AppendFloat(nil, math.Float64frombits(value), 'g', -1, 64))
		}
		b = b[size:]
	}
	return all
}

// decodeAttributes decodes a list of KeyValue messages.
func (d *decoder) decodeAttributes(keyValues [][]byte) map[string]string {
	all := map[string]string{}
	for _, b := range keyValues {
		kv := d.splitMessage(b)
		all[string(kv.valueOf(1))] = d.decodeValue(kv.valueOf(2))
	}
	return all
}

// decodeValue returns an AnyValue message as text. Exactly one of its fields is set: a string (1), a boolean (2), an
// integer (3), a double (4) or a list of strings (5). A boolean becomes 0 or 1.
func (d *decoder) decodeValue(b []byte) string {
	value := d.splitMessage(b)
	if list, ok := value[5]; ok {
		texts := []string{}
		for _, item := range d.splitMessage(bytes.Join(list, nil))[1] {
			texts = append(texts, d.decodeValue(item))
		}
		text, _ := json.Marshal(texts) // cannot fail for texts
		return string(text)
	}
	return string(value.valueOf(1)) + string(value.valueOf(2)) + string(value.valueOf(3)) + string(value.valueOf(4))
}
