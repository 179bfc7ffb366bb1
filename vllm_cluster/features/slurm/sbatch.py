"""Options of sbatch: those that a call gives, and those of a script that served by itself."""

from __future__ import annotations

import itertools
import re
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.shell_line import Option
from vllm_cluster.kernel.text import count, number_of, printable, redact
from vllm_cluster.serving.translate.options import TranslatedWord
from vllm_cluster.serving.translate.reading import Reading
from vllm_cluster.serving.translate.words import cut

Container = Literal["none", "pyxis", "apptainer"]
_LINE = re.compile(r"#SBATCH[ \t]+((?![ \t]).*)")
# shlex copies a word for each of its characters.
MAX_LINE = 4096
_NAME = re.compile("[a-z][a-z-]*")
_GPUS = ("gpus", "gpus-per-node", "gpus-per-task", "gres")
_SIZE = re.compile(r"(?:([A-Za-z0-9_.-]+):)?(\d{1,2})")
# Minutes, minutes:seconds, hours:minutes:seconds, or these behind days.
_TIME = re.compile(r"\d{1,9}(?::\d{1,9}){0,2}|\d{1,9}-\d{1,9}(?::\d{1,9}){0,2}|(?i:unlimited|infinite)")
_GRES = re.compile(r"(?:gres/)?gpu[:=](.+)")
_SHORT = {
    "A": "account", "C": "constraint", "G": "gpus", "J": "job-name", "N": "nodes", "a": "array", "c": "cpus-per-task",
    "d": "dependency", "e": "error", "n": "ntasks", "o": "output", "p": "partition", "q": "qos", "t": "time",
    "w": "nodelist", "x": "exclude",
}  # fmt: skip
# Options that have no value.
_BARE = ("exclusive", "requeue", "no-requeue", "oversubscribe", "overcommit", "hold", "spread-job", "contiguous")
# Those that are options of this program, and those that the script has from others; with what to use.
_TAKEN = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node"), "use --nodes NUMBER"),
    **dict.fromkeys(_GPUS, "use --gpus NUMBER"),
    **dict.fromkeys(("signal", "requeue", "open-mode"), "leave it out"),
    "time": "use --time TIME",
}
_DROPPED = {
    **dict.fromkeys(("ntasks", "ntasks-per-node"), "the job has a task a node"),
    **dict.fromkeys(("signal", "open-mode"), "the script sets it"),
    **dict.fromkeys(("export", "export-file", "get-user-env"), "export them before sbatch"),
    **dict.fromkeys(("mem-per-cpu", "mem-per-gpu"), "--sbatch mem=SIZE is of each node"),
    **dict.fromkeys(_BARE, "it is not taken over"),
    **dict.fromkeys(("requeue", "no-requeue"), "the script sets it"),
    "exclusive": "the job takes whole nodes",
    "array": "one job serves",
}

# What is taken over from a script. Plugins of a site add options of their own, and one of them may run the job in an
# image of the script's writer: those are for a person to give.
_OVER = frozenset({
    *("account", "begin", "clusters", "comment", "constraint", "cpus-per-task", "deadline", "dependency", "error"),
    *("exclude", "job-name", "licenses", "mail-type", "mail-user", "mem", "nice", "nodelist", "output", "partition"),
    *("prefer", "qos", "reservation", "switches", "threads-per-core", "time", "time-min", "tmp", "wckey", "nodes"),
    *_GPUS,
})  # fmt: skip

# The files to which a job's output is added: none that a shell reads, or that a person has written.
_OUTPUTS = ("output", "error")
_LOG = re.compile(r"(?!(?:.*/)?\.)(?:.*%[0-9]{0,9}[jJA].*|.*\.(?:out|err|log)|/dev/null)")

# Why a job has no use for an option of vLLM or a variable: it has no inventory, and finds its ports and devices.
_FREE_PORT = "the job finds a free port"
_OF_JOB = {
    "--host": "the API is at the first node's address, behind the job's key",
    **dict.fromkeys(("--port", "--data-parallel-rpc-port"), _FREE_PORT),
    **dict.fromkeys(("--api-key", "VLLM_API_KEY"), "the job makes a key"),
    "--hf-token": "hf auth login on the login node",
    "--distributed-executor-backend": "vLLM spans the nodes by itself",
    **dict.fromkeys(("VLLM_HOST_IP", "VLLM_ENGINE_READY_TIMEOUT_S", "VLLM_LOGGING_COLOR"), "the job sets it"),
    **dict.fromkeys(("VLLM_NO_USAGE_STATS", "VLLM_DO_NOT_TRACK"), "the job sets it"),
    "VLLM_PORT": f"{_FREE_PORT}: unset it before sbatch",
    "CUDA_VISIBLE_DEVICES": "Slurm sets it",
}
# What a script does before vLLM: load its module or venv, or start a container.
_LOADS = re.compile(
    r"^[ \t]*((?:(?:module|ml|source|\.|conda|mamba|micromamba|spack)[ \t]|eval[ \t].{0,400}?(?:conda|mamba)).*)$",
    re.MULTILINE,
)
_CONTAINS = re.compile(r"(\b(?:apptainer|singularity)[ \t]+(?:exec|run)\b|--container-image[= \t]\S+)")


@dataclass(frozen=True)
class JobRequest:
    """What is asked of Slurm: nodes, GPUs of each and time, empty where not given, and options of sbatch by name."""

    nodes: int = 0
    gpus: str = ""
    time: str = ""
    replicas: int = 1
    container: Container = "none"
    image: str = ""
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """The same as options of `vcluster slurm`."""
        own = {Option("--nodes"): str(self.nodes or ""), Option("--gpus"): self.gpus, Option("--time"): self.time}
        own |= {Option("--image"): self.image} if self.image else {}
        own |= {Option("--container"): self.container} if self.image else {}
        own |= {Option("--replicas"): str(self.replicas)} if self.replicas > 1 else {}
        words = [word for option, value in own.items() if value for word in (option, value)]
        return (*words, *(word for one in self.others.items() for word in (Option("--sbatch"), "=".join(one))))

    @property
    def cpus(self) -> int:
        """The CPUs of each node; 0 where the job takes whole nodes."""
        given = self.others.get("cpus-per-task", "1" if "mem" in self.others else "")
        if given and not re.fullmatch("[1-9][0-9]{0,3}", given):
            text = f"--sbatch cpus-per-task must be a number, got {given!r}"
            raise UsageError(text, hint="--sbatch cpus-per-task=16")
        return number_of(given) or 0

    @property
    def time_limit(self) -> str:
        """The time in a form that sbatch reads."""
        if not _TIME.fullmatch(self.time):
            raise UsageError(f"--time {printable(self.time)!r} is not a time of Slurm", hint="use --time 4:00:00")
        return self.time

    @property
    def gpu_count(self) -> int:
        """The GPUs of a node."""
        found = _SIZE.fullmatch(self.gpus)
        if not found or not int(found[2]):
            raise UsageError(f"--gpus {self.gpus!r} is not a number of GPUs", hint="give 8, or h100:8")
        return int(found[2])

    @property
    def of_replica(self) -> tuple[int, int]:
        """The nodes of a replica, and its GPUs on each: whole nodes, or a part of one.

        Raises:
            UsageError: they cannot be shared out alike.
        """
        nodes, gpus = max(1, self.nodes // self.replicas), self.gpu_count // max(1, self.replicas // self.nodes)
        if nodes * gpus * self.replicas != self.nodes * self.gpu_count:
            text = f"{count(self.nodes, 'node')} × {count(self.gpu_count, 'GPU')} cannot be shared by {self.replicas}"
            raise UsageError(f"{text} replicas alike", hint=f"use --nodes {self.replicas}")
        return nodes, gpus


def given_options(words: Sequence[str]) -> dict[str, str]:
    """The options of a call: KEY=VALUE.

    Raises:
        UsageError: a word is none, or the script sets it.
    """
    options: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not value or not _NAME.fullmatch(name):
            raise UsageError(f"--sbatch must be KEY=VALUE, got {word!r}", hint="--sbatch partition=gpu")
        if name in _TAKEN:
            raise UsageError(f"--sbatch {name}: the script sets it", hint=_TAKEN[name])
        options[name] = value
    return options


def merged(text: str, place: str, own: JobRequest) -> tuple[JobRequest, tuple[TranslatedWord, ...]]:
    """The options of a call with those of a script, where the call gives none; and what became of each of these.

    Raises:
        UsageError: a line cannot be read, or has a number that is none; or the text is too long.
    """
    reading = Reading.of(text, place)
    found = dict(_options(text, reading))
    given = {"nodes": str(own.nodes or ""), "gpus": own.gpus, "time": own.time, **own.others}
    # Its one task a node has the CPUs and GPUs of those that there were.
    nodes = own.nodes or _number(found, "nodes", place) or 1
    tasks = _number(found, "ntasks-per-node", place) or 1
    taken, rows = dict[str, str](), list[TranslatedWord]()
    for name, value in found.items():
        key = "gpus" if name in _GPUS else name
        meant = _of_a_node(name, value, nodes, tasks)
        why = _DROPPED.get(name) or ("" if meant else "it is not for GPUs, or has no value")
        if not why and (name not in _OVER or (name in _OUTPUTS and not _LOG.fullmatch(value))):
            why = f"where you trust it: --sbatch {name}=VALUE"
        if given.get(key):
            why = "this call gives another"
        elif name in ("cpus-per-task", "mem") and "exclusive" in found:
            why = "the job takes whole nodes"
        here = f"--{key} {meant}" if key in ("nodes", "gpus", "time") else f"--sbatch {key}={meant}"
        taken |= {} if why else {key: meant}
        was = printable(f"--{name}={value}" if value else f"--{name}")
        rows.append(TranslatedWord("dropped" if why else "taken", was, "" if why else printable(here), why))
    rows += _before_vllm(text, own, reading)
    taken.pop("nodes", "")
    gpus, time = (taken.pop(key, given[key]) for key in ("gpus", "time"))
    return replace(own, nodes=nodes, gpus=gpus, time=time, others={**taken, **own.others}), tuple(rows)


def of_job(word: TranslatedWord) -> TranslatedWord:
    """What became of a word of vLLM's, with the reason that a job has."""
    name = re.split("[ =]", word.given, maxsplit=1)[0]
    if word.kind == "variable":
        return replace(word, why=_OF_JOB.get(name, "export it before sbatch"))
    if word.kind == "dropped" and not name.startswith("-"):
        return replace(word, why="--container and --image run it")
    return replace(word, why=_OF_JOB.get(name, word.why)) if word.kind == "dropped" else word


def _before_vllm(text: str, own: JobRequest, reading: Reading) -> Iterator[TranslatedWord]:
    """What a script does before vLLM, none of which is taken over."""
    for found in _counted(_LOADS, text, reading):
        why = "do it before sbatch, or where the job's script marks it"
        yield TranslatedWord("dropped", cut(redact(printable(found[1].strip()))), "", why)
    for found in _counted(_CONTAINS, text, reading):
        pyxis = found[1].startswith("-")
        why = f"--container {'pyxis --image IMAGE' if pyxis else 'apptainer --image FILE'} does this"
        why = why if own.container == "none" else "this call gives --container"
        yield TranslatedWord("dropped", cut(redact(printable(found[1]))), "", why)


def _counted(what: re.Pattern[str], text: str, reading: Reading) -> Iterator[re.Match[str]]:
    for found in what.finditer(text):
        reading.spend("rows", 1, 1 + text.count("\n", 0, found.start()))
        yield found


def _options(text: str, reading: Reading) -> Iterator[tuple[str, str]]:
    """The options of the lines that sbatch reads, those above the first command, each with its value."""
    lines = itertools.takewhile(lambda line: not line.strip() or line.startswith("#"), text.splitlines())
    for number, line in enumerate(map(_LINE.fullmatch, lines), 1):
        if not line:
            continue
        place = f"{reading.place}:{number}"
        if len(line[1]) > MAX_LINE:
            raise UsageError(f"{place}: longer than {MAX_LINE} characters", hint="leave the line out")
        try:
            words = deque(shlex.split(line[1], comments=True))
        except ValueError:
            raise UsageError(f"{place}: a quote does not end", hint="end the quote in that line") from None
        while words:
            reading.spend("rows", 1, number)
            word = words.popleft()
            name, equals, value = word.removeprefix("--").partition("=")
            if not word.startswith("--"):
                name, equals, value = _SHORT.get(word[1:2], ""), word[2:], word[2:].removeprefix("=")
            if not _NAME.fullmatch(name) or not word.startswith("-"):
                raise UsageError(
                    f"{place}: sbatch has no option {printable(word)!r}", hint="leave the word out, or quote it"
                )
            if not equals and name not in _BARE and words and not words[0].startswith("-"):
                value = words.popleft()
            yield name, value


def _number(found: Mapping[str, str], name: str, place: str) -> int:
    value = found.get(name, "0")
    if not re.fullmatch("[0-9]{1,4}", value):
        raise UsageError(f"{place}: #SBATCH --{name} {printable(value)!r} is not a number", hint=_TAKEN[name])
    return int(value)


def _of_a_node(name: str, value: str, nodes: int, tasks: int) -> str:
    """What an option means for one task on each node; nothing where it is not for that."""
    if name == "gres":
        found = _GRES.fullmatch(value)
        value = found[1] if found else ""
    factor = {"gpus-per-task": tasks, "cpus-per-task": tasks}.get(name, 1)
    kind, _, number = value.rpartition(":")
    if name in (*_GPUS, "cpus-per-task") and re.fullmatch("[0-9]{1,6}", number):
        number = str(int(number) * factor // (nodes if name == "gpus" else 1))
        return f"{kind}:{number}" if kind else number
    return value
