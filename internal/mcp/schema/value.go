package schema

// kind is a type of JSON values; kinds can be joined. An integer is a number too.
type kind uint8

const (
	null kind = 1 << iota
	boolean
	integer
	fraction // a number that is no integer
	text
	array
	object

	number = integer | fraction
)

// value is a JSON value with the bytes that it was written in, so that what isn't
// changed is rendered as it came, every digit of it. It is not written once it is made.
type value struct {
	kind    kind
	raw     []byte   // as written
	text    string   // of a string: what it says
	float   float64  // of a number: nearly
	names   []string // of an object, in order
	items   []*value // of an array, or the object's members
	byName  map[string]int
	at, len int  // its place within the raw of what it is in
	changed bool // it, or something in it, is not what is at its place
}

// fewNames is how many names are searched one after the other.
const fewNames = 12

// get is a member of an object; nil where there is none.
func (v *value) get(name string) *value {
	if v.byName != nil {
		if i, ok := v.byName[name]; ok {
			return v.items[i]
		}
		return nil
	}
	for i := len(v.names) - 1; i >= 0; i-- { // the last of the same name wins
		if v.names[i] == name {
			return v.items[i]
		}
	}
	return nil
}

// with is v with other items.
func (v *value) with(items []*value) *value {
	c := *v
	c.items, c.changed = items, true
	return &c
}

// inPlaceOf is v where before was.
func (v *value) inPlaceOf(before *value) *value {
	c := *v
	c.at, c.len, c.changed = before.at, before.len, true
	return &c
}

// render appends v to dst.
func (v *value) render(dst []byte) []byte {
	from := 0
	for _, item := range v.items {
		if item.changed {
			dst = append(dst, v.raw[from:item.at]...)
			dst = item.render(dst)
			from = item.at + item.len
		}
	}
	return append(dst, v.raw[from:]...)
}
