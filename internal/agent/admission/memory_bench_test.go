package admission_test

import "testing"

// BenchmarkSlot takes the slot of a run, counts its request, its text and four results, and gives it
// back, with reservations of memory and without. The difference must be below 2 % of the CPU time of
// an answer, which docs/internals/performance.md has: 0.355 ms, so 7 µs.
func BenchmarkSlot(b *testing.B) {
	for name, capacity := range map[string]int64{"WithoutMemory": 0, "WithMemory": 1 << 30} {
		b.Run(name, func(b *testing.B) {
			gate := newGate(capacity)
			b.ReportAllocs()
			for b.Loop() {
				slot, err := gate.Acquire(b.Context(), "ada", 1000)
				if err != nil {
					b.Fatal(err)
				}
				for range 6 {
					if !slot.Memory.Hold(1000) {
						b.Fatal("Hold() = false, want true")
					}
				}
				slot.Release()
			}
		})
	}
}
