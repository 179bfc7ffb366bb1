"""Command lines for Ray and vLLM, and parsers of their output; no I/O."""
