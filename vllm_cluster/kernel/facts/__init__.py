"""What was observed on a host, a subject a file: types and parsers."""
