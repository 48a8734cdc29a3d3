// Package threadindex keeps the threads of each owner in the order of their last update. The log in memory and the one
// on JetStream list threads from it.
//
//	var x threadindex.Index
//	x.Put(threadindex.Entry{Thread: t, Order: 7})
//	page, err := x.Page(event.ThreadFilter{Owner: t.Owner}, func(event.Thread) bool { return true })
//
// A page costs about the same for any number of threads. With a Query, Page compares the titles
// of one owner's threads until the page is full. An Index is not safe for concurrent use.
package threadindex

import (
	"cmp"
	"iter"
	"slices"
	"strconv"
	"strings"

	"answerd/internal/event"
)

// Entry is a thread with its position in the order of updates.
type Entry struct {
	event.Thread
	// Order is greater the later the thread was updated. Each thread has a different Order. The Next of
	// a page is the Order of its last thread, in base 36.
	Order uint64
}

// Index has the threads of all owners. The zero Index is empty.
type Index struct {
	owners map[event.Owner]*threads // only owners with threads
	count  int                      // number of threads of all owners
}

// threads has the threads of one owner, each in both fields.
type threads struct {
	byID   map[string]*Entry
	sorted []*Entry // by Order, the smallest first
}

// Len returns the number of threads.
func (x *Index) Len() int { return x.count }

// Get returns a copy of the entry of a thread, or false if there is none.
func (x *Index) Get(owner event.Owner, id string) (entry Entry, found bool) {
	if o := x.owners[owner]; o != nil {
		if e := o.byID[id]; e != nil {
			return *e, true
		}
	}
	return Entry{}, false
}

// Put adds an entry. It replaces the entry with the same owner and id, if there is one.
func (x *Index) Put(entry Entry) {
	if x.owners == nil {
		x.owners = make(map[event.Owner]*threads)
	}
	owned := x.owners[entry.Owner]
	if owned == nil {
		owned = &threads{byID: make(map[string]*Entry)}
		x.owners[entry.Owner] = owned
	}
	if earlier := owned.byID[entry.ID]; earlier != nil {
		if earlier.Order == entry.Order {
			*earlier = entry
			return
		}
		owned.removeSorted(earlier)
		x.count--
	}
	x.count++
	owned.byID[entry.ID] = &entry
	position := len(owned.sorted)
	if position > 0 && owned.sorted[position-1].Order > entry.Order { // rare: usually the entry is the newest one
		position, _ = owned.search(entry.Order)
	}
	owned.sorted = slices.Insert(owned.sorted, position, &entry)
}

// Remove removes the entry of a thread, if there is one.
func (x *Index) Remove(owner event.Owner, id string) {
	o := x.owners[owner]
	if o == nil || o.byID[id] == nil {
		return
	}
	o.removeSorted(o.byID[id])
	delete(o.byID, id)
	x.count--
	if len(o.byID) == 0 {
		delete(x.owners, owner)
	}
}

// Page returns a page of the owner's threads, the one updated last first. It leaves out threads for which isKept
// returns false, and those whose title does not contain the query. It returns event.ErrInvalidPosition if filter.After
// is not empty and not a number in base 36. A thread that is updated between two pages moves to the beginning of the
// list, so it is not on the later page.
func (x *Index) Page(filter event.ThreadFilter, isKept func(event.Thread) bool) (page event.ThreadPage, err error) {
	owned := x.owners[filter.Owner]
	if owned == nil {
		owned = &threads{}
	}
	end := len(owned.sorted)
	if filter.After != "" {
		after, err := strconv.ParseUint(filter.After, 36, 64)
		if err != nil {
			return page, event.ErrInvalidPosition
		}
		end, _ = owned.search(after)
	}
	query := strings.ToLower(filter.Query)
	lastOrder := uint64(0) // of the last thread on the page
	if query == "" {
		page.Threads = make([]event.Thread, 0, min(end, filter.PageSize()))
	}
	for _, entry := range slices.Backward(owned.sorted[:end]) {
		matches := query == "" || strings.Contains(strings.ToLower(entry.Title), query)
		if !isKept(entry.Thread) || !matches {
			continue
		}
		if len(page.Threads) == filter.PageSize() { // this thread is the first one of the next page
			page.Next = strconv.FormatUint(lastOrder, 36)
			break
		}
		page.Threads = append(page.Threads, entry.Thread)
		lastOrder = entry.Order
	}
	return page, nil
}

// Oldest returns the threads of an owner, the one that was updated longest ago first. The index must not
// be changed during the iteration.
func (x *Index) Oldest(owner event.Owner) iter.Seq[Entry] {
	return func(yield func(Entry) bool) {
		if o := x.owners[owner]; o != nil {
			for _, e := range o.sorted {
				if !yield(*e) {
					return
				}
			}
		}
	}
}

// search returns the position in o.sorted of the first entry whose Order is at least order, and whether the Order is
// equal.
func (o *threads) search(order uint64) (position int, found bool) {
	return slices.BinarySearchFunc(o.sorted, order, func(e *Entry, order uint64) int { return cmp.Compare(e.Order, order) })
}

// removeSorted removes e from o.sorted, but not from o.byID.
func (o *threads) removeSorted(e *Entry) {
	if i, ok := o.search(e.Order); ok {
		o.sorted = slices.Delete(o.sorted, i, i+1)
	}
}
