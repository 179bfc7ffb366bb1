"""Run a file of requests against an OpenAI-compatible API; standard library alone, as it also runs on the head."""
