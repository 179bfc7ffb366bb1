"""Reports whether the image's vLLM can split a model class into pipeline stages; the argument is the class."""

from __future__ import annotations

import importlib
import json
import sys

if __name__ == "__main__":
    models = importlib.import_module("vllm.model_executor.models.registry").ModelRegistry.models
    known = models.get(sys.argv[1])
    print(json.dumps({"supports_pp": known.inspect_model_cls().supports_pp if known else None}))
