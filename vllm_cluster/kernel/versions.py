"""The versions of other programs that this one is tested with and writes into new inventories: here alone."""

VLLM = "0.32.0"
VLLM_IMAGE = f"vllm/vllm-openai:v{VLLM}"
# Put into images that come without Ray.
RAY = "2.56.1"
