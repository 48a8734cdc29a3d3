// Package strictjson reads JSON whose meaning must not depend on who reads it: tokens,
// key sets, and the documents of identity providers.
//
// It wraps json/v2, which takes member names exactly as they are written and refuses two
// members of one name at any depth. Two readers of one token could otherwise see two
// identities. On top of that, null is an error where a value is expected.
//
//	o, err := strictjson.Parse(body)
//	issuer, err := o.String("issuer")       // "" if there is no such member
//	audience, err := o.Strings("aud")       // a string counts as a list of one
//	if o.Has("crit") {
//		return errUnsupported
//	}
//
// An Object is not changed by its methods, so they may be called concurrently.
package strictjson

import (
	stdjson "encoding/json"
	"errors"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// ErrShape is returned for every value of the wrong type. It says no more, because the
// cause could quote a token.
var ErrShape = errors.New("not a JSON object of the expected shape")

// Object is a JSON object whose members are still encoded.
type Object map[string]stdjson.RawMessage

// Parse reads data, which must be one object and nothing else. The error is ErrShape.
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
	return errors.ErrUnsupported // decode it as the type itself does
}))

// Has reports whether there is a member of that name. A member that is null counts.
func (o Object) Has(name string) bool {
	_, ok := o[name]
	return ok
}

// String returns the string member of that name, "" if there is none. A member of another
// type, null included, is ErrShape.
func (o Object) String(name string) (s string, err error) {
	if o.Has(name) && json.Unmarshal(o[name], &s, RefuseNull) != nil {
		return "", ErrShape
	}
	return s, nil
}

// Strings returns the member of that name as a list; a string is a list of one. It returns
// nil if there is no such member, and ErrShape for any other type.
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

// Objects returns the member of that name, which is required and must be a list of objects.
func (o Object) Objects(name string) (list []Object, err error) {
	err = json.Unmarshal(o[name], &list)
	if err != nil || list == nil || slices.ContainsFunc(list, func(item Object) bool { return item == nil }) {
		return nil, ErrShape
	}
	return list, nil
}
