"""The script of a Slurm job that serves a model: read by people, and by sbatch; pure, but for files of this package."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import resources
from typing import get_args

from vllm_cluster import __version__
from vllm_cluster.features.slurm.folders import JUDGES
from vllm_cluster.features.slurm.sbatch import Container, JobRequest
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.kernel.node.program import node_program
from vllm_cluster.kernel.plan.placement import Cluster, choose_layout, place_replica
from vllm_cluster.kernel.shell_line import Option, Variable, command_line, export_line, shell_line
from vllm_cluster.kernel.text import count, printable
from vllm_cluster.serving.serve.repeats import without_repeats
from vllm_cluster.wire.order import Deployment, Replica

# What an option of vLLM gets in the job: only there it is known.
IN_JOB = {
    "--host": "MASTER",
    "--port": "API_PORT",
    "--master-addr": "MASTER",
    "--master-port": "MASTER_PORT",
    "--data-parallel-rpc-port": "ENGINES_PORT",
    "--node-rank": "SLURM_PROCID",
}
# What the job runs of the node's program: in front of vLLM, and to ask it.
CARRIED = (
    "vcluster_auth.py",
    *("vllm_cluster/__init__.py", "vllm_cluster/serving/__init__.py", "vllm_cluster/wire/__init__.py"),
    *(f"vllm_cluster/serving/node/{name}.py" for name in ("__init__", "api", "parse_argv", "key_check")),
    *(f"vllm_cluster/serving/node/{name}.py" for name in ("engine_watch", "proc", "timing")),
    *(f"vllm_cluster/wire/{name}.py" for name in ("inside", "keys", "labels", "listeners", "reading", "values")),
)
# And in front of several replicas.
OF_FRONT = (
    *(f"vllm_cluster/serving/node/front{name}.py" for name in ("", "_body", "_door", "_held", "_metrics", "_models")),
    *(f"vllm_cluster/serving/node/front_{name}.py" for name in ("processes", "proxy", "refusal", "replica", "routes")),
    "vllm_cluster/serving/node/front_settings.py",
    *(f"vllm_cluster/serving/node/{name}.py" for name in ("files", "process", "backends/__init__", "backends/ray")),
    "vllm_cluster/wire/front.py",
)
STEP, FRONT, END = "step.py", "job_front.py", "END_OF_FILE"
# sbatch reads its lines by rules of its own: what is in one needs no quotes.
_PLAIN = re.compile(r"[A-Za-z0-9_.,@:+/=\[\]()&|*!%-]+")


def script(asked: Deployment, job: JobRequest) -> str:
    """The script of the job that serves a deployment.

    Raises:
        UsageError: it cannot be laid out over these nodes, or a word of it cannot be in a script.
    """
    replica = laid_out(asked, job)
    slots = {
        "DIRECTIVES": "\n".join(_directives(asked, job, replica)),
        "ENVIRONMENT": "\n".join(export_line(*one) for one in replica.leader.env.items()),
        # A file of an image is named from there.
        "AWAY": "" if job.container == "apptainer" else 'cd "$VCLUSTER_JOB" || exit',
        "BEFORE": "\n".join(_before(asked, job)),
        "OWN": "\n".join(_own(replica)),
        "VLLM": shell_line(map(_filled, _shared(replica))),
        "INSIDE": _inside(job),
        "STEP": _step(job),
        **_replicas(job),
        "JUDGES": JUDGES,
        "FILES": "\n".join(_files(job)),
    }
    text = resources.files("vllm_cluster.features.slurm").joinpath("job.sh").read_text(encoding="utf-8")
    # In one pass: a slot's text may hold the name of another one.
    return re.sub(r"@([A-Z]+)@( ?)", lambda slot: slots[slot[1]] + slot[2] * bool(slots[slot[1]]), text)


def laid_out(asked: Deployment, job: JobRequest) -> Replica:
    """What every node runs, as `serve` derives it for nodes without Ray; they are named by their numbers."""
    words = (asked.model, asked.name, *asked.flags, job.image, *job.others.values())
    if wrong := next((word for word in words if not word.isprintable()), None):
        raise UsageError(
            f"{printable(wrong)!r} cannot be in a script: it holds a control character", hint="leave it out"
        )
    if job.container not in get_args(Container):
        text = f"--container must be none, pyxis or apptainer, got {job.container!r}"
        raise UsageError(text, hint="--container apptainer also runs singularity's images")
    if job.image and job.container == "none":
        raise UsageError("--image needs a --container that runs it", hint="--container apptainer, or pyxis")
    nodes, gpus = job.of_replica
    degrees = (asked.tp or 1) * (asked.pp or 1) * asked.dp
    if degrees > nodes * gpus:
        text = f"the layout takes {count(degrees, 'GPU')}; this job asks for {count(job.nodes, 'node')} × {job.gpus}"
        raise UsageError(text, hint=f"use --nodes {job.nodes} --gpus {-(-degrees // job.nodes)}")
    names = [str(number) for number in range(nodes)]
    cluster = Cluster(dict.fromkeys(names, gpus), {name: name for name in names}, backend="mp")
    layout = choose_layout(asked, cluster)
    plain = without_repeats(asked, cluster, (layout.tp, layout.pp), 0)
    replica = place_replica(plain, cluster, (layout.tp, layout.pp), 0).replica
    if len(replica.parts) < nodes:
        text = f"{replica.layout} takes {count(len(replica.parts), 'node')} of the {nodes}"
        raise UsageError(text, hint=f"use --nodes {len(replica.parts)}")
    return replica


def _directives(asked: Deployment, job: JobRequest, replica: Replica) -> Iterator[str]:
    layout = f"{job.replicas} replicas of {replica.layout}" if job.replicas > 1 else replica.layout
    yield f"# Serves {asked.name} on {count(job.nodes, 'node')} × {count(job.gpu_count, 'GPU')}: {layout}."
    yield f"# Made by vcluster {__version__}. Submit it: sbatch FILE. Follow it: vcluster slurm status JOB"
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", asked.name.rpartition("/")[2]) or "model"
    options = {"job-name": f"vcluster-{name}", "nodes": str(job.nodes), "ntasks-per-node": "1"}
    options |= {"gpus-per-node": job.gpus, "time": job.time_limit}
    # All memory of the node: the default of a site may be that of one core.
    options |= {} if job.cpus else {"exclusive": "", "mem": "0"}
    # The batch script is asked to end a minute before the limit, and writes that down.
    options |= {"requeue": "", "open-mode": "append", "signal": "B:TERM@60", **job.others}
    if job.cpus:
        options["cpus-per-task"] = str(job.cpus)
    if "mail-user" in options:
        options.setdefault("mail-type", "BEGIN,END,FAIL,REQUEUE")
    for option, value in options.items():
        if value and not _PLAIN.fullmatch(value):
            raise UsageError(f"--{option} {value!r} cannot be in a line of sbatch", hint="sbatch --help")
        yield f"#SBATCH --{option}={value}" if value else f"#SBATCH --{option}"


def _replicas(job: JobRequest) -> dict[str, str]:
    """What several replicas add: where each of them is, and ports for each and for the front."""
    nodes, _ = job.of_replica
    several = job.replicas > 1
    where = ("--overlap", f"--nodes={nodes}", f"--ntasks={nodes}", Variable("--relative=", "first"))
    return {
        "REPLICAS": str(job.replicas),
        "PARTS": str(job.replicas + several),
        "SPAN": str(nodes),
        "SHARE": str(max(1, job.replicas // job.nodes)),
        "READY": "replica-$REPLICA.json" if several else "ready.json",
        # Clients have the key of the front alone.
        "KEY": "replica-key" if several else "key",
        "WHERE": shell_line(where) if several else "",
    }


def _before(asked: Deployment, job: JobRequest) -> Iterator[str]:
    """What a node does before it is a rank: be the front, or know which of its GPUs are those of its replica."""
    if job.replicas > 1:
        words = shell_line(("python3", Variable("", "FRONT"), asked.name, str(job.replicas)))
        yield f"FRONT=$VCLUSTER_JOB/program/{FRONT}"
        yield f'[ "$REPLICA" != front ] || exec {" ".join(filter(None, (_inside(job), words)))}'
    if job.replicas > job.nodes:
        _, gpus = job.of_replica
        yield f"export VCLUSTER_GPUS=$(((REPLICA - 1) % {job.replicas // job.nodes} * {gpus})),{gpus}"


def _shared(replica: Replica) -> tuple[str, ...]:
    """The words that all nodes have; those of each are behind them."""
    parts = [part.argv for part in replica.parts]
    least = min(map(len, parts))
    alike = next((at for at in range(least) if len({argv[at] for argv in parts}) > 1), least)
    return parts[0][: alike if len(parts) > 1 else least]


def _own(replica: Replica) -> Iterator[str]:
    """What each node adds to the words of all, as the cases of a shell."""
    begin = len(_shared(replica))
    ends = [shell_line(map(_filled, part.argv[begin:])) for part in replica.parts]
    for number, words in enumerate(ends):
        last = len(set(ends[number:])) == 1
        yield f"  {'*' if last else number}) own=({words}) ;;"
        if last:
            return


def _filled(word: str) -> str | Variable:
    option, _, _ = word.partition("=")
    # These are vcluster's own: a person's flags cannot have them.
    return Variable(f"{option}=", IN_JOB[option]) if option in IN_JOB and "=" in word else word


def _inside(job: JobRequest) -> str:
    """What is before the program where a container is started on the node."""
    if job.container != "apptainer":
        return ""
    job_folder = Variable("", "VCLUSTER_JOB")
    binds = ("--bind", job_folder, "--bind", Variable("", "HF_HOME"), "--pwd", job_folder)
    return shell_line(("apptainer", "exec", "--nv", *binds, _image(job)))


def _step(job: JobRequest) -> str:
    """What srun gets more."""
    words: list[str | Variable] = [f"--cpus-per-task={job.cpus}"] if job.cpus else []
    if job.container == "pyxis":
        # Its folders, each at the same place.
        words += [f"--container-image={_image(job)}", Variable("--container-mounts=", "VCLUSTER_MOUNTS")]
    return shell_line(words)


def _image(job: JobRequest) -> str:
    if not job.image or job.image.startswith("-"):
        example = command_line(
            "vcluster", "slurm", "MODEL", Option("--container"), job.container, Option("--image"), "FILE.sif"
        )
        raise UsageError(f"--container {job.container} needs --image: an image, or its file", hint=example)
    return job.image


def _files(job: JobRequest) -> Iterator[str]:
    """The files that the script carries, each as lines of a shell that write it."""
    carried, here = node_program(), resources.files("vllm_cluster.features.slurm.on_host")
    names, own = ((*CARRIED, *OF_FRONT), (STEP, FRONT)) if job.replicas > 1 else (CARRIED, (STEP,))
    files = {name: carried[name] for name in names} | {name: here.joinpath(name).read_bytes() for name in own}
    yield shell_line(("mkdir", "-p", *sorted({path.rpartition("/")[0] for path in files} - {""})))
    for path, content in files.items():
        yield f"put {path} <<'{END}'\n{content.decode()}{END}"
