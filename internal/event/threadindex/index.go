// Package threadindex keeps each owner's threads in the order of their last update. The log in memory and the one on
// JetStream use it to list threads.
//
//	var x threadindex.Index
//	x.Put(threadindex.Entry{Thread: t, Order: 7})
//	page, err := x.Page(event.ThreadFilter{Owner: t.Owner}, func(event.Thread) bool { return true })
//
// A page costs about the same for any number of threads. With a Query, Page compares the titles of the owner's threads
// until the page is full. An Index is not safe for concurrent use.
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
	// Order orders threads by their last update, the latest having the largest Order. Each thread has a different
	// Order. A page's Next is the Order of its last thread, in base 36.
	Order uint64
}

// Index holds the threads of all owners. The zero Index is empty.
type Index struct {
	owners map[event.Owner]*threads // only owners with threads
	count  int                      // number of threads of all owners
}

// threads holds the threads of one owner, each of them in both fields.
type threads struct {
	byID   map[string]*Entry
	sorted []*Entry // by Order, smallest first
}

// Len returns the number of threads of all owners.
func (x *Index) Len() int { return x.count }

// Get returns a copy of a thread's entry. found is false if the index has no entry for the thread.
func (x *Index) Get(owner event.Owner, id string) (entry Entry, found bool) {
	if o := x.owners[owner]; o != nil {
		if e := o.byID[id]; e != nil {
			return *e, true
		}
	}
	return Entry{}, false
}

// Put adds an entry, and replaces any entry with the same owner and id.
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

// Remove removes a thread's entry, if the index has one.
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

// Page returns a page of the owner's threads, most recently updated first. It leaves out threads for which isKept
// returns false, and those whose title does not contain filter.Query. It returns event.ErrInvalidPosition if
// filter.After is not empty and not a number in base 36. A thread that is updated between two calls moves to the
// beginning of the list, so it is missing from the later page.
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

// Oldest returns an owner's threads, least recently updated first. The index must not change during the iteration.
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

// search returns the position in o.sorted of the first entry whose Order is at least order. found says whether its
// Order equals order.
func (o *threads) search(order uint64) (position int, found bool) {
	return slices.BinarySearchFunc(o.sorted, order, func(e *Entry, order uint64) int { return cmp.Compare(e.Order, order) })
}

// removeSorted removes e from o.sorted, but not from o.byID.
func (o *threads) removeSorted(e *Entry) {
	if i, ok := o.search(e.Order); ok {
		o.sorted = slices.Delete(o.sorted, i, i+1)
	}
}
