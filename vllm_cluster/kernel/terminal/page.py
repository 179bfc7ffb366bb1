"""Pages for a browser: one style and one way to draw; a page adds its content and its script."""

from __future__ import annotations

import json
from importlib.resources import files


def page(package: str, name: str, data: object = None) -> str:
    """Return the page of that name in a package; with `data`, which its script shows, it needs no other file."""
    shared = files("vllm_cluster.kernel.terminal").joinpath("page.html").read_text(encoding="utf-8")
    content, script = (
        files(package).joinpath(file).read_text(encoding="utf-8") for file in (f"{name}.html", f"{name}.js")
    )
    # In a script, "<" could end it.
    script = script.replace("@DATA@", json.dumps(data).replace("<", "\\u003c"))
    return shared.replace("@CONTENT@", content).replace("@SCRIPT@", script)
