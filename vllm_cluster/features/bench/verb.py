"""`vcluster bench`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.laptop import expanded, naming
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.completion import complete_served
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.output import out, with_ends
from vllm_cluster.kernel.terminal.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vllm_cluster.features.bench.folder import OwnFolder

REPEAT = 3
# The longest run.
RUN_SECONDS = 3600.0
RESULTS, REPORT = "results.json", "report.html"

Named = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME|A B",
        help="The model, where several are served. With --compare: two folders of earlier runs.",
        autocompletion=complete_served,
    ),
]
PresetName = Annotated[
    str,
    typer.Option(
        "--preset",
        metavar="NAME",
        help="guides (128 in and out), vllm (1024 in, 128 out), one, or cpu (16 in and out, within 3 minutes). "
        "Default: guides; on a cluster without GPUs cpu.",
        show_default=False,
    ),
]
Levels = Annotated[
    str | None,
    typer.Option("--concurrency", metavar="N,N", help="Requests open at once. Default: those of the preset."),
]
TokensIn = Annotated[int | None, typer.Option("--input-len", metavar="TOKENS", min=1, help="Tokens of each prompt.")]
TokensOut = Annotated[int | None, typer.Option("--output-len", metavar="TOKENS", min=1, help="Tokens of each answer.")]
Repeat = Annotated[
    int | None, typer.Option("--repeat", metavar="N", min=1, max=100, help="Runs of each load. Default: 3.")
]
Folder = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FOLDER", help="Where results go. Default: a name with the time."),
]
Compare = Annotated[bool, typer.Option("--compare", help="Compare two folders, and measure nothing.")]


def bench(
    named: Named = None,
    preset: PresetName = "",
    concurrency: Levels = None,
    tokens_in: TokensIn = None,
    tokens_out: TokensOut = None,
    repeat: Repeat = None,
    folder: Folder = None,
    compare: Compare = False,
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Measure the served model with vLLM's own benchmark."""
    named = named or []
    if compare and len(named) != 2:
        raise UsageError("--compare needs two folders", hint="vcluster bench --compare BEFORE AFTER")
    if len(named) > 1 and not compare:
        text = "one model is measured at a time; two folders are compared with --compare"
        raise UsageError(text, hint=command_line("vcluster", "bench", named[0]))

    with Session(inventory, as_json=as_json) as session:
        if compare:
            _compare(session, [Path(one) for one in named])
            return
        levels = _levels(preset, concurrency)
        loaded = session.load()
        from vllm_cluster.features.bench import action
        from vllm_cluster.features.bench.folder import own_folder
        from vllm_cluster.features.bench.measured import PRESETS, points

        chosen = preset or ("cpu" if loaded.accelerator == "cpu" else "guides")
        loads = points(PRESETS[chosen], concurrency=levels, tokens_in=tokens_in, tokens_out=tokens_out)
        # Runs that were asked for are all made.
        budget = 0.0 if repeat else PRESETS[chosen].budget
        wanted = action.BenchRequest(chosen, loads, repeat or REPEAT, RUN_SECONDS, budget, next(iter(named), None))
        # Beside no results a report is a person's own.
        with own_folder(_path(folder, loaded.cluster), (RESULTS, REPORT)) as made:
            document = action.measure_model(loaded, wanted, session.progress, lambda found: _keep(made, found))
            _show(session, document, made)


def _levels(preset: str, levels: str | None) -> list[int]:
    """The numbers of requests that are given; none where those of the preset hold."""
    from vllm_cluster.features.bench.measured import PRESETS

    if preset and preset not in PRESETS:
        raise UsageError(f"--preset must be {', '.join(PRESETS)}, got {preset!r}", hint="vcluster bench --help")
    try:
        found = [int(level) for level in levels.split(",")] if levels else []
    except ValueError:
        found = [0]
    if not all(0 < level <= 10_000 for level in found):
        raise UsageError(
            f"--concurrency must be numbers from 1 to 10000, got {levels!r}", hint="--concurrency 1,16,256"
        )
    return found


def _path(folder: Path | None, cluster: str) -> Path:
    import time

    return expanded(folder) if folder else Path(f"bench-{cluster}-{time.strftime('%Y%m%d-%H%M%S')}")


def _keep(folder: OwnFolder, document: Mapping[str, Any]) -> None:
    import json

    folder.write(RESULTS, json.dumps(document, indent=1) + "\n")


def _show(session: Session, document: Mapping[str, Any], folder: OwnFolder) -> None:
    from vllm_cluster.features.bench.render import bench_lines, report
    from vllm_cluster.kernel.terminal.printable import plain

    lines = [*bench_lines(document)]
    try:
        folder.write(REPORT, report(document))
        lines.append(plain(f"Wrote {RESULTS} and {REPORT} to {folder.path}; times are in ms"))
    finally:  # also without a page: an hour was measured
        session.show(lambda: document, lambda: out(*with_ends(lines), end=""))


def _compare(session: Session, folders: list[Path]) -> None:
    from dataclasses import asdict

    from vllm_cluster.features.bench.action import read_result
    from vllm_cluster.features.bench.measured import compare
    from vllm_cluster.features.bench.render import compared_lines
    from vllm_cluster.wire.reading import MAX_BYTES

    documents = []
    for one in folders:
        path = expanded(one)
        path = path / RESULTS if path.is_dir() else path
        if not path.is_file():
            text = f"{one} has no {RESULTS}" if path.parent.is_dir() and path.name == RESULTS else f"no folder {one}"
            hint = "\n".join(("ls -d */", command_line("vcluster", "bench", Option("--output"), str(one))))
            raise UsageError(f"--compare: {text}", hint=hint)
        with naming(path), path.open("rb") as file:
            documents.append(read_result(file.read(MAX_BYTES + 1), str(path)))
    rows = compare(documents[0]["points"], documents[1]["points"])
    if not rows:
        raise UsageError(
            f"{folders[0]} and {folders[1]} have no load in common", hint="vcluster bench --compare BEFORE AFTER"
        )
    lines = [*compared_lines(rows)]
    if any(row.p_value is None for row in rows):
        lines.append("A load with a single run shows no noise: measure both with --repeat 3 or more")
    session.show(
        lambda: {"v": 1, "before": str(folders[0]), "after": str(folders[1]), "rows": list(map(asdict, rows))},
        lambda: out(*with_ends(lines), end=""),
    )
