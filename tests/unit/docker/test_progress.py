"""How much of an image is shown while Docker pulls it."""

from __future__ import annotations

from typing import Any

from vllm_cluster.docker.progress import pulled

GB = 10**9


def row(layer: str, status: str, done: int = 0, total: int = 0) -> dict[str, Any]:
    """A message of Docker."""
    detail = {"progressDetail": {"current": done * GB, "total": total * GB}} if total else {}
    return {"id": layer, "status": status, **detail}


# fault: docker/progress.py: if status in _ANNOUNCED: → if status == "no such status":
def test_a_total_is_shown_once_it_is_known_and_does_not_change() -> None:
    """Docker downloads three layers at a time, and knows the size of one when it begins."""
    shown: list[str] = []
    messages = [
        {"status": "Pulling from vllm/vllm-openai", "id": "v1"},
        row("a", "Already exists"),
        *(row(layer, "Pulling fs layer") for layer in "bcd"),
        row("d", "Waiting"),
        row("b", "Downloading", 1, 3),
        row("c", "Downloading", 2, 4),
        row("b", "Verifying Checksum"),
        row("b", "Download complete"),
        row("d", "Downloading", 1, 5),
        row("c", "Download complete"),
        row("d", "Downloading", 4, 5),
        row("b", "Extracting", 1, 3),
        row("b", "Pull complete"),
        row("d", "Downloading", 5, 5),
    ]
    assert pulled(messages, "image", shown.append) == ""
    assert [text.removeprefix("pulling image: ") for text in shown] == [
        "1.0 GB, 2 of 4 layers not begun",
        "3.0 GB, 1 of 4 layers not begun",
        "6.0 of 12.0 GB",
        "11.0 of 12.0 GB",
        "12.0 of 12.0 GB",
    ]
