"""Takes the place of Ray's private modules: the nodes are in a file, and Ray is gone when the file is."""

import json
import os
from pathlib import Path
from typing import Any


class GcsClientOptions:
    @staticmethod
    def create(address: str, *_: object, **__: object) -> str:
        return address


class GlobalState:
    def _initialize_global_state(self, options: str) -> None:
        self.address = options

    def node_table(self) -> Any:
        return json.loads((Path(os.environ["FAKE"]) / "nodes.json").read_text())

    def available_resources_per_node(self) -> Any:
        path = Path(os.environ["FAKE"]) / "free.json"
        return json.loads(path.read_text()) if path.exists() else {}
