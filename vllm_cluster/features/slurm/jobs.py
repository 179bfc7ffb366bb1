"""A job as its login node shows it: what Slurm knows of it, and what is in its folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from vllm_cluster.features.slurm.folders import JUDGES
from vllm_cluster.kernel.errors import HostError, PreflightFailed, TimedOut, UsageError
from vllm_cluster.kernel.hosts.runtime import SYSTEM, Runtime
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import printable
from vllm_cluster.kernel.transport.base import MAX_OUTPUT, Result, Target, Transport
from vllm_cluster.kernel.transport.jumps import Jumps
from vllm_cluster.wire.reading import RefusedDocument, read
from vllm_cluster.wire.values import Address, Count, Name, Number, Port, Word

HERE = "local"
CONNECT_SECONDS, SECONDS, HOLD_SECONDS = 20.0, 60.0, 10.0
MAX_READY, MAX_LOGS, MAX_RANKS, NEVER, NO_FOLDER = 64 << 10, 8 << 20, 256, 3, 4
# Of each rank a log, and what is printed of a job; a login node may print any number.
MAX_SECTIONS = MAX_RANKS + 16
_JOB = re.compile(r"[0-9]{1,10}")
# Why a job waits without end: Slurm tests it against all limits only once it is in the queue.
_NEVER = re.compile(r"Partition\w{1,20}Limit|BadConstraints|Invalid(Account|QOS)")
_KEY = re.compile(r"[\x21-\x7e]{1,512}")
Phase = Literal["waiting", "starting", "degraded", "ready", "ended", "failed"]
# The state that Slurm ends a job with, as a reason.
ENDED = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "ended by its time limit",
    "DEADLINE": "ended by its deadline",
    "PREEMPTED": "preempted",
    "NODE_FAIL": "a node of it failed",
    "OUT_OF_MEMORY": "out of memory (--sbatch mem=SIZE)",
    "BOOT_FAIL": "a node of it did not boot",
    "COMPLETED": "completed",
}
WANTED = ("CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "COMPLETED")
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SUSPENDED")
# Where all may write, a folder of the job's number may be another user's, with an address and a key of theirs; and so
# may be the files of one in which others may write. It is entered before it is judged, and all is read from there:
# whoever may rename it could else put another in its place in between.
_FOLDER = """
mine() {
  cd -P "${VCLUSTER_JOBS:-$HOME/vcluster-jobs}" && above=$(pwd -P) && cd -P "./$1" || return
  folder=$(pwd -P)
  [ -O . ] && [ "$folder" = "${above%/}/$1" ] && [ ! "$(find . -maxdepth 0 \\( -perm -20 -o -perm -2 \\))" ]
}
mine "$1" 2>/dev/null || folder=
# Anything else may be without an end, or be waited for without one.
is_file() { [ ! -e "$1" ] || [ -f "$1" ] || { echo "$1 is not a file" >&2; false; }; }
"""
_ENTER = f"""{_FOLDER}
[ "$folder" ] || {{ echo "$(id -un) has no folder of job $1" >&2; exit 1; }}
"""
# Prints all of it in sections, each behind a mark that no log can hold: a job that has ended minutes ago is known to
# its folder alone, or to Slurm's accounting.
LOOK = f"""{_FOLDER}
echo "$2 job"; scontrol show job -o "$1" 2>/dev/null | head -n 1
echo "$2 past"; sacct -nPXj "$1" -o State,End 2>/dev/null | tail -n 1
[ "$folder" ] || exit 0
echo "$2 folder"; echo "$folder"
echo "$2 ready"; if is_file ready.json; then head -c {MAX_READY + 1} ready.json 2>/dev/null; else echo "none"; fi
echo; echo "$2 attempts"; find . -maxdepth 1 -name 'attempt-*' 2>/dev/null | wc -l
echo "$2 replicas"; find . -maxdepth 1 -type l -name 'replica-*' -printf '%f %l\\n' 2>/dev/null
echo "$2 ends"; is_file ends && tail -n 20 ends 2>/dev/null
"""
# Slurm follows a link that another user has made for the output of the next job, and adds it to a file of this one.
SUBMIT = f"""
{JUDGES}
no() {{ echo "$1" >&2; exit 4; }}
d=${{VCLUSTER_JOBS:-$HOME/vcluster-jobs}}; (umask 077 && mkdir -p "$d") && d=$(cd -P "$d" && pwd -P) || exit 4
[ -w "$d" ] || no "cannot write to $d"
# The job refuses to begin there, and it may wait for days until it does.
open=$(closed "$d") || no "$open"
out=$d
if ! private "$d"; then
  out=${{d%/}}/output-$(id -un); (umask 077 && mkdir -p "$out" 2>/dev/null)
  private "$out" || no "$out is not a folder of $(id -un) alone"
fi
cd "${{1:-$HOME}}" && script=$(cat) || exit
printf '%s\\n' "$script" | sbatch --test-only || exit 3
case $script in *"#SBATCH --output="*) set -- ;; *) set -- --output="$out/slurm-%j.out" ;; esac
printf '%s\\n' "$script" | exec sbatch --parsable "$@"
"""
KEY = f"{_ENTER}is_file key && exec cat key"
# The last start of which there are logs, or the one that is asked for; a mark before each file.
LOGS = f"""{_ENTER}
for log in attempt-"$2"/rank-$3.log; do is_file "$log" && echo "$5 $log" && tail -n "$4" "$log"; echo; done
"""


@dataclass(frozen=True)
class JobReady:
    """Where the model of a job answers: its ready.json. `ready` is how many of its `replicas` do."""

    job: Word
    model: Name
    node: Name
    address: Address
    port: Port
    attempt: Count
    since: Number
    start_seconds: Number
    ready: Count = 1
    replicas: Count = 1


@dataclass(frozen=True)
class JobEnd:
    """One start that has ended: when, and how."""

    time: int
    attempt: int
    how: str

    @property
    def wanted(self) -> bool:
        """Whether something asked for it."""
        return self.how.startswith("stopped")


@dataclass(frozen=True)
class SlurmJob:
    """What is known of a job."""

    job: str
    phase: Phase
    reason: str
    folder: str = ""
    ready: JobReady | None = None
    # Why its ready.json cannot be read.
    refused: str = ""
    ends: tuple[JobEnd, ...] = ()
    attempts: int = 0
    # The last start of each replica, by its number.
    replicas: Mapping[int, int] = field(default_factory=dict)
    # Whether Slurm still has it in its queue.
    queued: bool = False
    # The file of what its batch script prints, while Slurm knows of it.
    output: str = ""

    @property
    def head(self) -> str:
        """What it is now, in a line."""
        return f"job {self.job} is {self.phase}: {self.reason}"

    def last_start(self, replica: int) -> int:
        """The number of its last start, or of the last one of a replica; 0 where there is none."""
        return self.replicas.get(replica, 0) if replica else self.attempts

    @property
    def first_failure(self) -> JobEnd | None:
        """The first start that failed; later ones may follow from it."""
        return next((one for one in self.ends if not one.wanted), None)


class LoginNode:
    """Where Slurm's commands are: another machine over SSH, or this one."""

    def __init__(self, transport: Transport, runtime: Runtime, login: str) -> None:
        self.transport, self._runtime = transport, runtime
        self._destination, self._login = login, (Option("--login"), login) if login else ()

    def line(self, *words: str) -> str:
        """A command on a job, for a person to paste."""
        return command_line("vcluster", "slurm", *words, *self._login)

    def line_there(self, *words: str) -> str:
        """A command of the login node, for a person to paste here."""
        there = command_line(*words)
        return command_line("ssh", Option("--"), self._destination, there) if self._destination else there

    def ask(self, step: str, script: str, *words: str, stdin: bytes = b"", most: int = MAX_OUTPUT) -> Result:
        """Run a script there, to its end."""
        argv = ["sh", "-c", script, "sh", *words]
        try:
            return self.transport.run(argv, self._runtime.after(SECONDS), stdin=stdin, most=most)
        except TimedOut as error:
            raise error.with_step(step) from None

    def submit(self, script: str, folder: str = "") -> str:
        """Submit a job from a folder there, or from home; return its number.

        Raises:
            PreflightFailed: Slurm would never start it.
            HostError: Slurm refused it, or there is no folder for it; with its words.
        """
        done = self.ask("submit", SUBMIT, folder, stdin=script.encode())
        if done.returncode == NEVER:
            hint = "sbatch --help" if "unrecognized option" in _last(done) else "sinfo -o '%P %l %D %G'"
            raise PreflightFailed(f"Slurm would never start this job: {_last(done)}", hint=hint)
        if done.returncode == NO_FOLDER:
            hint = 'export VCLUSTER_JOBS="$HOME/vcluster-jobs"'
            raise HostError(self.transport.host, f"the folder of all jobs: {_last(done)}", hint=hint)
        found = done.text.strip().partition(";")[0]
        if done.returncode or not _JOB.fullmatch(found):
            raise HostError(self.transport.host, f"submit: {_last(done)}", hint="sinfo")
        return found

    def look(self, job: str) -> SlurmJob:
        """Return what is known of a job.

        Raises:
            UsageError: that is not the number of one.
            PreflightFailed: nothing is.
        """
        if not _JOB.fullmatch(job):
            raise UsageError(f"{printable(job)!r} is not the number of a job", hint="squeue --me")
        mark = self._mark()
        state = job_state(job, texts(self.ask(f"look at job {job}", LOOK, job, mark).stdout, mark), self.transport.host)
        if state is None:
            text = f"neither Slurm nor a folder on {self.transport.host} knows of job {job}"
            raise PreflightFailed(text, hint="squeue --me")
        return state

    def look_where(self, job: str) -> SlurmJob:
        """Return what is known of a job, for those who need its address.

        Raises:
            HostError: what it has written of its address cannot be read; and as `look`.
        """
        found = self.look(job)
        if found.refused:
            hint = self.line("stop", job, Option("--yes"))
            raise HostError(
                self.transport.host, f"{found.refused}; its model may answer, but where is not known", hint=hint
            )
        return found

    def hold(self, job: str, at: JobReady) -> SlurmJob:
        """Return once the model does not answer there any more, or the connection breaks."""
        # On other nodes a job has the same ports, and its place before is free for everybody.
        while (now := self.look_where(job)).ready and (now.ready.address, now.ready.port) == (at.address, at.port):
            self._runtime.clock.sleep(HOLD_SECONDS)
            self.transport.require_alive()
        return now

    def key(self, job: str) -> str:
        """Return the key of a job's API."""
        done = self.ask(f"key of job {job}", KEY, job)
        if not _KEY.fullmatch(key := done.text.strip()):
            why = "its file holds no key" if key else _last(done)
            raise HostError(self.transport.host, f"key of job {job}: {why}", hint=self.line("status", job))
        return key

    def logs(self, job: str, attempt: int, rank: str, lines: int) -> dict[str, bytes]:
        """Return the last lines of the logs of a start, by their names; `rank` is * for all."""
        mark = self._mark()
        done = self.ask(f"logs of job {job}", LOGS, job, str(attempt), rank, str(lines), mark, most=MAX_LOGS)
        found = sections(done.stdout, mark)
        # Those that were asked for: a login node may print any number under any names.
        ranks = [rank] if rank != "*" else range(MAX_RANKS)
        names = [f"attempt-{attempt}/rank-{one}.log" for one in ranks]
        return {name: found[name] for name in names if found.get(name, b"").strip()}

    def _mark(self) -> str:
        return f"@@{self._runtime.token(8)}"

    def cancel(self, job: str) -> None:
        """Cancel a job.

        Raises:
            HostError: Slurm refused that.
        """
        done = self.transport.run(["scancel", "--", job], self._runtime.after(SECONDS))
        if done.returncode:
            raise HostError(self.transport.host, f"it was not stopped: {_last(done)}", hint="squeue --me")


@contextmanager
def login_node(destination: str, runtime: Runtime = SYSTEM) -> Iterator[LoginNode]:
    """The login node by its name in ssh_config, by the ssh of this machine: it asks for what logins there need."""
    target = Target(destination or "this machine", destination or HERE)
    transport = runtime.connect(target, "openssh" if destination else "local", None, Jumps())
    try:
        transport.connect(runtime.after(CONNECT_SECONDS))
        yield LoginNode(transport, runtime, destination)
    finally:
        transport.close()


def sections(printed: bytes, mark: str) -> dict[str, bytes]:
    """What is below each line that begins with the mark; of two of one name the later.

    As bytes: 8 MiB of short lines, which a log may have, took 377 MB as texts.
    """
    _, *parts = (b"\n" + printed.removesuffix(b"\n")).split(f"\n{mark}".encode(), MAX_SECTIONS)
    named = ((part + b"\n").partition(b"\n") for part in parts)
    return {name.decode("utf-8", "replace").strip(): content for name, _, content in named}


def texts(printed: bytes, mark: str) -> dict[str, str]:
    """Return the same as texts; what is not UTF-8 is replaced."""
    return {name: content.decode("utf-8", "replace") for name, content in sections(printed, mark).items()}


def job_state(job: str, seen: Mapping[str, str], host: str) -> SlurmJob | None:
    """The state of a job from what its login node printed; None where nothing knows of it."""
    facts = dict(word.split("=", 1) for word in seen.get("job", "").split() if "=" in word)
    past, folder = seen.get("past", "").strip().split("|")[0], printable(seen.get("folder", "").strip())
    ends = tuple(_ends(seen.get("ends", "").splitlines()))
    # Of one that was cancelled: CANCELLED by 1000.
    state = facts.get("JobState") or (past.split() or [""])[0]
    if not state and not folder:
        return None
    ready, refused = _ready(job, seen.get("ready", "").strip(), host) if state == "RUNNING" else (None, "")
    phase, reason = _judged(state, facts, ready, ends)
    reason = refused if refused and phase == "starting" else reason
    attempts = next((int(one) for one in re.findall(r"\A\s*([0-9]{1,6})\s*\Z", seen.get("attempts", ""))), 0)
    starts = re.findall(r"^replica-([0-9]{1,3}) attempt-([0-9]{1,6})$", seen.get("replicas", ""), re.MULTILINE)
    replicas = {int(one): int(start) for one, start in starts}
    queued, output = state in (*WAITING, "RUNNING"), printable(facts.get("StdOut", ""))
    return SlurmJob(job, phase, printable(reason), folder, ready, refused, ends, attempts, replicas, queued, output)


def _judged(state: str, facts: Mapping[str, str], ready: JobReady | None, ends: Sequence[JobEnd]) -> tuple[Phase, str]:
    last = ends[-1] if ends else None
    if state in WAITING and _NEVER.fullmatch(facts.get("Reason", "")):
        return "failed", f"Slurm never starts it: {facts['Reason']}"
    if state in WAITING:
        return "waiting", f"{facts.get('Reason', state.lower())}, since {facts.get('SubmitTime', 'it was submitted')}"
    if state == "RUNNING" and not (last and last.wanted):
        if ready is None:
            return "starting", f"on {facts.get('NodeList')}"
        return "ready" if ready.ready >= ready.replicas else "degraded", f"ends {facts.get('EndTime')}"
    if last and last.wanted and state in ("", "RUNNING", "COMPLETED", "COMPLETING"):
        return "ended", _why(last)
    if state == "COMPLETING":
        return "waiting", "Slurm ends it now"
    if state in WANTED:
        return "ended", ENDED[state]
    if not state and last is None:
        return "ended", "Slurm no longer knows of it, and nothing of it has ended orderly: cancelled, or a node failed"
    if last is None and state == "FAILED":
        return "failed", "its batch script, before a start of vLLM"
    return "failed", ENDED.get(state) or (f"{last.how} at start {last.attempt}" if last else state)


def _why(end: JobEnd) -> str:
    """What asked a start to end: Slurm asks before the limit, and before it preempts."""
    words = dict(word.split("=", 1) for word in end.how.split()[1:] if "=" in word)
    if words.get("PreemptTime", "None") != "None" or words.get("JobState") == "PREEMPTED":
        return ENDED["PREEMPTED"]
    return ENDED["TIMEOUT"] if words.get("JobState") == "RUNNING" else ENDED["CANCELLED"]


def _ends(lines: Sequence[str]) -> Iterator[JobEnd]:
    for line in lines:
        if found := re.fullmatch(r"(\d{1,12}) attempt=(\d{1,6}) (.{1,300})", line.strip()):
            yield JobEnd(int(found[1]), int(found[2]), printable(found[3]))


def _ready(job: str, text: str, host: str) -> tuple[JobReady | None, str]:
    """Where a job answers, or why that cannot be read: not all need the address.

    Its file names the job, so that one of another job leads no key to that one's place.
    """
    if not text:
        return None, ""
    sender = f"ready.json on {host}"
    try:
        found = read(JobReady, text.encode(), sender, MAX_READY)
        if found.job != job:
            raise RefusedDocument(sender, "job", f"is not {job}")
    except RefusedDocument as refused:
        return None, str(refused)
    return found, ""


def _last(done: Result) -> str:
    """The line of a command's last words that has its error: what follows may be how to get help."""
    lines = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    found = next((line for line in lines if re.search("error|unrecognized", line)), lines[-1] if lines else "")
    return printable(found) if found else f"exit code {done.returncode}"
