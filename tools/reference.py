"""The pages of docs/reference, each made from the code that it describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, get_args

import typer

from tests.support.json_schemas import DOCUMENTS
from tests.support.paths import ROOT
from tools.json_schemas import schemas
from vllm_cluster.cli.app import app
from vllm_cluster.cli.verbs import VERBS
from vllm_cluster.features.images.verb import IMAGE
from vllm_cluster.features.pull.feature import MODELS
from vllm_cluster.features.sandbox.verb import SANDBOX
from vllm_cluster.kernel.checks.codes import CODES
from vllm_cluster.kernel.errors import VclusterError
from vllm_cluster.kernel.events import Kind
from vllm_cluster.kernel.explain.catalogue import CHECKED, FAILURES
from vllm_cluster.kernel.terminal.help import COMMON, option_row, shown_name, usage_lines
from vllm_cluster.kernel.terminal.verb import Verb

EXIT_CODES = {
    0: "done",
    1: "failed; or a question was answered with no, and nothing was changed; `fit`: the model cannot be read",
    2: "wrong usage or inventory; a question without a terminal and without `--yes`; `fit`: no such model",
    3: "refused before anything was changed; `fit`: the model does not fit",
    4: "a host, or the hub, is unreachable; a connection that breaks later is 1",
    5: "`explain`: no known failure matches; the exception of the process that failed first is shown",
    10: "`plan --exit-code`: there is something to do",
    75: "another run changes the same hosts, model or output: run the command again when it has ended; "
    "`serve`: another request replaced this one; `explain`: the last start is neither ready nor ended",
    124: "`status --wait`: timed out",
    130: "interrupted; completed steps are kept",
}
NAME = "vcluster"
# Of verbs, in a cell of a table.
MAX_NAMED = 12
OF_COMMANDS = (
    "other",
    "that of the command that was run; 255: ssh could not connect",
    "`exec`",
)
EVENTS = {
    "phase": "a phase of the verb has begun",
    "plan": "what `up` is about to do, as in `plan --json`",
    "start": "an operation on a host has begun",
    "done": "an operation on a host has ended",
    "failed": "a host failed; the verb may continue on other hosts",
    "progress": "how far a wait or a model start is",
    "note": "a fact that explains what follows",
    "warning": "a problem that does not end the verb",
    "result": "the outcome of a verb that succeeded",
    "log": "`logs`: a line of a log, where `time` is when it was printed",
    "error": "the verb failed: what happened, what to do, the exit code, and a row for each host concerned",
    "endpoint": "the model is ready: where it answers, and the command that asks it",
}
GROUPS = {"sandbox": SANDBOX, "image": IMAGE, "models": MODELS}
# Every event has these.
OF_ALL_EVENTS = ("v", "time", "event", "message")
# A bar within a cell, also within code.
_BAR = r"\|"


def commands() -> str:
    """Every verb with its options, exit codes and examples, as `--help` shows them."""
    lines = [
        "# Commands",
        "",
        f"What `{NAME} VERB --help` shows, on one page. Options of every verb are listed once, at the end.",
    ]
    group = typer.main.get_command(app)
    common: dict[str, tuple[str, str]] = {}
    for path, verb, params in every_verb(group):
        options = [one for one in params if one.param_type_name == "option" and not one.hidden]
        common |= {one.name: option_row(one) for one in options if one.name in COMMON}
        lines += _verb(path, verb, params, [option_row(one) for one in options if one.name not in COMMON])
    program = _params(group)
    own = [option_row(one) for one in program if one.name not in COMMON and not one.hidden]
    lines += ["", f"## {NAME}", "", *_options(own)]
    lines += ["", "## Options of every verb", "", *_options(common[name] for name in COMMON if name in common)]
    durations = "- DURATION is 90s, 10m, 1h30m or 2d; a number alone is seconds."
    return _page([*lines, "", *_exceptions(group), durations])


def _exceptions(group: Any) -> Iterator[str]:
    """The verbs that lack an option of the others."""
    verbs = [(path.removeprefix(f"{NAME} "), {one.name for one in params}) for path, _, params in every_verb(group)]
    for name, option in (("inventory", "--inventory"), ("as_json", "--json")):
        without = [f"`{path}`" for path, known in verbs if name not in known]
        yield f"- Without `{option}`: {', '.join(without)}."


def every_verb(group: Any) -> Iterator[tuple[str, Verb, list[Any]]]:
    """The path, the help and the parameters of each verb; those of a group are below it."""
    context = typer.Context(group, info_name=NAME)
    for name, verb in VERBS.items():
        command = group.get_command(context, name)
        below = verb.verbs or GROUPS.get(name, {})
        if not below:
            yield f"{NAME} {name}", verb, _params(command)
        for inner, own in below.items():
            one = command.get_command(typer.Context(command), inner)
            yield f"{NAME} {name} {inner}", own, _params(one)


def _params(command: Any) -> list[Any]:
    """As --help lists them: the names of the help option itself are a setting of the context."""
    return list(command.get_params(typer.Context(command, **command.context_settings)))


def _verb(path: str, verb: Verb, params: list[Any], options: list[tuple[str, str]]) -> Iterator[str]:
    arguments = [one for one in params if one.param_type_name == "argument"]
    (usage,) = usage_lines(path, arguments, words=verb.usage)
    yield from ("", f"## {path}", "", f"{verb.summary} {verb.about}".strip())
    yield from ("", "```text", usage.removeprefix("Usage: "), "```")
    rows = [*((shown_name(one), one.help or "") for one in arguments), *options]
    if rows:
        yield from ("", *_options(rows))
    if verb.exits:
        exits = ((str(code), what) for code, what in sorted(verb.exits.items()))
        yield from ("", *_table("exit code | meaning", exits))
    yield from ("", "```text", *verb.examples, "```")


def _options(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    return _table("option | meaning", ((f"`{name}`", what) for name, what in rows))


def exit_codes() -> str:
    """What each exit code means, and which verbs describe it further."""
    lines = [
        "# Exit codes",
        "",
        "A code means the same for every verb; [the verbs](commands.md) have the details. Codes are stable: a release "
        "that changes one names it in [CHANGELOG.md](../../CHANGELOG.md).",
        "",
    ]
    verbs = [(path.removeprefix(f"{NAME} "), verb.exits) for path, verb, _ in every_verb(typer.main.get_command(app))]
    rows = [
        (str(code), what, _of([name for name, exits in verbs if code and code in exits]))
        for code, what in EXIT_CODES.items()
    ]
    return _page([*lines, *_table("code | meaning | verbs", [*rows, OF_COMMANDS])])


def _of(names: Sequence[str]) -> str:
    """The verbs, where they are few enough to be read."""
    return ("most" if len(names) > MAX_NAMED else _names(names)) or "all"


def events() -> str:
    """The kinds of events and the keys of each."""
    lines = [
        "# Events",
        "",
        f"{_names(_with_events())} write one JSON object a line with `--json`. "
        "Each has `v` (1), `time` (seconds since the epoch), `event` and, but for `endpoint`, `message`, a "
        "sentence for people; `host` where it concerns one host. [The schema](json/events.schema.json) has the types.",
        "",
    ]
    forms: dict[str, list[Mapping[str, Any]]] = {kind: [] for kind in (*get_args(Kind), "endpoint")}
    for form in schemas()["events"]["anyOf"]:
        forms[form["properties"]["event"]["const"]].append(form)
    rows = ((f"`{kind}`", EVENTS[kind], "<br>".join(filter(None, map(_keys, forms[kind])))) for kind in forms)
    lines += [
        *_table("event | meaning | keys of its own: a line for each form, with the verbs that write it", rows),
        *("", "## Codes of errors", ""),
    ]
    lines += ["`code` of an event `error`, and of each host's row in it.", ""]
    codes = sorted((f"`{kind.code}`", str(kind.exit_code), (kind.__doc__ or "").partition("\n")[0])
                   for kind in error_classes() if "code" in vars(kind))  # fmt: skip
    return _page([*lines, *_table("code | exit code | meaning", codes)])


def json_index() -> str:
    """What each verb writes with --json, and by which schema."""
    lines = [
        "# What `--json` writes",
        "",
        "Each schema lists every key; no other key is written. `make generate` makes them from the code, and the tests "
        "hold what the verbs really write against them.",
        "",
    ]
    rows = [(f"`{command}`", _form(schema), _schema(schema)) for command, schema in DOCUMENTS.items()]
    rows.append((_names(_with_events()), "a line an event", _schema("events")))
    lines += [
        *_table("verb | standard output | schema", rows),
        "",
        "`serve` and `rollback` end with an event `endpoint`. An error is an event `error`, of every verb: what "
        "happened (`message`, and `code` for programs), what to do (`fix`, a line each) and the exit code, with a row "
        "for each host where several are concerned. [Events](../events.md) has the codes.",
    ]
    return _page(lines)


def _with_events() -> list[str]:
    """The commands that write events with --json."""
    verbs = every_verb(typer.main.get_command(app))
    known = [path.removeprefix(f"{NAME} ") for path, _, params in verbs if any(one.name == "as_json" for one in params)]
    return [*(name for name in known if name not in DOCUMENTS), "status --wait"]


def _names(commands: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in commands)


def _form(schema: str) -> str:
    return "a document each time, one a line" if schema == "watch" else "one document"


def _schema(name: str) -> str:
    return f"[{name}]({name}.schema.json)"


def error_classes() -> list[type[VclusterError]]:
    """Every kind of error, in the order of the tree, but for those that no caller sees: their names begin with _."""
    for path in sorted((ROOT / "vllm_cluster").rglob("*.py")):  # or the page would depend on what is loaded
        if '\n    code = "' in path.read_text(encoding="utf-8"):
            import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    found: list[type[VclusterError]] = [VclusterError]
    for kind in found:
        found += [one for one in kind.__subclasses__() if not one.__name__.startswith("_") and one not in found]
    return [kind for kind in found if kind.__module__.startswith("vllm_cluster.")]


def _keys(form: Mapping[str, Any]) -> str:
    names = ", ".join(f"`{key}`" for key in form["properties"] if key not in (*OF_ALL_EVENTS, "host"))
    return f"{form['description']}: {names}" if "description" in form and names else names


def checks() -> str:
    """The codes of findings, why each matters and which failures it prevents."""
    lines = [
        "# Checks",
        "",
        "The codes of the findings of [`vcluster check`](../check.md), which are `code` in its JSON. The failures are "
        "[those](failures.md) that a check finds before anything is loaded.",
        "",
    ]
    codes = ((f"`{code}`", why, ", ".join(map(_failure, CHECKED.get(code, ())))) for code, why in CODES.items())
    lines += [*_table("code | why it matters | failures", codes), "", "## What needs no check, or allows none", ""]
    prevented = ((_failure(one.slug), one.prevented) for one in FAILURES.values() if one.prevented)
    return _page([*lines, *_table("failure | why", prevented)])


def _failure(slug: str) -> str:
    return f"[{slug}](failures.md#{slug})"


def _table(head: str, rows: Iterable[Iterable[str]]) -> Iterator[str]:
    yield f"| {head} |"
    yield "|" + "---|" * len(head.split(" | "))
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', _BAR) for cell in row)} |"


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"
