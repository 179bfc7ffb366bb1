"""Options in the place of names, given to the program itself: refused, and nothing runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import world
from tests.support.figures import tallied


@pytest.fixture(scope="module")
def held() -> Iterator[dict[str, bool]]:
    """Of each case, whether it was refused; kept as the figure of P15."""
    what = "refused with exit 2, 0 executed"
    with tallied("P15", "options in place of hosts, users, images, models and names, both transports", what) as cases:
        yield cases


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["fabric", "openssh"])
@pytest.mark.parametrize(
    ("verb", "words"),
    [
        (["plan"], {"hosts": {"gpu1": {"ssh": "-oProxyCommand=touch CANARY", "address": "10.0.0.1"}}}),
        (["down"], {"hosts": {"gpu1": {"ssh": {"jump": "-oProxyCommand=touch CANARY"}, "address": "10.0.0.1"}}}),
        (["status"], {"hosts": {"gpu1": {"ssh": {"user": "-oProxyCommand=touch CANARY"}, "address": "10.0.0.1"}}}),
        (["plan"], {"hosts": {"-oProxyCommand=touch CANARY": {"address": "10.0.0.1"}}}),
        (["plan"], {"hosts": {"gpu1": {"ssh": "$(touch CANARY)", "address": "10.0.0.1"}}}),
        (["up"], {"image": "--privileged"}),
        (["serve", "--", "--trust-remote-code"], {}),
        (["serve", "m", "--name", "--trust-remote-code"], {}),
        (["serve", "m", "--", "--host=0.0.0.0"], {}),
        (["serve", "m\x1b[31m"], {}),
    ],
)
def test_options_in_place_of_names_run_nothing(
    verb: list[str], words: dict[str, Any], transport: str, tmp_path: Path, held: dict[str, bool]
) -> None:
    canary, called = tmp_path / "CANARY", tmp_path / "called"
    # Refused before a connection: an ssh of the test that leaves a mark, and a host that must not be asked for.
    (tmp_path / "ssh_config").write_text(f"Host *\nProxyCommand touch {called}\n")
    base = world.inventory(1).model_dump(mode="json", exclude_unset=True)
    base |= {"ssh": {"transport": transport, "config": str(tmp_path / "ssh_config")}, **words}
    (tmp_path / "inventory.yaml").write_text(json.dumps(base).replace("CANARY", str(canary)))
    argv = [sys.executable, "-m", "vllm_cluster", verb[0], "-i", "inventory.yaml", *verb[1:]]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False)
    attacked = json.dumps(words) if words else " ".join(verb[1:])
    held[f"{verb[0]} {attacked}, {transport}"] = done.returncode == 2 and not canary.exists() and not called.exists()
    assert done.returncode == 2, done.stderr
    assert not canary.exists() and not called.exists()
    assert "\x1b" not in done.stderr
