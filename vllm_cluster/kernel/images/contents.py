"""What is in an image, and what a container of it sees: looked for there, not concluded from a version."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.wire.programs import WORD, ImageReport
from vllm_cluster.wire.reading import convert

# The first Ray that authenticates nodes by token was 2.52; below 2.55 it has known holes (CVE-2026-41486).
MIN_RAY = (2, 55)
# Of the node program.
MIN_PYTHON = (3, 10)
# Options of vLLM that every request to serve has.
OPTIONS = ("middleware", "distributed-executor-backend", "pipeline-parallel-size", "tensor-parallel-size")
# Those of one that spans hosts without Ray.
SPANNING = ("nnodes", "node-rank", "master-addr", "headless")
_WORD = re.compile(WORD)
MAX_REASON = 300


@dataclass(frozen=True)
class ImageContents:
    """What an image holds: Python's version, the processor, glibc's version, and distributions by name.

    `lacking` are packages that Ray's dashboard needs, `unknown` options set by vcluster that its vLLM does not have,
    `cuda` is what torch was built for.
    """

    python: str
    machine: str
    glibc: str
    have: tuple[tuple[str, str], ...]
    lacking: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    cuda: str = ""

    def version(self, name: str) -> str | None:
        """The version of a distribution, None where the image has it not."""
        return next((version for known, version in self.have if known.lower().replace("_", "-") == name), None)

    @property
    def ray_is_new(self) -> bool:
        """Whether the image brings a Ray that is new enough to be closed by a token."""
        ray = self.version("ray")
        return ray is not None and _release(ray) >= MIN_RAY

    @property
    def is_complete(self) -> bool:
        """Whether nodes can use it as it is: its Ray has the dashboard packages that they need."""
        return self.ray_is_new and not self.lacking

    @property
    def brings(self) -> str:
        """What it has by itself of what joins nodes, for people."""
        return f"Ray {self.version('ray')}"

    @property
    def problem(self) -> str:
        """Why nodes cannot use it as it is; only where they cannot."""
        version = self.version("ray")
        if version and self.ray_is_new:
            return f"Ray {version} without {', '.join(self.lacking[:3])}, which its dashboard needs"
        return f"Ray {version}, too old for token authentication" if version else "no Ray"

    def to_add(self, wanted: Sequence[str]) -> str:
        """What to add of what is wanted (name==version): its own version where only something beside it is missing."""
        return f"ray=={self.version('ray')}" if self.ray_is_new else wanted[0]

    @property
    def refusal(self) -> str:
        """Why no node can be made from it, empty where one can."""
        if _release(self.python) < MIN_PYTHON:
            return f"has Python {self.python}; the node program needs {'.'.join(map(str, MIN_PYTHON))}"
        if self.version("vllm") is None:
            return "has no vLLM in it"
        if self.unknown:
            options = ", ".join(f"--{name}" for name in self.unknown)
            return f"has vLLM {self.version('vllm')}, which does not know {options}"
        return ""


@dataclass(frozen=True)
class Reach:
    """What a container sees: its GPUs (None without the driver's library), that library's CUDA, and the model cache."""

    gpus: int | None = None
    problem: str = ""
    cuda: str = ""
    unwritable: str = ""


def read_contents(messages: Sequence[Mapping[str, object]]) -> tuple[ImageContents, Reach]:
    """What the program printed; messages that an image's own start-up adds before it are passed over.

    Raises:
        RefusedDocument: what it printed has another shape.
        ValueError: nothing of the program is in it.
    """
    for document in reversed(messages):
        if "python" in document and "have" in document:
            return _inside(found := convert(ImageReport, document, "the image")), _reach(found)
    raise ValueError("the program printed nothing")


def _inside(found: ImageReport) -> ImageContents:
    # A distribution may have any name: what pip could not be given is not compared.
    pairs = ((name, version) for name, version in found.have.items() if version)
    sound = tuple(sorted(pair for pair in pairs if all(map(_WORD.fullmatch, pair))))
    return ImageContents(found.python, found.machine, found.glibc, sound, found.lacking, found.unknown, found.cuda)


def _reach(found: ImageReport) -> Reach:
    return Reach(found.gpus, found.problem[:MAX_REASON], found.driver, found.unwritable[:MAX_REASON])


def judge_contents(
    image: str, host: str, inside: ImageContents, reach: Reach, *, gpus: int, cache: str, offline: bool = False
) -> Iterator[Finding]:
    """What keeps a node from working in such a container; `gpus` is what it was given, 0 on hosts without.

    Where it is to be `offline`, a cache that others fill need not be writable.
    """
    if inside.refusal:
        yield Finding("image-unfit", host, f"{image} {inside.refusal}", "name another image")
    if gpus and reach.gpus != gpus:
        seen = "no GPU" if not reach.gpus else f"{reach.gpus} of {gpus} GPUs"
        text = f"a container of {image} sees {seen}{': ' * bool(reach.problem)}{reach.problem}"
        run = command_line(
            "docker", "run", Option("--rm"), Option("--gpus"), "all", Option("--entrypoint"), "nvidia-smi", image
        )
        fix = f"on {host}: nvidia-smi, then {run}"
        yield Finding("container-gpus-missing", host, text, fix)
    elif gpus and reach.cuda and _release(inside.cuda)[:1] > _release(reach.cuda)[:1]:
        text = f"the driver in the container knows CUDA {reach.cuda}, torch was built for {inside.cuda}"
        fix = f"on {host}: upgrade the driver, or name an image for CUDA {reach.cuda}"
        yield Finding("container-cuda-old", host, text, fix)
    if reach.unwritable:
        text = f"a container cannot write to {cache}: {reach.unwritable}"
        look = command_line("stat", Option("-c"), "%u:%g", cache, on=host)
        fix = f"{look}\nand set user: in the inventory to the owner that this shows"
        yield Finding("cache-not-writable", host, text, fix, severity="error" if not offline else "warning")


def _release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d{1,9}", text)[:2])
