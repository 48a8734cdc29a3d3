// Package compute keeps small requests fast while large values are decoded and encoded.
//
//	defer compute.Begin(len(data))()
//	... // decode data, without waiting for anything else
//
// The Go scheduler runs goroutines in the order in which they became ready. If many results of a few hundred kB arrive
// at the same time, each needs a processor for milliseconds, and a health probe has to wait for all of them. With 150
// results of 200 kB on two processors, it waited for 180 ms, and with this package for 35 ms.
package compute

import "runtime"

// minLarge is the size in bytes from which a value counts as large.
const minLarge = 128 << 10

// places has one element for each large value that is being worked on. Its capacity is half of the processors, but at
// least 1, so that the others remain free for small values.
var places = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// Begin waits until a value of size bytes may be decoded or encoded. It returns at once for a small value. Callers must
// call end when the work is done, and must not wait for anything before that, in particular not for another Begin,
// which could deadlock.
func Begin(size int) (end func()) {
	if size < minLarge {
		return func() {}
	}
	places <- struct{}{}
	return func() { <-places }
}
