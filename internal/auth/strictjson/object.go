// Package strictjson decodes JSON whose meaning must not depend on the reader: tokens, key sets,
// and the documents of identity providers.
//
// It wraps json/v2, which matches member names exactly and refuses two members with the same name
// at any depth. Otherwise two readers of one token could see two identities. Also, null is an
// error if a value is expected.
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

// ErrShape is the error for every value of the wrong type. It has no details, because they could
// quote a token.
var ErrShape = errors.New("not a JSON object of the expected shape")

// Object is a JSON object whose members are not decoded yet.
type Object map[string]stdjson.RawMessage

// Parse decodes data, which must be exactly one object. The error is ErrShape.
func Parse(data []byte) (Object, error) {
	var o Object
	if err := json.Unmarshal(data, &o); err != nil || o == nil {
		return nil, ErrShape
	}
	return o, nil
}

// RefuseNull is an option of json/v2 that makes null an error. Without it json/v2 decodes
// null as the zero value of any type.
var RefuseNull = json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
	if dec.PeekKind() == 'n' {
		return &json.SemanticError{GoType: reflect.TypeOf(v).Elem(), JSONKind: 'n'}
	}
	return errors.ErrUnsupported // decode the value as if there were no option
}))

// Has reports whether the object has a member with that name, which may be null.
func (o Object) Has(name string) bool {
	_, ok := o[name]
	return ok
}

// String returns the string with that name, or "" if there is no such member. For a member of
// another type, also null, the error is ErrShape.
func (o Object) String(name string) (s string, err error) {
	if o.Has(name) && json.Unmarshal(o[name], &s, RefuseNull) != nil {
		return "", ErrShape
	}
	return s, nil
}

// Strings returns the list of strings with that name. A string counts as a list of one, as in the
// claim aud (RFC 7519 section 4.1.3). It returns nil if there is no such member, and ErrShape for
// any other type.
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

// Objects returns the list of objects with that name. If there is no such member, or one of another type, the error is
// ErrShape.
func (o Object) Objects(name string) (list []Object, err error) {
	isNull := func(item Object) bool { return item == nil }
	err = json.Unmarshal(o[name], &list)
	if err != nil || list == nil || slices.ContainsFunc(list, isNull) {
		return nil, ErrShape
	}
	return list, nil
}
