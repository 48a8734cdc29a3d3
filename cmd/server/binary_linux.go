package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// giveBackBinary gives pages of the binary back to the kernel that starting has touched:
// the tables of all types and functions, and whatever initialises itself, are two thirds of
// the memory of an idle service, and hardly any of it is needed again. What is comes back
// from the page cache, 64 KiB at a time; all of it takes less than a millisecond.
//
// That is safe for pages that are as they are in the file, so a mapping in which one is not,
// for a debugger's or a loader's sake, stays. Where the kernel cannot tell, all of them do.
func giveBackBinary() {
	binary, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	smaps, err := os.Open("/proc/self/smaps")
	if err != nil {
		return
	}
	defer smaps.Close()
	var from, to uintptr // the mapping that the lines are about; none if both are 0
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Text()
		name, value, _ := strings.Cut(line, ":")
		switch fields := strings.Fields(line); {
		case len(fields) >= 5 && !strings.HasSuffix(fields[0], ":"):
			from, to = 0, 0
			if fields[1][1] == '-' && strings.HasSuffix(line, " "+binary) {
				_, _ = fmt.Sscanf(fields[0], "%x-%x", &from, &to)
			}
		case name == "Anonymous" && strings.TrimSpace(value) == "0 kB" && from < to:
			// An error leaves them where they are.
			_, _, _ = syscall.Syscall(syscall.SYS_MADVISE, from, to-from, syscall.MADV_DONTNEED)
		}
	}
}
