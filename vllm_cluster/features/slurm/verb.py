"""`vcluster slurm`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vllm_cluster.features.slurm.feature import SLURM
from vllm_cluster.kernel.errors import Aborted, HostError, PreflightFailed, UsageError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.shell_line import command_line, export_line
from vllm_cluster.kernel.terminal.completion import complete_models
from vllm_cluster.kernel.terminal.options import Json, Yes
from vllm_cluster.kernel.terminal.output import data, out
from vllm_cluster.kernel.terminal.program import group
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.text import plain
from vllm_cluster.kernel.text import host_port
from vllm_cluster.serving.serve.verb import Dp, Ep, Flags, From, Name

if TYPE_CHECKING:
    from vllm_cluster.features.slurm.jobs import LoginNode
    from vllm_cluster.wire.order import Deployment

app = group(SLURM, "Serve a model in a Slurm job. Without a verb: job.", "job", words_of_default=True)

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A repository on the hub, or a folder that the nodes have; with --from, in place of its.",
        autocompletion=complete_models,
    ),
]
Nodes = Annotated[int, typer.Option("--nodes", "-N", metavar="NUMBER", min=1, max=256, help="Nodes of the job.")]
Gpus = Annotated[str, typer.Option("--gpus", metavar="NUMBER", help="GPUs of each node, also with a type: h100:4.")]
Time = Annotated[str, typer.Option("--time", "-t", metavar="TIME", help="Its time limit, as Slurm has it.")]
Replicas = Annotated[
    int,
    typer.Option("--replicas", metavar="NUMBER", min=1, max=256, help="Copies that share the job's GPUs and requests."),
]
ContainerOption = Annotated[
    Literal["none", "pyxis", "apptainer"],
    typer.Option("--container", metavar="none|pyxis|apptainer", help="What runs vLLM on the nodes; none: its PATH."),
]
Image = Annotated[str, typer.Option("--image", metavar="IMAGE", help="With --container: an image, or its file.")]
Sbatch = Annotated[
    list[str] | None,
    typer.Option(
        "--sbatch",
        metavar="KEY=VALUE",
        help="Any option of sbatch: partition=gpu, account=lab; repeatable. With cpus-per-task and mem the job takes a "
        "part of each node. Default: whole nodes.",
    ),
]
Tp = Annotated[
    int | None, typer.Option("--tp", metavar="NUMBER", min=1, help="Tensor parallel size. Default: GPUs of a node.")
]
Pp = Annotated[
    int | None, typer.Option("--pp", metavar="NUMBER", min=1, help="Pipeline parallel size. Default: number of nodes.")
]
GpuMemory = Annotated[
    str, typer.Option("--gpu-memory", metavar="SIZE", help="Memory of a GPU (80GB): checks first whether it fits.")
]
Submit = Annotated[bool, typer.Option("--submit", help="Submit the job in place of printing its script.")]
Login = Annotated[
    str,
    typer.Option(
        "--login",
        metavar="HOST",
        envvar="VCLUSTER_LOGIN",
        help="The login node, as in ssh_config. Default: this machine has Slurm's commands.",
    ),
]
Job = Annotated[str, typer.Argument(metavar="JOB", help="The number of the job.")]
Wait = Annotated[
    float, typer.Option("--wait", metavar="DURATION", min=0, max=1e9, help="Wait so long until it is ready.")
]
Rank = Annotated[int, typer.Option("--rank", metavar="NUMBER", min=0, max=255, help="The node of the job, from 0.")]
Attempt = Annotated[int, typer.Option("--start", metavar="NUMBER", min=0, help="Which start. Default: the last one.")]
Tail = Annotated[int, typer.Option("--tail", metavar="LINES", min=1, max=20_000, help="The last lines.")]
Tunnel = Annotated[bool, typer.Option("--tunnel", help="Forward the API to localhost until Ctrl-C.")]
LocalPort = Annotated[
    int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="With --tunnel: the local port.")
]

NOT_YET = 75
_NAME = re.compile("[a-z][a-z-]*")
# Options of sbatch that the script has from others, with what to use.
_OF_THE_JOB = {
    **dict.fromkeys(("nodes", "ntasks", "ntasks-per-node"), "use --nodes NUMBER"),
    **dict.fromkeys(("gpus", "gpus-per-node", "gpus-per-task", "gres"), "use --gpus NUMBER"),
    **dict.fromkeys(("signal", "requeue", "open-mode"), "leave it out"),
    "time": "use --time TIME",
}


def job(
    model: Model = None,
    flags: Flags = None,
    nodes: Nodes = 1,
    gpus: Gpus = "1",
    time: Time = "1:00:00",
    replicas: Replicas = 1,
    container: ContainerOption = "none",
    image: Image = "",
    sbatch: Sbatch = None,
    name: Name = None,
    tp: Tp = None,
    pp: Pp = None,
    dp: Dp = None,
    ep: Ep = False,
    line: From = None,
    gpu_memory: GpuMemory = "",
    submit: Submit = False,
    login: Login = "",
    as_json: Json = False,
) -> None:
    """Print the batch script of a job, or submit it."""
    with Session(None, as_json=as_json) as session:
        from vllm_cluster.features.slurm.script import JobRequest, script
        from vllm_cluster.wire.order import Deployment

        wanted = JobRequest(nodes, gpus, time, replicas, container, image, *_handed(sbatch or ()))
        given_here = Deployment(name or "", model or "", tuple(flags or ()), tp, pp, dp=dp or 1, expert_parallel=ep)
        size = ("--nodes", str(nodes), "--gpus", gpus)
        asked = _whole(session, given_here, line, size, degrees=bool(tp or pp or dp))
        if gpu_memory:
            from vllm_cluster.features.slurm.action import ensure_fits

            layout = ensure_fits(asked, wanted, gpu_memory, session.progress)
            session.progress(Event("note", f"{asked.model} fits as {layout.name}"))
        text = script(asked, wanted)
        if submit:
            _submit(session, text, login)
        else:
            session.show(lambda: {"v": 1, "script": text}, lambda: data(text))


def _submit(session: Session, text: str, login: str) -> None:
    from vllm_cluster.features.slurm.jobs import login_node

    with login_node(login) as node:
        number = node.submit(text, "" if login else str(Path.cwd()))
    follow = command_line("vcluster", "slurm", "status", number, "--wait", "1h", *_at(login))
    session.show(lambda: {"v": 1, "job": number}, lambda: out(plain(f"Submitted job {number}. Next: {follow}")))


def _handed(words: Sequence[str]) -> tuple[int, str, tuple[tuple[str, str], ...]]:
    """The CPUs and the memory of each node, and the other options of sbatch."""
    options: dict[str, str] = {}
    for word in words:
        name, _, value = word.partition("=")
        if not value or not _NAME.fullmatch(name):
            raise UsageError(f"--sbatch must be KEY=VALUE, got {word!r}", hint="--sbatch partition=gpu")
        if name in _OF_THE_JOB:
            raise UsageError(f"--sbatch {name}: the script sets it", hint=_OF_THE_JOB[name])
        options[name] = value
    if "mail-user" in options:
        options.setdefault("mail-type", "BEGIN,END,FAIL,REQUEUE")
    cpus, memory = options.pop("cpus-per-task", "0"), options.pop("mem", "")
    if not re.fullmatch("[0-9]{1,4}", cpus):
        raise UsageError(f"--sbatch cpus-per-task must be a number, got {cpus!r}", hint="--sbatch cpus-per-task=16")
    return int(cpus), memory, tuple(options.items())


@contextmanager
def _opened(login: str, as_json: bool, *, changes: bool = False) -> Iterator[tuple[Session, LoginNode]]:
    """What each verb on a job needs: a session, and the login node."""
    with Session(None, as_json=as_json, changes=changes) as session:
        from vllm_cluster.features.slurm.jobs import login_node

        with login_node(login) as node:
            yield session, node


def status(job: Job, wait: Wait = 0.0, login: Login = "", as_json: Json = False) -> None:
    """Show whether a job serves, and why it ended."""
    with _opened(login, as_json) as (session, node):
        from vllm_cluster.features.slurm.action import await_ready
        from vllm_cluster.features.slurm.render import state_document, state_lines

        found = await_ready(node, job, wait, session.progress) if wait else node.look(job)
        session.show(lambda: state_document(found), lambda: out("\n".join(state_lines(found, _at(login)))))
        if found.phase != "ready":
            raise SystemExit(1 if found.phase in ("ended", "failed") else NOT_YET)


def logs_of_job(
    job: Job, rank: Rank = 0, start: Attempt = 0, tail: Tail = 1000, login: Login = "", as_json: Json = False
) -> None:
    """Print what a rank of a job has written."""
    with _opened(login, as_json) as (session, node):
        number = start or node.look(job).attempts
        found = node.logs(job, number, str(rank), tail)
        if not found:
            fix = command_line("vcluster", "slurm", "status", job)
            raise PreflightFailed(f"job {job} has no log of rank {rank} at start {number}", hint=fix)
        [text] = (content.decode("utf-8", "replace") for content in found.values())
        session.show(lambda: {"v": 1, "start": number, "rank": rank, "lines": text.splitlines()}, lambda: data(text))


def endpoint(
    job: Job, tunnel: Tunnel = False, port: LocalPort = 8000, login: Login = "", as_json: Json = False
) -> None:
    """Print what OpenAI clients need: URL and key."""
    with _opened(login, as_json) as (session, node):
        found = node.look(job)
        if (at := found.ready) is None:
            ended = found.phase in ("ended", "failed")
            then = ("explain", job) if ended else ("status", job, "--wait", "1h")
            again = command_line("vcluster", "slurm", *then, *_at(login))
            raise PreflightFailed(f"job {job} is {found.phase}: {found.reason}", hint=again)
        key = node.key(job)
        if not tunnel:
            url = f"http://{host_port(at.address, at.port)}/v1"
            lines = f"{export_line('OPENAI_BASE_URL', url)}\n{export_line('OPENAI_API_KEY', key)}\n"
            session.show(lambda: {"v": 1, "base_url": url, "model": at.model, "key": key}, lambda: data(lines))
            return
        with closing(node.transport.forward(at.port, port, remote_host=at.address)) as forward:
            url = f"http://127.0.0.1:{forward.local_port}/v1"
            text = f"{url} forwards to {at.model} of job {job} until Ctrl-C"
            session.emit(Event("result", text, data={"url": url, "port": forward.local_port}))
            try:
                found = node.hold(job, at)
            except KeyboardInterrupt:
                session.finish()  # the way in which an open tunnel ends is not a failure
                return
        fix = command_line("vcluster", "slurm", "explain", job)
        raise HostError(node.transport.host, f"tunnel: job {job} is {found.phase}: {found.reason}", hint=fix)


def explain_job(job: Job, login: Login = "", as_json: Json = False) -> None:
    """Name the first cause of a failure from a job's logs."""
    with _opened(login, as_json) as (session, node):
        from vllm_cluster.features.slurm.action import first_cause
        from vllm_cluster.features.slurm.render import cause_document, cause_lines

        state = node.look(job)
        found = first_cause(node, state)
        session.show(lambda: cause_document(state, found), lambda: out("\n".join(cause_lines(state, found))))
        if found and found[0].cause is None:
            raise SystemExit(1)


def stop(job: Job, yes: Yes = False, login: Login = "", as_json: Json = False) -> None:
    """Cancel a job."""
    with _opened(login, as_json, changes=True) as (session, node):
        found = node.look(job)
        if not found.queued:
            session.emit(Event("result", f"Job {job} had ended: {found.reason}. Nothing was changed."))
            return
        serves = f" ({found.ready.model} is ready)" if found.ready else ""
        answer = session.confirm(yes)(f"Cancel job {job}{serves}?")
        if answer is None:
            raise UsageError("not confirmed: this cancels the job", again=("--yes",))
        if not answer:
            raise Aborted
        node.cancel(job)
        session.emit(Event("result", f"Cancelled job {job}.", data={"job": job}))


def _at(login: str) -> tuple[str, ...]:
    """The option that names the login node in a command to paste."""
    return ("--login", login) if login else ()


def _whole(session: Session, asked: Deployment, line: str | None, size: Sequence[str], *, degrees: bool) -> Deployment:
    """What is to be served: what this call gives counts more than the command line that it names."""
    if line is not None:
        from vllm_cluster.serving.serve.translated import RequestSource, taken_from

        source = RequestSource(line)
        asked = taken_from(session, source, asked, None, degrees=degrees, dry_run=False, verb=("slurm", *size))
    elif not asked.model:
        raise UsageError("missing MODEL", hint="vcluster slurm job --help")
    # Its nodes change with each job: other machines of the cluster reach its address, with the key.
    return replace(asked, name=asked.name or asked.model, expose=True, backend="mp")
