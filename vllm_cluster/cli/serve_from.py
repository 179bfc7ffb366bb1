"""`vcluster serve --from`: what a command line of vLLM asks for, shown before anything is done."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vllm_cluster.cli.question import standard_input, text_of
from vllm_cluster.cli.render.translation import show_translation, translation_event
from vllm_cluster.cli.session import Session
from vllm_cluster.cli.words import shown
from vllm_cluster.core.placement import command
from vllm_cluster.errors import UsageError
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.shell_line import command_line
from vllm_cluster.translate.options import Translation
from vllm_cluster.translate.text import translate
from vllm_cluster.wire.order import Deployment


def taken_from(
    session: Session, source: str | None, own: Deployment, inventory: Inventory | None, *, degrees: bool
) -> Deployment:
    """What `--from` asks for, with what this call gives by itself; `degrees` is whether that has a layout.

    Raises:
        UsageError: it cannot be read, or cannot be served here; with the line.
    """
    if source is None:
        raise UsageError("--dry-run shows what becomes of --from", hint="vcluster plan")
    found = translate(*_text(source))
    asked = merged(found, own, degrees=degrees)
    found = found.beside(inventory.environment if inventory else {}, degrees=degrees)
    line = command(asked, {})
    if session.as_json:
        session.emit(translation_event(found, line))
    else:
        session.finish()
        show_translation(found, line, stdout=inventory is None)
    return asked


def merged(found: Translation, own: Deployment, *, degrees: bool) -> Deployment:
    """What a command line asks for; what this call gives by itself counts more."""
    model = own.model or found.model
    return replace(
        own if degrees else replace(own, tp=found.tp, pp=found.pp, dp=found.dp),
        name=own.name or found.name or model,
        model=model,
        flags=(*found.flags, *own.flags),
        expert_parallel=own.expert_parallel or found.expert_parallel,
    )


def _text(source: str) -> tuple[str, str]:
    """The text of a command line, and how errors name it.

    Raises:
        UsageError: it is the name of a file that cannot be read.
    """
    if source == "-":
        return standard_input(), "standard input"
    if _is_file(source):
        return text_of(Path(source)), source
    if not any(blank in source for blank in " \t\n"):
        line = command_line("vcluster", "serve", "--from", "vllm serve MODEL --max-model-len 8192")
        raise UsageError(f"{shown(source)}: no such file", hint=line)
    return source, "--from"


def _is_file(source: str) -> bool:
    try:
        path = Path(source)
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False
