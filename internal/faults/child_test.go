package faults

func childMain(kind, addr string) int { return 0 }
