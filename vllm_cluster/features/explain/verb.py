"""`vcluster explain`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import command_line
from vllm_cluster.kernel.terminal.completion import complete_failures
from vllm_cluster.kernel.terminal.options import InventoryPath, Json
from vllm_cluster.kernel.terminal.output import out, with_ends
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS

# What can be meant as a file alone; any other word may name a failure, a finding or a model.
_PATH = re.compile(r"^(-$|[/~]|\.{1,2}/)|\.(log|out|err|txt)(\.\d+)?(\.gz)?$")

EXIT_UNREACHABLE = 4
# By result; 0 for a cause, and for logs without a failure that they still have.
EXIT_CODES = {"unknown": 1, "symptom": 1, "exception": 5, "unfinished": 75}

Files = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="FILE|NAME",
        help="Logs, also gzipped, or folders of them; - is standard input. Or the name of a failure or of a finding: "
        "all that is known of it. Or a model that is served. Default: the logs of the cluster.",
        autocompletion=complete_failures,
    ),
]
Bundle = Annotated[
    Path | None,
    typer.Option("--bundle", metavar="FILE", help="Pack logs, facts, plan and versions into FILE (tar.gz) instead."),
]


def explain(
    files: Files = None,
    inventory: InventoryPath = None,
    bundle: Bundle = None,
    as_json: Json = False,
) -> None:
    """Name the first cause of a failure from logs."""
    if files and bundle:
        raise UsageError(
            "a bundle is of the cluster: FILE and --bundle exclude each other",
            hint="vcluster explain --bundle FILE\nvcluster explain FILE",
        )
    with Session(inventory, as_json=as_json) as session:
        if bundle:
            _pack(session, bundle)
        elif files and len(files) == 1 and _may_be_name(session, files[0]):
            _named(session, str(files[0]))
        else:
            _explain(session, files or ())


def _may_be_name(session: Session, file: Path) -> bool:
    """Whether a word names no logs: a model that was pulled from here has a folder of its name."""
    if _PATH.search(str(file)):
        return False
    if not file.is_dir():
        return not file.exists()
    from vllm_cluster.serving.explain.files import holds_logs

    return session.has_inventory and not holds_logs(file)


def _named(session: Session, name: str) -> None:
    """Show the failure of that name, or a finding and the failures that it shows beforehand; else look at a model."""
    from vllm_cluster.features.explain.render_failure import failures_document, show_failures
    from vllm_cluster.kernel.checks.codes import CODES
    from vllm_cluster.kernel.explain.catalogue import CHECKED, FAILURES
    from vllm_cluster.kernel.inventory.words import nearest

    found = [FAILURES[name]] if name in FAILURES else [FAILURES[slug] for slug in CHECKED.get(name, ())]
    if not (found or name in CODES):
        near = nearest(name, [*FAILURES, *CODES])
        if near or not session.has_inventory:
            also = f"; did you mean {near}?" if near else ""
            raise UsageError(
                f"{name} is neither a file nor the name of a failure or of a finding{also}",
                hint=command_line("vcluster", "explain", near or "FILE"),
            )
        _explain(session, (), name)
        return
    session.show(
        lambda: failures_document(name, found, session.paste),
        lambda: show_failures(name, found, session.paste, color=SETTINGS.color),
    )


def _explain(session: Session, files: Sequence[Path], model: str | None = None) -> None:
    from vllm_cluster.kernel.events import Event
    from vllm_cluster.serving.explain import explain as explain_action
    from vllm_cluster.serving.explain.render import explain_document, show_explained

    if files:
        # Standard input ends once.
        verdict = explain_action.of_files(list(dict.fromkeys(files)), session.progress)
        found = explain_action.Explanation(verdict, {})
    else:
        found = explain_action.of_cluster(session.load(), session.progress, model)
    for host, error in found.failures.items():
        session.progress(Event("failed", error.message, host))
    session.show(
        lambda: explain_document(found.verdict, found.failures, session.paste, found.request, found.restarts),
        lambda: show_explained(
            found.verdict, session.paste, color=SETTINGS.color, request=found.request, restarts=found.restarts
        ),
    )
    code = EXIT_CODES.get(found.verdict.result, 0)
    seen = found.verdict.symptom.failure.slug if found.verdict.symptom else found.verdict.result
    if found.failures and seen in ("nothing", "unfinished", "cluster-not-up"):
        code = EXIT_UNREACHABLE
    if code:
        raise SystemExit(code)


def _pack(session: Session, path: Path) -> None:
    loaded = session.load()
    from vllm_cluster.features.explain.bundle import bundle
    from vllm_cluster.kernel.errors import combine
    from vllm_cluster.kernel.terminal.printable import plain
    from vllm_cluster.kernel.text import count

    packed, failures = bundle(loaded, session.progress, path)
    missing = {host: error.message for host, error in failures.items()}
    lines = [f"  {size:>9}  {name}" for name, size in packed.items()]
    lines += [f"Nothing of {host} is in it" for host in failures]
    files = count(len(packed), "file")
    lines.append(f"Wrote {path} ({files}); known secrets are redacted, review it before you share it")
    session.show(
        lambda: {"v": 1, "file": str(path), "packed": packed, "unreachable": missing},
        lambda: out(*with_ends(map(plain, lines)), end=""),
    )
    if failures:
        raise combine(failures).with_hosts(loaded.hosts)
