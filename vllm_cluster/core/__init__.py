"""The judgement of vcluster: pure types and functions, no I/O, no clock, no random."""
