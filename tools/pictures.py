"""Pictures of a sandbox that serves, while it answers: `python -m tools.pictures FOLDER` writes those of docs."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests.support.browser import Browser
from tests.support.endpoint import MODEL
from tests.support.hosts import Sandbox
from tests.support.paths import ROOT, VCLUSTER
from tests.support.screen import Screen

DOCS = ROOT / "docs"
COLUMNS, ROWS = (40, 80, 200), 16
# More than is answered while pictures are made.
LINES = 20_000
SECONDS = 300.0


@contextmanager
def answering(sandbox: Sandbox) -> Iterator[None]:
    """Let the model answer in the meantime."""
    with tempfile.TemporaryDirectory() as folder:
        body = {"model": MODEL, "max_tokens": 64, "ignore_eos": True}
        rows = ({"custom_id": str(n), "body": {**body, "prompt": f"Story {n % 100}: once upon"}} for n in range(LINES))
        whole = {"method": "POST", "url": "/v1/completions"}
        source = Path(folder, "prompts.jsonl")
        source.write_text("".join(f"{json.dumps({**row, **whole})}\n" for row in rows))
        client = sandbox.start("-q", "batch", str(source), "-o", f"{folder}/answers.jsonl", "--concurrency", "24")
        try:
            yield
        finally:
            client.terminate()
            client.communicate(timeout=60)


def page(sandbox: Sandbox) -> None:
    """The dashboard in a browser, once it has figures of a minute."""
    process = sandbox.start("dashboard", "--json")
    try:
        opened = process.stdout.readline() if process.stdout else ""
        with Browser() as browser:
            browser.width(1000)
            browser.open(json.loads(opened)["url"])
            enough = "document.querySelector('#charts polyline')?.points.numberOfItems > 30"
            browser.until(lambda _: browser.run(enough), seconds=SECONDS)
            browser.picture(DOCS / "dashboard.png")
    finally:
        process.terminate()
        process.communicate(timeout=60)


def terminal(sandbox: Sandbox, columns: int) -> None:
    """`vcluster status --watch` on a terminal so wide."""
    where = {**os.environ, **sandbox.environment, "VCLUSTER_INVENTORY": str(sandbox.inventory)}
    with Screen([VCLUSTER, "status", "--watch"], env=where, size=(ROWS, columns)) as screen:
        screen.until_rows(lambda text: "TPOT" in text)
        console = Console(record=True, width=columns, file=io.StringIO(), force_terminal=True)
        for row in screen.styled():
            console.print(Text.assemble(*row), no_wrap=True, overflow="crop")
    picture = console.export_svg(title=f"vcluster status --watch, {columns} columns")
    # A picture fetches no fonts from elsewhere.
    picture = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    (DOCS / f"top-{columns}.svg").write_text(picture)


def main() -> None:
    """Make all of them."""
    sandbox = Sandbox(Path(sys.argv[1]))
    with answering(sandbox):
        page(sandbox)
        for columns in COLUMNS:
            terminal(sandbox, columns)


if __name__ == "__main__":
    main()
