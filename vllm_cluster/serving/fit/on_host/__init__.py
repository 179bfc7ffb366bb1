"""What runs in an image to ask its vLLM."""
