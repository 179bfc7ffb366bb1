"""What Ray and vLLM are told, and how they answer: builders and parsers only."""
