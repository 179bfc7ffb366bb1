"""The documents that cross machines, as types, and the one border where they are read; the standard library alone."""
