package auth

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"path"
	"reflect"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"answerd/internal/auth/strictjson"
)

// Limits of a rules file.
const (
	maxRulesFile = 1 << 20 // bytes
	maxRules     = 1000
	maxRuleName  = 64 // bytes
)

// RulesError is the error for an invalid rules file.
type RulesError struct {
	Pointer string // JSON pointer (RFC 6901) to the wrong member; "" if the file is not JSON
	Line    int    // if the file is not JSON, the line number, from 1; otherwise 0
	Detail  string
}

// Error returns the place in the file and what is wrong there.
func (e *RulesError) Error() string {
	switch {
	case e.Line > 0:
		return fmt.Sprintf("%s (line %d)", e.Detail, e.Line)
	case e.Pointer == "":
		return e.Detail
	}
	return e.Pointer + ": " + e.Detail
}

// ParseRules decodes a rules file, {"rules": [{"subjects": […], "tools": […]}]}. It rejects unknown members, because a
// misspelled condition would otherwise match every caller. The error is a *RulesError.
func ParseRules(data []byte) ([]Rule, error) {
	if len(data) > maxRulesFile {
		return nil, &RulesError{Detail: fmt.Sprintf("is larger than %d bytes", maxRulesFile)}
	}
	var file struct {
		Rules []Rule `json:"rules"`
	}
	if err := json.Unmarshal(data, &file, json.RejectUnknownMembers(true), strictjson.RefuseNull); err != nil {
		return nil, rulesError(data, err)
	}
	switch {
	case file.Rules == nil:
		return nil, &RulesError{Pointer: "/rules", Detail: mustBeRules}
	case len(file.Rules) > maxRules:
		return nil, &RulesError{Pointer: "/rules", Detail: fmt.Sprintf("has more than %d rules", maxRules)}
	}
	for i := range file.Rules {
		if err := file.Rules[i].validate(); err != nil {
			err.Pointer = fmt.Sprintf("/rules/%d", i) + err.Pointer
			return nil, err
		}
		file.Rules[i].Name = cmp.Or(file.Rules[i].Name, strconv.Itoa(i+1))
	}
	return file.Rules, nil
}

// Details of errors, by the kind of value.
const (
	mustBeObject = "must be an object whose names are unique, in UTF-8"
	mustBeRules  = "must be a list"
	mustBeTexts  = "must be a list of strings, with one at least"
	mustBeName   = "must be a string of at most 64 bytes"
)

// rulesError converts an error of json/v2 to one that an operator understands. The result does not quote the file.
func rulesError(data []byte, err error) *RulesError {
	if syntactic, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		if errors.Is(syntactic, jsontext.ErrDuplicateName) { // the text for an object says that each field may occur once
			return &RulesError{Pointer: string(syntactic.JSONPointer.Parent()), Detail: mustBeObject}
		}
		return &RulesError{Line: 1 + bytes.Count(data[:syntactic.ByteOffset], []byte("\n")), Detail: "is not JSON"}
	}
	semantic, ok := errors.AsType[*json.SemanticError](err)
	if !ok || semantic.GoType == nil {
		return &RulesError{Detail: "is not JSON"}
	}
	pointer, wanted := semantic.JSONPointer, semantic.GoType
	var detail string
	switch {
	case errors.Is(semantic, json.ErrUnknownName):
		detail = "unknown field"
	case wanted == reflect.TypeFor[[]Rule]():
		detail = mustBeRules
	case wanted == reflect.TypeFor[[]string]():
		detail = mustBeTexts
	case wanted.Kind() != reflect.String: // the file itself, claims, or a rule
		detail = mustBeObject
	case pointer.LastToken() == "name":
		detail = mustBeName
	default: // every other string in the file is an item of a list, so the error is about the list
		detail = mustBeTexts
		pointer = pointer.Parent()
	}
	return &RulesError{Pointer: string(pointer), Detail: detail}
}

// validate returns an error if a name is too long, a list or a text is empty, or a pattern is invalid. The error's
// pointer starts at the rule.
func (r *Rule) validate() *RulesError {
	if len(r.Name) > maxRuleName {
		return &RulesError{Pointer: "/name", Detail: mustBeName}
	}
	lists := map[string][]string{
		"/subjects": r.Subjects, "/scopes": r.Scopes,
		"/servers": r.Servers, "/tools": r.Tools, "/models": r.Models, "/agents": r.Agents,
	}
	for name, values := range r.Claims {
		lists[string(jsontext.Pointer("/claims").AppendToken(name))] = values
	}
	for _, pointer := range slices.Sorted(maps.Keys(lists)) {
		if err := validateList(lists[pointer], pointer); err != nil {
			return err
		}
	}
	return nil
}

// validateList returns an error if list, which is at pointer, is empty, or if one of its texts is empty or is not a
// valid pattern. Scopes need not be valid patterns. A nil list is valid, because it means that the member is left out.
func validateList(list []string, pointer string) *RulesError {
	// An empty list is ambiguous, because it could mean nothing or everything.
	if list != nil && len(list) == 0 {
		return &RulesError{Pointer: pointer, Detail: mustBeTexts}
	}
	for i, text := range list {
		_, err := path.Match(withoutSlashes(text), "")
		switch {
		case text == "":
			return &RulesError{Pointer: fmt.Sprintf("%s/%d", pointer, i), Detail: "must not be empty"}
		case err != nil && pointer != "/scopes":
			return &RulesError{Pointer: fmt.Sprintf("%s/%d", pointer, i), Detail: "is not a valid pattern"}
		}
	}
	return nil
}
