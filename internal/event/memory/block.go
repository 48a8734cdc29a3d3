package memory

import (
	"slices"
	"sort"
)

const (
	// minBlock and maxBlock bound the size of a block. Within these bounds, a block is half as large as all blocks
	// before it together. An event that is larger gets its own block.
	minBlock = 1 << 10
	maxBlock = 16 << 10
	// blockOverhead is what a block needs besides its data and its index.
	blockOverhead = 64
)

// events holds the events of one run as JSON, as readers get them, in blocks of consecutive events. Blocks are only
// appended to and never moved, so readers can share them. The zero value has no events.
type events struct {
	blocks []block // the newest block is always kept
	newest int64   // number of the newest event; 0 before the first
	bytes  int64   // exact size of all blocks
}

// block holds the JSON of consecutive events without separators.
type block struct {
	first int64 // number of its first event
	data  []byte
	ends  []uint32 // for each event, the offset in data where it ends
}

// size returns the memory that the block occupies, in bytes.
func (b *block) size() int64 { return int64(cap(b.data)) + 4*int64(cap(b.ends)) + blockOverhead }

// line returns the JSON of the event at index i. Its capacity is limited to the event, so that a reader that appends to
// it gets a copy and does not overwrite the next event.
func (b *block) line(i int) []byte {
	begin, end := uint32(0), b.ends[i]
	if i > 0 {
		begin = b.ends[i-1]
	}
	return b.data[begin:end:end]
}

// add adds the next event and returns its JSON in the block. If the array of line is larger than a block, the array
// itself becomes a block, and the caller must not use it again. Otherwise add copies line.
func (s *events) add(line []byte) []byte {
	last := s.last()
	switch {
	case cap(line) > maxBlock:
		last = s.addBlock(line[:0]) // the append below copies line onto itself
	case last == nil || cap(last.data)-len(last.data) < len(line):
		last = s.addBlock(slices.Grow([]byte(nil), max(min(int(s.bytes/2), maxBlock), minBlock, len(line))))
	}
	s.bytes -= last.size()
	last.data = append(last.data, line...)
	last.ends = append(last.ends, uint32(len(last.data)))
	s.bytes += last.size()
	s.newest++
	return last.line(len(last.ends) - 1)
}

// last returns the newest block, or nil before the first.
func (s *events) last() *block {
	if len(s.blocks) == 0 {
		return nil
	}
	return &s.blocks[len(s.blocks)-1]
}

// addBlock seals the newest block and returns a new one, which stores its events in data.
func (s *events) addBlock(data []byte) *block {
	s.seal()
	s.blocks = append(s.blocks, block{first: s.newest + 1, data: data})
	last := s.last()
	s.bytes += last.size()
	return last
}

// seal frees the unused memory of the newest block, to which no more events will be added. It copies the events to a
// smaller array only if more than an eighth of the array is unused. Readers may still hold the old array.
func (s *events) seal() {
	last := s.last()
	if last == nil {
		return
	}
	s.bytes -= last.size()
	if cap(last.data)-len(last.data) > cap(last.data)/8 {
		last.data = append([]byte(nil), last.data...)
	}
	last.ends = append([]uint32(nil), last.ends...)
	s.bytes += last.size()
}

// first returns the number of the oldest event that is kept, or of the next event if none is kept.
func (s *events) first() int64 {
	if len(s.blocks) == 0 {
		return s.newest + 1
	}
	return s.blocks[0].first
}

// linesAfter returns the JSON of the events after seq: at most maxLines events and at most maxBytes bytes, except that
// the first event may be larger. The events after seq must still be kept.
func (s *events) linesAfter(seq int64, maxLines, maxBytes int) (lines [][]byte) {
	next, size := seq+1, 0
	later := sort.Search(len(s.blocks), func(i int) bool { return s.blocks[i].first > next })
	for i := later - 1; i < len(s.blocks); i++ { // start at the block that has event next
		b := &s.blocks[i]
		for next < b.first+int64(len(b.ends)) {
			line := b.line(int(next - b.first))
			size += len(line)
			isTooLarge := size > maxBytes && len(lines) > 0
			if len(lines) == maxLines || isTooLarge {
				return lines
			}
			lines = append(lines, line)
			next++
		}
	}
	return lines
}

// dropOldest drops the oldest blocks until it has freed wanted bytes or only the newest block is left.
func (s *events) dropOldest(wanted int64) {
	dropped, freed := 0, int64(0)
	for ; freed < wanted && dropped < len(s.blocks)-1; dropped++ {
		freed += s.blocks[dropped].size()
	}
	s.bytes -= freed
	s.blocks = slices.Delete(s.blocks, 0, dropped)
}
