"""What runs beside vLLM to ask it."""
