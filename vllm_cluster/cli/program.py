"""How verbs are found, parsed and described: each is imported when it is called, and takes the common options."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import typer
from typer._click.core import Command, Context
from typer._click.exceptions import MissingParameter, NoSuchOption
from typer._click.exceptions import UsageError as ParserError
from typer._click.shell_completion import CompletionItem
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from vllm_cluster.cli import help as text
from vllm_cluster.cli import removed, words
from vllm_cluster.cli.options import Color, Quiet, Verbose
from vllm_cluster.cli.session import SETTINGS
from vllm_cluster.cli.values import convert
from vllm_cluster.errors import UsageError
from vllm_cluster.text import plural

T = TypeVar("T")

HELP = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class Verb:
    """One verb: where its function is, and what its help prints. `function` is below this package: "up:up"."""

    group: str
    function: str
    summary: str
    about: str = ""
    examples: tuple[str, ...] = ()
    exits: Mapping[int, str] = field(default_factory=dict)
    # Words of the same command elsewhere that ask for what is done anyway.
    habits: tuple[str, ...] = ()
    # What a call needs, where that is more than its arguments.
    usage: tuple[str, ...] = ()


def program(verbs: Mapping[str, Verb], about: str, default: str = "", *, completion: bool = True) -> typer.Typer:
    """A program of these verbs; where none is given it runs the default one."""
    table, otherwise = verbs, default

    class Program(Verbs):
        verbs, default = table, otherwise

    return typer.Typer(
        cls=Program,
        rich_markup_mode=None,  # plain help: rich doubles the time until it shows
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        context_settings=HELP,
        help=about,
        add_completion=completion,
    )


def group(verbs: Mapping[str, Verb], about: str, default: str = "") -> typer.Typer:
    """A verb that has verbs of its own; where none is given it runs the default one, else it prints them."""
    made = program(verbs, about, default, completion=False)

    @made.callback()
    def root(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            typer.echo(ctx.get_help())

    return made


class Parsed(TyperCommand):
    """A verb with this program's errors and help."""

    verb: Verb

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the words behind the verb; all unknown options are reported at once."""
        if not ctx.resilient_parsing:
            self._ensure_dashes(ctx, args)
        end = args.index("--") if "--" in args else len(args)
        args = [word for word in args[:end] if word not in self.verb.habits] + args[end:]
        _plain_values(self.get_params(ctx))
        if not ctx.resilient_parsing:
            self._ensure_known(ctx, args)
        try:
            return super().parse_args(ctx, args)
        except ParserError as error:
            raise _usage_error(ctx, error) from None

    def _ensure_dashes(self, ctx: Context, args: list[str]) -> None:
        arguments = " ".join(text.shown_name(one) for one in self.params if isinstance(one, TyperArgument)).split()
        if arguments[-2:] == ["--", "COMMAND"]:
            valued = [name for one in self.get_params(ctx) if _takes_value(one) for name in one.opts]
            words.ensure_dashes(ctx.command_path, args, valued, arguments.index("--"))

    def _ensure_known(self, ctx: Context, args: list[str]) -> None:
        options = [one for one in self.get_params(ctx) if isinstance(one, TyperOption)]
        flags = [name for one in options if one.is_flag or one.count for name in (*one.opts, *one.secondary_opts)]
        valued = [name for one in options if _takes_value(one) for name in one.opts]
        given = words.sort(args, flags, valued)
        path = ctx.command_path
        takes_flags = any(one.metavar == text.VLLM_FLAGS for one in self.params)
        if takes_flags and given.arguments[1:]:
            models = ", ".join(map(words.shown, given.arguments))
            raise UsageError(
                f"a cluster serves one model at a time, got {models}", hint=words.of_one(self.name or "", given)
            )
        if not given.names:
            return
        removed.refuse(path, given.names)
        what = f"{path} has no {_listed('option', given.names)}"
        # vLLM has hundreds of flags: only what differs in a letter is taken for an option of this program.
        near = words.closest(given.names, [*flags, *valued], 0.88 if takes_flags else 0.7)
        if takes_flags and len(near) < len(set(given.names)):
            raise words.misplaced(self.name or "", given, what)
        meant = f" (did you mean {', '.join(dict.fromkeys(near.values()))}?)" if near else ""
        # A command that would be refused again does not help.
        whole = len(near) == len(set(given.names))
        call = [words.corrected([*path.split(), *args], near)] if whole else []
        raise UsageError(f"{what}{meant}", hint="\n".join([*call, f"{path} --help"]))

    def get_help(self, ctx: Context) -> str:
        """The help of the verb, nothing of it cut."""
        return text.verb_help(ctx.command_path, self.verb, self.get_params(ctx))

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """The options, without their help: typer imports rich to show it, which takes longer than a TAB may."""
        return [CompletionItem(item.value) for item in super().shell_complete(ctx, incomplete)]


class Verbs(TyperGroup):
    """A group whose verbs are imported when they are called."""

    verbs: ClassVar[Mapping[str, Verb]] = {}
    default: ClassVar[str] = ""

    def list_commands(self, ctx: Context) -> list[str]:
        """The verbs, in the order of the table."""
        return list(self.verbs)

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        """The verb by its name; None where there is none."""
        verb = self.verbs.get(cmd_name)
        if verb is None:
            return None
        module, _, name = verb.function.partition(":")
        found = getattr(importlib.import_module(f"vllm_cluster.cli.{module}"), name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        one = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP)
        one.command(cmd_name, cls=Parsed)(_with_common(found, cmd_name))
        command = typer.main.get_command(one)
        command.verb = verb  # type: ignore[attr-defined]
        return command

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Parse the words before the verb; the common options among them go to the verb."""
        args = words.options_last(args)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        # A verb may be what is being completed.
        if self.default and (args[0].startswith("-") if args else not ctx.resilient_parsing):
            args = ["--help"] if {*args} & {*ctx.help_option_names} else [self.default, *args]
        _plain_values(self.get_params(ctx))
        try:
            return super().parse_args(ctx, args)
        except ParserError as error:
            raise _usage_error(ctx, error) from None

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        """The verb that the first word names.

        Raises:
            UsageError: there is none of this name; the hint has those that were meant.
        """
        if ctx.resilient_parsing or args[0] in self.verbs:
            return super().resolve_command(ctx, args)
        path, option = ctx.command_path, words.inventory_option(args)
        removed.refuse(path, args[:1])
        near = words.meant(args[0], tuple(self.verbs), args[1:]) if path == "vcluster" else ()
        lines = [line + option * ("--" not in line and option not in line) for line in near] or [f"{path} --help"]
        raise UsageError(f"{path} has no verb {words.shown(args[0])}", hint="\n".join(lines))

    def get_help(self, ctx: Context) -> str:
        """The verbs by group, with their whole summaries."""
        return text.program_help(ctx.command_path, self.help or "", self.verbs, self.get_params(ctx))

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        """The verbs, none of them imported."""
        if incomplete.startswith("-"):
            default = self.get_command(ctx, self.default)
            params = [*self.get_params(ctx), *(default.get_params(ctx) if default else ())]
            options = [name for one in params for name in one.opts if name.startswith(incomplete)]
            return [CompletionItem(name) for name in dict.fromkeys(options)]
        return [CompletionItem(name) for name in self.verbs if name.startswith(incomplete)]


def _takes_value(param: object) -> bool:
    return isinstance(param, TyperOption) and not (param.is_flag or param.count)


def _plain_values(params: Iterable[object]) -> None:
    for param in params:
        if isinstance(param, TyperOption | TyperArgument):
            param.process_value = functools.partial(_value, param)  # type: ignore[method-assign]


def _value(param: TyperOption | TyperArgument, ctx: Context, value: Any) -> Any:
    """As typer's own, but for pydantic."""
    annotation = param.type_descriptor.annotation
    try:
        value = convert(annotation, value, least=param.min, most=param.max, metavar=param.metavar)
    except typer.BadParameter as error:
        error.ctx, error.param = ctx, param
        raise
    if param.required and param.value_is_missing(value):
        raise MissingParameter(ctx=ctx, param=param)
    return param.callback(ctx, param, value) if param.callback else value


def _with_common(function: Callable[..., T], verb: str) -> Callable[..., T]:
    """The function of a verb, which also takes the options that all verbs take."""

    def run(verbose: Verbose = 0, quiet: Quiet = False, color: Color = "auto", **given: Any) -> T:
        SETTINGS.verbosity = -1 if quiet else verbose
        SETTINGS.color = color
        SETTINGS.verb = verb
        return function(**given)

    own = inspect.signature(function, eval_str=True).parameters.values()
    common = [one for one in inspect.signature(run, eval_str=True).parameters.values() if one.kind != one.VAR_KEYWORD]
    parameters = [one.replace(kind=one.KEYWORD_ONLY) for one in (*own, *common)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    run.__doc__ = function.__doc__
    return run


def _usage_error(ctx: Context, error: ParserError) -> UsageError:
    """The parser's error in our form, with the command that shows what would do."""
    message = error.format_message().rstrip(".")
    param = getattr(error, "param", None)
    if isinstance(error, MissingParameter) and param is not None:
        message = f"missing {text.shown_name(param)}"
    elif isinstance(error, typer.BadParameter) and param is not None:
        message = f"{text.shown_name(param)} {error.message}"
    elif isinstance(error, NoSuchOption):
        message = f"{ctx.command_path} has no option {words.shown(error.option_name)}"
    else:
        message = message[:1].lower() + message[1:]
    return UsageError(message, hint=f"{ctx.command_path} --help")


def _listed(what: str, names: list[str]) -> str:
    return f"{plural(len(names), what)} {', '.join(map(words.shown, dict.fromkeys(names)))}"
