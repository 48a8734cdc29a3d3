package main

import "testing"

// Settings that are written with a unit.
func FuzzSettingsWithUnits(f *testing.F) {
	for _, s := range []string{"1MiB", "10/s", "1000/h", "0", "-1", "1KiB ", "9223372036854775807B", "8589934592GiB", "/s", "1/s/s", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var size byteSize
		if err := size.UnmarshalText([]byte(text)); err == nil && size < 0 {
			t.Errorf("%q is %d bytes", text, size)
		}
		var rate rateLimit
		if err := rate.UnmarshalText([]byte(text)); err == nil && (rate.N < 1 || rate.N > maxRate || rate.Per <= 0) {
			t.Errorf("%q is %v", text, rate)
		}
	})
}
