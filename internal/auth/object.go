package auth

import (
	stdjson "encoding/json"
	"errors"
	"reflect"
	"slices"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// errJSON says no more, because the cause could quote the text.
var errJSON = errors.New("not a JSON object of the expected shape")

// object is a JSON object. json/v2 takes member names exactly as written and refuses two of one
// name, at any depth: two readers of one token could otherwise see two identities.
type object map[string]stdjson.RawMessage

// parseObject reads data, which must hold one object and nothing else.
func parseObject(data []byte) (object, error) {
	var o object
	if err := json.Unmarshal(data, &o); err != nil || o == nil {
		return nil, errJSON
	}
	return o, nil
}

// refuseNull makes null an error, which json/v2 takes for the zero value of any type.
var refuseNull = json.WithUnmarshalers(json.UnmarshalFromFunc(func(dec *jsontext.Decoder, v any) error {
	if dec.PeekKind() == 'n' {
		return &json.SemanticError{GoType: reflect.TypeOf(v).Elem(), JSONKind: 'n'}
	}
	return errors.ErrUnsupported // the type's own way
}))

// has reports whether there is a member of that name, null included.
func (o object) has(name string) bool {
	_, ok := o[name]
	return ok
}

// text is the string member of that name, "" if there is none. A member of another
// type is an error, and so is null.
func (o object) text(name string) (s string, err error) {
	if o.has(name) && json.Unmarshal(o[name], &s, refuseNull) != nil {
		return "", errJSON
	}
	return s, nil
}

// texts is the member of that name as a list: a string is a list of one.
func (o object) texts(name string) (list []string, err error) {
	if !o.has(name) {
		return nil, nil
	}
	if s, err := o.text(name); err == nil {
		return []string{s}, nil
	}
	if json.Unmarshal(o[name], &list, refuseNull) != nil {
		return nil, errJSON
	}
	return list, nil
}

// objects is the member of that name, which must be there and be a list of objects.
func (o object) objects(name string) (list []object, err error) {
	err = json.Unmarshal(o[name], &list)
	if err != nil || list == nil || slices.ContainsFunc(list, func(item object) bool { return item == nil }) {
		return nil, errJSON
	}
	return list, nil
}
