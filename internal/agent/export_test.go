package agent

// CallMark is what stands for a call in the notes of a run.
var CallMark = callMark
