// Package otlptest decodes the spans of an OTLP/HTTP export, for tests that stand in for a
// collector. It reads what they look at.
package otlptest

import (
	"bytes"
	"encoding/hex"
	"strconv"

	"google.golang.org/protobuf/encoding/protowire"
)

// Span is an exported span. Ids are hex digits; ParentID is "" for a root span.
type Span struct {
	TraceID, SpanID, ParentID string
	Name                      string
	Attributes, Resource      map[string]string // strings and integers
}

// Decode returns the spans of an ExportTraceServiceRequest. The field numbers are those of
// opentelemetry/proto: collector/trace/v1/trace_service.proto, trace/v1/trace.proto,
// resource/v1/resource.proto and common/v1/common.proto.
func Decode(request []byte) ([]Span, error) {
	var d decoder
	var spans []Span
	for _, b := range d.message(request)[1] {
		resourceSpans := d.message(b)
		resource := d.attributes(d.message(resourceSpans.bytes(1))[1])
		for _, b := range resourceSpans[2] {
			for _, b := range d.message(b)[2] {
				span := d.message(b)
				spans = append(spans, Span{
					TraceID: hex.EncodeToString(span.bytes(1)), SpanID: hex.EncodeToString(span.bytes(2)),
					ParentID: hex.EncodeToString(span.bytes(4)), Name: string(span.bytes(5)),
					Attributes: d.attributes(span[9]), Resource: resource,
				})
			}
		}
	}
	return spans, d.err
}

// fields are the values of a message, by field number.
type fields map[protowire.Number][][]byte

// bytes returns the value of a field that is not repeated.
func (f fields) bytes(n protowire.Number) []byte { return bytes.Join(f[n], nil) }

type decoder struct{ err error } // the first one

// message splits a message. Integers are in decimal; fixed numbers are left out.
func (d *decoder) message(b []byte) fields {
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
		}
		b = b[size:]
	}
	return all
}

func (d *decoder) attributes(keyValues [][]byte) map[string]string {
	all := map[string]string{}
	for _, b := range keyValues {
		kv := d.message(b)
		value := d.message(kv.bytes(2))
		all[string(kv.bytes(1))] = string(value.bytes(1)) + string(value.bytes(3)) // one of them
	}
	return all
}
