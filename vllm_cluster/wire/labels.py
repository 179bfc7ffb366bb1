"""The labels of what people paste: no text from elsewhere begins a line with one, on a terminal or in a document."""

LABELS = ("fix", "next", "ask", "clients", "look", "follow", "continue", "stop", "same")
