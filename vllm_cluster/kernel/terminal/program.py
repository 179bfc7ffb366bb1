"""How verbs are found, parsed and described: each is imported when it is called, and takes the common options."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.terminal import help as text
from vllm_cluster.kernel.terminal import removed, words
from vllm_cluster.kernel.terminal.called import NAMES
from vllm_cluster.kernel.terminal.options import Color, Quiet, Verbose
from vllm_cluster.kernel.terminal.output import out, with_ends
from vllm_cluster.kernel.terminal.settings import SETTINGS, Known
from vllm_cluster.kernel.terminal.typed import guessed
from vllm_cluster.kernel.terminal.values import convert
from vllm_cluster.kernel.terminal.verb import Verb

T = TypeVar("T")

HELP = {"help_option_names": ["-h", "--help"]}


def build_program(
    verbs: Mapping[str, Verb], about: str, default: str = "", *, completion: bool = True, words_of_default: bool = False
) -> typer.Typer:
    """A program of these verbs; where none is given it runs the default one.

    With `words_of_default` a first word that names none of them is one of the default's.
    """
    table, otherwise, whose = verbs, default, words_of_default

    class Program(Verbs):
        verbs, default, words_of_default = table, otherwise, whose

    return typer.Typer(
        cls=Program,
        rich_markup_mode=None,  # plain help: rich doubles the time until it shows
        pretty_exceptions_enable=False,
        invoke_without_command=True,
        context_settings=HELP,
        help=about,
        add_completion=completion,
    )


def group(verbs: Mapping[str, Verb], about: str, default: str = "", *, words_of_default: bool = False) -> typer.Typer:
    """A verb that has verbs of its own; where none is given it runs the default one, else it prints them."""
    made = build_program(verbs, about, default, completion=False, words_of_default=words_of_default)

    @made.callback()
    def root(ctx: typer.Context) -> None:
        if ctx.invoked_subcommand is None:
            out(*with_ends(ctx.get_help().split("\n")), end="")

    return made


class Parsed(TyperCommand):
    """A verb with this program's errors and help."""

    verb: Verb

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words behind the verb; those behind `--` are for the parameter of this name, as they are."""
        SETTINGS.known = _known(_params(ctx), self.verb.bare)
        takes = next((one for one in _params(ctx) if text.shown_name(one).startswith("-- ")), None)
        end = args.index("--") if takes and "--" in args else len(args)
        # What is unknown may be for the other program.
        ctx.ignore_unknown_options = takes is not None
        own = words.with_values([word for word in args[:end] if word not in self.verb.habits], self.verb.bare)
        rest = _parse(super().parse_args, ctx, own)
        if takes:
            if not ctx.resilient_parsing:
                for_vllm = text.shown_name(takes) == text.VLLM_FLAGS
                words.ensure_dashes(_called(ctx), ctx.params, args, for_vllm=for_vllm)
            ctx.params[takes.name] = args[end + 1 :]
        return rest

    def get_help(self, ctx: Any) -> str:
        """The help of the verb, nothing of it cut."""
        return text.verb_help(ctx.command_path, self.verb, _params(ctx))

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The options, without their help: typer imports rich to show it, which takes longer than a TAB may."""
        return _offered(item.value for item in super().shell_complete(ctx, incomplete))


class Verbs(TyperGroup):
    """A group whose verbs are imported when they are called."""

    verbs: ClassVar[Mapping[str, Verb]] = {}
    default: ClassVar[str] = ""
    words_of_default: ClassVar[bool] = False

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs, in the order of the table."""
        return list(self.verbs)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The verb by its name; None where there is none."""
        verb = self.verbs.get(cmd_name)
        if verb is None:
            return None
        module, _, name = verb.function.partition(":")
        found = getattr(importlib.import_module(f"vllm_cluster.{module}"), name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        one = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=HELP)
        one.command(cmd_name, cls=Parsed)(_with_common(found, cmd_name))
        command = typer.main.get_command(one)
        command.verb = verb  # type: ignore[attr-defined]
        return command

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words before the verb; the common options among them go to the verb."""
        if self.words_of_default and args and not ctx.resilient_parsing and args[0] not in (*self.verbs, "help"):
            # A misspelt verb is not meant for the default one, which would do something else with it.
            if near := words.misspelt(args[0], self.verbs) if args[0].isalpha() else "":
                hint = guessed(*ctx.command_path.split(), near, *args[1:])
                raise UsageError(f"{ctx.command_path} has no verb {words.quote_word(args[0])}", hint=hint)
            alone = len(args) == 1 and args[0] in ctx.help_option_names
            return _parse(super().parse_args, ctx, args if alone else [self.default, *args])
        args = words.options_last(args)
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        # A verb may be what is being completed.
        if self.default and (args[0].startswith("-") if args else not (self.words_of_default or ctx.resilient_parsing)):
            args = ["--help"] if {*args} & {*ctx.help_option_names} else [self.default, *args]
        return _parse(super().parse_args, ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The verb that the first word names.

        Raises:
            UsageError: there is none of this name; the hint has those that were meant.
        """
        if ctx.resilient_parsing or args[0] in self.verbs:
            return super().resolve_command(ctx, args)
        path = ctx.command_path
        removed.refuse_removed_verb(path, args)
        near = words.meant(args[0], self.verbs, args[1:]) if path in NAMES else ""
        raise UsageError(f"{path} has no verb {words.quote_word(args[0])}", hint=near or f"{path} --help")

    def get_help(self, ctx: Any) -> str:
        """The verbs by group, with their whole summaries."""
        options = text.program_options(_params(ctx))
        return text.program_help(ctx.command_path, self.help or "", self.verbs, options)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """The verbs, none of them imported."""
        if not incomplete.startswith("-"):
            return _offered(name for name in self.verbs if name.startswith(incomplete))
        default = self.get_command(ctx, self.default)
        params = [*self.get_params(ctx), *(default.get_params(ctx) if default else ())]
        return _offered(name for one in params for name in one.opts if name.startswith(incomplete))


def _params(ctx: Any) -> list[text.Parameter]:
    """The parameters of the verb that is called: typer makes no others."""
    return list(ctx.command.get_params(ctx))


def _known(params: Iterable[text.Parameter], bare: Container[str]) -> Known:
    names = [(one, name) for one in params for name in one.opts if name.startswith("-")]
    return Known({name: one.opts for one, name in names}, {name for one, name in names if text.has_value(one)}, bare)


def _called(ctx: Any) -> words.Called:
    verb: Verb | None = getattr(ctx.command, "verb", None)
    return words.Called(ctx.command_path, _params(ctx), verb.bare if verb else ())


def _offered(names: Iterable[str]) -> list[Any]:
    """What TAB shows, each once, as typer reads it."""
    return [SimpleNamespace(value=name, help=None, type="plain") for name in dict.fromkeys(names)]


def _parse(parse: Callable[[Any, list[str]], list[str]], ctx: Any, args: list[str]) -> list[str]:
    """Parse by typer, with our own values and errors."""
    types = get_type_hints(ctx.command.callback)
    for param in ctx.command.get_params(ctx):
        param.process_value = functools.partial(_value, param, types.get(param.name, bool))
    try:
        return parse(ctx, list(args))
    except typer.TyperException as error:
        option = getattr(error, "option_name", "")
        if option and hasattr(error, "possibilities"):
            raise words.unknown_option(_called(ctx), args, option) from None
        removed.refuse_removed_arguments(ctx.command_path, args)
        message = error.message.rstrip(".")
        raise UsageError(message[:1].lower() + message[1:], hint=f"{ctx.command_path} --help") from None


def _value(param: Any, annotation: Any, ctx: Any, value: Any) -> Any:
    """The value of a parameter. Not by typer: it asks pydantic, which takes longer to import than all the rest."""
    hint = f"{ctx.command_path} --help"
    try:
        value = convert(annotation, value, least=param.min, most=param.max, metavar=param.metavar)
        if param.required and value in (None, []):
            raise UsageError(f"missing {text.shown_name(param)}", hint=hint)
        return param.callback(ctx, param, value) if param.callback else value
    except typer.BadParameter as error:
        raise UsageError(f"{text.shown_name(param)} {error.message}", hint=hint) from None


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
