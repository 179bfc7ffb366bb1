"""The command line: parse, one action, render."""
