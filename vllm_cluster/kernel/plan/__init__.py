"""What is wanted of each host, and what differs: pure types and functions, no I/O, no clock, no random."""
