// Package strictjson decodes JSON that every reader must understand in the same way: tokens, key sets, and documents of
// identity providers.
//
// It wraps json/v2, which matches member names exactly and rejects two members with the same name at any depth.
// Otherwise two readers of one token could see two identities. Also, null is an error where a value is expected.
//
//	o, err := strictjson.Parse(body)
//	issuer, err := o.String("issuer")       // "" if there is no such member
//	audience, err := o.Strings("aud")       // a string counts as a list of one
//	if o.Has("crit") {
//		return errUnsupported
//	}
//
// The methods of an Object do not change it, so they may be called concurrently.
package strictjson

import (
	stdjson "encoding/json"
	"errors"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrShape is the error for JSON that is invalid or has the wrong type. It has no details, because they could quote a
// token.
var ErrShape = errors.New("not a JSON object of the expected shape")

// Object is a JSON object whose members are not yet decoded.
type Object map[string]stdjson.RawMessage

// Parse decodes data, which must be exactly one JSON object. The error is ErrShape.
func Parse(data []byte) (Object, error) {
	var o Object
	if err := json.Unmarshal(data, &o); err != nil || o == nil {
		return nil, ErrShape
	}
	return o, nil
}

// RefuseNull is an option for json/v2 that makes null an error. Without it, json/v2 decodes null as the zero value of
// any type.
var RefuseNull = json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
	if dec.PeekKind() == 'n' {
		return &json.SemanticError{GoType: reflect.TypeOf(v).Elem(), JSONKind: 'n'}
	}
	return errors.ErrUnsupported // decode the value as if there were no option
}))

// Has reports whether o has a member called name, even if the member is null.
func (o Object) Has(name string) bool {
	_, ok := o[name]
	return ok
}

// String returns the string member called name, or "" if there is no such member. If the member has another type,
// including null, the error is ErrShape.
func (o Object) String(name string) (s string, err error) {
	if o.Has(name) && json.Unmarshal(o[name], &s, RefuseNull) != nil {
		return "", ErrShape
	}
	return s, nil
}

// Strings returns the member called name, which is a list of strings. A single string counts as a list of one, as in
// the claim aud (RFC 7519 section 4.1.3). Strings returns nil if there is no such member, and ErrShape if the member
// has another type.
func (o Object) Strings(name string) (list []string, err error) {
	if !o.Has(name) {
		return nil, nil
	}
	if s, err := o.String(name); err == nil {
		return []string{s}, nil
	}
	if json.Unmarshal(o[name], &list, RefuseNull) != nil {
		return nil, ErrShape
	}
	return list, nil
}

// Objects returns the member called name, which is a list of objects. The error is ErrShape if there is no such member
// or if it has another type.
func (o Object) Objects(name string) (list []Object, err error) {
	isNull := func(item Object) bool { return item == nil }
	err = json.Unmarshal(o[name], &list)
	if err != nil || list == nil || slices.ContainsFunc(list, isNull) {
		return nil, ErrShape
	}
	return list, nil
}
