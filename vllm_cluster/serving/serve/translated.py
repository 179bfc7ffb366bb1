"""`vcluster serve --from`: what a text asks for elsewhere, shown before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.placement import serve_command
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.words import quote_word
from vllm_cluster.kernel.text import printable
from vllm_cluster.serving.api.question import standard_input, text_of
from vllm_cluster.serving.consent import Confirm
from vllm_cluster.serving.serve.base import Fit, fit_by
from vllm_cluster.serving.translate.options import TranslatedWord, Translation
from vllm_cluster.serving.translate.reading import INSTEAD, MAX_BYTES
from vllm_cluster.serving.translate.render import show_translation, translation_event
from vllm_cluster.serving.translate.text import is_recipe, translate
from vllm_cluster.wire.order import Deployment


@dataclass(frozen=True)
class RequestSource:
    """Where the request is written: a command line, or its file; of a recipe also what this call chooses."""

    line: str | None = None
    variant: str = ""
    strategy: str = ""

    def __bool__(self) -> bool:
        return self.line is not None

    @cached_property
    def text(self) -> tuple[str, str]:
        """The text, and how errors name it.

        Raises:
            UsageError: it cannot be read.
        """
        return _text(self.line or "")

    @property
    def is_recipe(self) -> bool:
        """Whether it is a recipe, for which the hosts decide on the layout."""
        return self.line is not None and is_recipe(self.text[0])

    def fit(self, confirm: Confirm, cluster: str) -> Fit | None:
        """What is translated may get another layout, by consent."""
        return fit_by(confirm, cluster) if self else None

    def ensure_whole(self, model: str | None, *, dry_run: bool) -> None:
        """Refuse a call without a model, and options that mean nothing by themselves.

        Raises:
            UsageError: there is one.
        """
        if (self.variant or self.strategy) and not self.is_recipe:
            word = "--variant" if self.variant else "--strategy"
            raise UsageError(f"{word} is of a recipe of vLLM's book", hint="vcluster serve --from RECIPE")
        if dry_run and not self:
            raise UsageError("--dry-run shows what becomes of --from", hint="vcluster plan")
        if model is None and not self:
            raise UsageError("missing MODEL", hint="vcluster serve --help")


def taken_from(
    session: Session,
    source: RequestSource,
    own: Deployment,
    inventory: Inventory | None,
    *,
    degrees: bool,
    dry_run: bool,
    verb: Sequence[str] = ("serve",),
    rows: Sequence[TranslatedWord] = (),
    reasoned: Callable[[TranslatedWord], TranslatedWord] = lambda word: word,
) -> Deployment:
    """What a source asks for, with what this call gives by itself; `degrees` is whether that has a layout.

    `verb` is what serves it, with the words that it needs more, and `rows` are what became of other lines of the text.
    `reasoned` gives a word the reason that holds where no inventory is.

    Raises:
        UsageError: it cannot be read, or cannot be served here; with the line.
    """
    if source.is_recipe and inventory is not None:
        found = _of_recipe(session, source, own, inventory)
    else:
        found = translate(*source.text)
    asked = merge_deployments(found, own, degrees=degrees)
    found = found.beside(inventory.environment if inventory else {}, degrees=degrees)
    found = replace(found, rows=(*rows, *map(reasoned, found.rows)))
    line = session.paste(printable(serve_command(asked, {}, verb=verb)))
    if session.as_json:
        session.emit(translation_event(found, line))
    else:
        session.finish()
        show_translation(found, line, session.paste, stdout=dry_run)
    return asked


def _of_recipe(session: Session, source: RequestSource, own: Deployment, inventory: Inventory) -> Translation:
    """What a recipe asks for on the hosts of the inventory, which decide on its layout."""
    from vllm_cluster.serving.translate.hosts import recipe_hosts
    from vllm_cluster.serving.translate.recipe import translate_recipe
    from vllm_cluster.serving.translate.recipe_hosts import RecipeHosts

    pool, name = recipe_hosts(inventory, session.emit, own.hosts)
    hosts = RecipeHosts(pool.nodes, pool.memory_bytes, bool(pool.rdma), name)
    return translate_recipe(*source.text, hosts, variant=source.variant, strategy=source.strategy)


def merge_deployments(found: Translation, own: Deployment, *, degrees: bool) -> Deployment:
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
        return standard_input(MAX_BYTES, INSTEAD), "standard input"
    if _is_file(source):
        return text_of(Path(source), MAX_BYTES, INSTEAD), source
    if not any(blank in source for blank in " \t\n"):
        line = command_line("vcluster", "serve", Option("--from"), "vllm serve MODEL --max-model-len 8192")
        raise UsageError(f"{quote_word(source)}: no such file", hint=line)
    return source, "--from"


def _is_file(source: str) -> bool:
    try:
        path = Path(source)
        return path.exists() and not path.is_dir()
    except (OSError, ValueError):
        return False
