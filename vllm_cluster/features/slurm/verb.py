"""`vcluster slurm`."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from vllm_cluster.features.slurm.feature import SLURM
from vllm_cluster.kernel.errors import Aborted, HostError, PreflightFailed, UsageError
from vllm_cluster.kernel.events import Event
from vllm_cluster.kernel.shell_line import Option, command_line, export_line
from vllm_cluster.kernel.terminal.completion import complete_models
from vllm_cluster.kernel.terminal.options import Json, Yes
from vllm_cluster.kernel.terminal.output import data, out, to_paste, with_ends
from vllm_cluster.kernel.terminal.program import group
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.settings import SETTINGS
from vllm_cluster.kernel.text import host_port, printable
from vllm_cluster.serving.serve.verb import Dp, Ep, Flags, From, Name, Pp, Tp

if TYPE_CHECKING:
    from vllm_cluster.features.slurm.jobs import LoginNode
    from vllm_cluster.features.slurm.sbatch import JobRequest
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
Nodes = Annotated[
    int, typer.Option("--nodes", "-N", metavar="NUMBER", min=0, max=256, help="Nodes of the job. Default: 1.")
]
Gpus = Annotated[
    str, typer.Option("--gpus", metavar="NUMBER", help="GPUs of each node, also with a type: h100:4. Default: 1.")
]
Time = Annotated[str, typer.Option("--time", "-t", metavar="TIME", help="Its time limit. Default: 1:00:00.")]
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
Replica = Annotated[
    int, typer.Option("--replica", metavar="NUMBER", min=0, max=256, help="Of several: the last start of this one.")
]
Attempt = Annotated[int, typer.Option("--start", metavar="NUMBER", min=0, help="Which start. Default: the last one.")]
Tail = Annotated[int, typer.Option("--tail", metavar="LINES", min=1, max=20_000, help="The last lines.")]
Tunnel = Annotated[
    int | None,
    typer.Option(
        "--tunnel",
        metavar="PORT",
        min=0,
        max=65535,
        help="Forward the API to localhost until Ctrl-C; port 0 is a free one. Without PORT: 8000.",
        show_default=False,
    ),
]

NOT_YET = 75
# What --tail takes, some of them with what overwrites itself; and how much of a log is written at once.
MAX_LINES, PIECE = 100_000, 64 << 10


def job(
    model: Model = None,
    flags: Flags = None,
    nodes: Nodes = 0,
    gpus: Gpus = "",
    time: Time = "",
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
        from vllm_cluster.features.slurm.sbatch import JobRequest, given_options
        from vllm_cluster.features.slurm.script import script
        from vllm_cluster.wire.order import Deployment

        wanted = JobRequest(nodes, gpus, time, replicas, container, image, given_options(sbatch or ()))
        asked = Deployment(name or "", model or "", tuple(flags or ()), tp, pp, dp=dp or 1, expert_parallel=ep)
        if line is not None:
            wanted, asked = _of_source(session, line, wanted, asked, degrees=bool(tp or pp or dp))
        elif not model:
            raise UsageError("missing MODEL", hint="vcluster slurm job --help")
        _ensure_no_slip(asked.model)
        # Its nodes change with each job: other machines of the cluster reach its address, with the key.
        asked = replace(asked, name=asked.name or asked.model, expose=True, backend="mp")
        gpus, time = wanted.gpus or "1", wanted.time or "1:00:00"
        wanted = replace(wanted, nodes=wanted.nodes or 1, gpus=gpus, time=time)
        if gpu_memory:
            from vllm_cluster.features.slurm.action import ensure_fits

            layout = ensure_fits(asked, wanted, gpu_memory, session.progress)
            session.progress(Event("note", f"{asked.model} fits as {layout.name}"))
        text = script(asked, wanted)
        if submit:
            _submit(session, text, login)
        else:
            session.show(lambda: {"v": 1, "script": text}, lambda: data(text))


def _ensure_no_slip(model: str) -> None:
    """Refuse what a person types for another verb or program, and a job would fail with.

    Raises:
        UsageError: it is the number of a job, or a batch script.
    """
    if model.isdecimal():
        raise UsageError(f"{model} is the number of a job", hint=command_line("vcluster", "slurm", "status", model))
    if model.endswith((".sh", ".sbatch", ".slurm")):
        both = command_line("sbatch", model), command_line("vcluster", "slurm", Option("--from"), model)
        raise UsageError(f"{printable(model)} is a batch script, and not a model", hint="\n".join(both))


def _of_source(
    session: Session, line: str, own: JobRequest, asked: Deployment, *, degrees: bool
) -> tuple[JobRequest, Deployment]:
    """What a text asks for of Slurm and to serve, where this call gives nothing else."""
    from vllm_cluster.features.slurm.sbatch import merged, of_job
    from vllm_cluster.serving.serve.translated import RequestSource, taken_from

    source = RequestSource(line)
    own, rows = merged(*source.text, own)
    verb = ("slurm", *own.words)
    found = taken_from(
        session, source, asked, None, degrees=degrees, dry_run=False, verb=verb, rows=rows, reasoned=of_job
    )
    return own, found


def _submit(session: Session, text: str, login: str) -> None:
    from vllm_cluster.features.slurm.jobs import login_node

    with login_node(login) as node:
        number = node.submit(text, "" if login else str(Path.cwd()))
        follow = session.paste(node.line("status", number, Option("--wait"), "1h"))
    session.show(
        lambda: {"v": 1, "job": number}, lambda: out(f"Submitted job {number}.", to_paste(" Then run ", follow))
    )


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

        found = await_ready(node, job, wait, session.progress) if wait else node.look_where(job)
        lines = state_lines(found, node.line, session.paste)
        session.show(lambda: state_document(found), lambda: out(*with_ends(lines), end=""))
        if found.phase != "ready":
            raise SystemExit(NOT_YET if found.phase in ("waiting", "starting") else 1)


def logs_of_job(
    job: Job,
    rank: Rank = 0,
    replica: Replica = 0,
    start: Attempt = 0,
    tail: Tail = 1000,
    login: Login = "",
    as_json: Json = False,
) -> None:
    """Print what a rank of a job has written."""
    with _opened(login, as_json) as (session, node):
        state = node.look(job)
        number = start or state.last_start(replica)
        found = node.logs(job, number, str(rank), tail)
        if not found:
            which = f"start {number}" if number else f"replica {replica}"
            what = f"log of rank {rank} of {which}" if number or replica else "log: no start of vLLM has begun"
            raise PreflightFailed(f"job {job} has no {what}", hint=node.line("status", job))
        [content] = found.values()
        session.show(lambda: {"v": 1, "start": number, "rank": rank, "lines": _lines(content)}, lambda: _print(content))


def _lines(content: bytes) -> list[str]:
    """The last lines of a log: one may have millions, of a character each."""
    with io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace") as lines:
        return [line.rstrip("\n") for line in deque(lines, MAX_LINES)]


def _print(content: bytes) -> None:
    """Write a log line by line: as one text in which a character is rare it takes four bytes for each."""
    whole = True
    with io.TextIOWrapper(io.BytesIO(content), "utf-8", "replace") as lines:
        while line := lines.readline(PIECE):
            if whole or line != "\n":
                out(line.removesuffix("\n"))
            whole = line.endswith("\n")


def endpoint(job: Job, tunnel: Tunnel = None, login: Login = "", as_json: Json = False) -> None:
    """Print what OpenAI clients need: URL and key."""
    with _opened(login, as_json) as (session, node):
        found = node.look_where(job)
        if (at := found.ready) is None:
            ended = found.phase in ("ended", "failed")
            again = node.line("explain", job) if ended else node.line("status", job, Option("--wait"), "1h")
            raise PreflightFailed(found.head, hint=again)
        key = node.key(job)
        if tunnel is None:
            url = f"http://{host_port(at.address, at.port)}/v1"
            lines = f"{export_line('OPENAI_BASE_URL', url)}\n{export_line('OPENAI_API_KEY', key)}\n"
            session.show(lambda: {"v": 1, "base_url": url, "model": at.model, "key": key}, lambda: data(lines))
            return
        with closing(node.transport.forward(at.port, tunnel, remote_host=at.address)) as forward:
            url = f"http://127.0.0.1:{forward.local_port}/v1"
            text = f"{url} forwards to {at.model} of job {job} until Ctrl-C"
            session.emit(Event("result", text, data={"url": url, "port": forward.local_port}))
            try:
                found = node.hold(job, at)
            except KeyboardInterrupt:
                session.finish()  # the way in which an open tunnel ends is not a failure
                return
        raise HostError(node.transport.host, f"tunnel: {found.head}", hint=node.line("explain", job))


def explain_job(job: Job, login: Login = "", as_json: Json = False) -> None:
    """Name the first cause of a failure from a job's logs."""
    with _opened(login, as_json) as (session, node):
        from vllm_cluster.features.slurm.action import first_cause
        from vllm_cluster.features.slurm.render import in_job, without_log
        from vllm_cluster.serving.explain.render import explain_document, show_explained

        state = node.look(job)
        found, start = first_cause(node, state)
        about = {"v": 1, "job": job, "phase": state.phase, "reason": state.reason, "start": start or None}
        if found is None:
            document = {**about, "explained": None}
            lines = with_ends(without_log(state, start, node.line, node.line_there, session.paste))
            session.show(lambda: document, lambda: out(*lines, end=""))
            if start or (state.phase == "failed" and not state.queued):
                raise SystemExit(1)
            return
        unknown = (
            "change the flag or the file that it names, or use another version of vLLM",
            node.line("logs", job, Option("--start"), str(start), Option("--rank"), "0"),
        )
        shown, head = in_job(found, job, unknown[1]), f"{state.head}; of its start {start}:"
        session.show(
            lambda: {**about, "explained": explain_document(shown, {}, session.paste)},
            lambda: show_explained(shown, session.paste, color=SETTINGS.color, head=head, fixes=unknown),
        )
        if found.cause is None:
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
