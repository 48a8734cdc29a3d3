// Package compute keeps small requests fast while large values are decoded and encoded.
//
//	defer compute.Begin(len(data))()
//	... // decode data, without waiting for anything else
//
// The Go scheduler runs goroutines in the order in which they became ready. When many results of some
// hundred kB arrive together, each needs a processor for milliseconds, and a health probe or a refusal
// would wait for all of them: with 150 results of 200 kB on two processors it waited for 180 ms, with
// this package for 35 ms.
package compute

import "runtime"

// large is the size in bytes from which a value counts as large.
const large = 128 << 10

// places holds one element for each large value that is being worked on: at most one for every second
// processor, so that the others are free for what is small.
var places = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))

// Begin waits until a value of size bytes may be decoded or encoded; small values need not wait. The
// caller calls end when that is done. Until then it waits for nothing, above all not for another Begin.
func Begin(size int) (end func()) {
	if size < large {
		return func() {}
	}
	places <- struct{}{}
	return func() { <-places }
}
