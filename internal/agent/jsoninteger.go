package agent

import (
	"encoding/json"
	"math"
	"strconv"
)

// JSONInteger is a whole number of a request, in whichever API format. JSON has one kind of
// number: 5.0 and 5e0 are the integer 5 (JSON Schema 2020-12 Core, 4.2.3), and so they are in
// the OpenAPI document, which says "integer". encoding/json would refuse them for an int64.
type JSONInteger int64

// maxExactInteger is the largest number that may be written as a fraction or with an exponent: a
// larger one may have been another number before it was rounded (RFC 7493 section 2.2).
const maxExactInteger = 1<<53 - 1

// ParseJSONInteger reads a JSON number; ok is false if text is not a number, or not a whole one.
func ParseJSONInteger(text string) (n JSONInteger, ok bool) {
	if !json.Valid([]byte(text)) {
		return 0, false
	}
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return JSONInteger(i), true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > maxExactInteger {
		return 0, false
	}
	return JSONInteger(f), true
}

// UnmarshalJSON implements json.Unmarshaler. Its errors are those of an int64.
func (w *JSONInteger) UnmarshalJSON(data []byte) error {
	if n, ok := ParseJSONInteger(string(data)); ok {
		*w = n
		return nil
	}
	return json.Unmarshal(data, (*int64)(w))
}
