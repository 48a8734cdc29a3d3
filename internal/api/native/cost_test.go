package native_test

import (
	"errors"
	"fmt"
	"net/url"
	"runtime"
	"strings"
	"testing"

	"answerd/internal/api/native"
)

// The cost of refusing a body grows with its size, and not with the square of it: one request of
// 350 KB once took 4 s and 6 GB, because each item below one long key had its own pointer.
func TestRefusingABodyCostsInProportionToIt(t *testing.T) {
	const size = 300 << 10
	for name, body := range map[string]string{
		"many items below a long key": `{"` + strings.Repeat("k", size/2) + `":[` + strings.Repeat("1,", size/4) + `1]}`,
		"long keys inside each other": strings.Repeat(`{"`+strings.Repeat("k", size/20)+`":`, 15) + "1" + strings.Repeat("}", 15),
		"many unknown fields":         "{" + repeatFormat(size/10, `"%07x":1`) + "}",
		"many unknown parts":          `{"history":[` + repeatFormat(1000, `{"role":1,"content":2,"x%x":1}`) + `]}`,
		"many small objects":          `{"context":[` + strings.Repeat("{},", size/3) + `{}]}`,
		"many small lists":            `[` + strings.Repeat("[[[]]],", size/7) + `[]]`,
		"many numbers":                `{"question":[` + strings.Repeat("1,", size/2) + `1]}`,
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := native.Decode([]byte(body))
		runtime.ReadMemStats(&after)
		var invalid *native.Invalid
		if !errors.As(err, &invalid) {
			t.Errorf("%s: %v, want an Invalid", name, err)
			continue
		}
		if spent := after.TotalAlloc - before.TotalAlloc; spent > 150*uint64(len(body)) {
			t.Errorf("%s: %d KiB for a body of %d KiB, want at most 150 times as much", name, spent>>10, len(body)>>10)
		}
		if len(invalid.Errors) > 100 {
			t.Errorf("%s: %d errors are listed, want at most 100", name, len(invalid.Errors))
		}
	}
}

// repeatFormat returns n items made with the format, separated by commas.
func repeatFormat(n int, format string) string {
	items := make([]string, n)
	for i := range items {
		items[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(items, ",")
}

// A query is held to what a body is held to.
func TestQueryIsTextToo(t *testing.T) {
	for _, bad := range []string{"question=%ff", "question=a%00b", "question=a&servers=%c3%28", "question=a&%ff=b", "question=a&thread_id=%00"} {
		q, err := url.ParseQuery(bad)
		if err != nil {
			t.Fatal(err)
		}
		var invalid *native.Invalid
		if _, _, err := native.DecodeQuery(q); !errors.As(err, &invalid) {
			t.Errorf("%s: %v, want an Invalid", bad, err)
		}
	}
}
