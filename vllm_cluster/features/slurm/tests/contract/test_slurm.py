"""Jobs of `vcluster slurm` on a real Slurm with two nodes on this machine; a program takes the place of vLLM."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.in_process import Finished, run
from tests.support.json_schemas import validate
from tests.support.paths import ROOT, VCLUSTER
from tests.support.waiting import until
from vcluster_sandbox.names import MODEL as TINY
from vllm_cluster.features.slurm.tests.made import (
    JOB,
    MODEL,
    PYTHON,
    SBIN,
    Slurm,
    ask,
    engine,
    rank_of,
    slurm,
    timed,
)
from vllm_cluster.kernel.inventory.load import load_text

# What Slurm itself needs to end a step on a busy machine is in it.
END_SECONDS = 2.0
HANG_SECONDS = 30.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    """A Slurm for all tests: each has jobs of its own."""
    with slurm(tmp_path_factory.mktemp("slurm")) as found:
        yield found


class Job:
    """A job that was submitted."""

    def __init__(self, cluster: Slurm, *words: str, **environment: str) -> None:
        self.cluster = cluster
        done = self.verb("--json", "--submit", *(words or JOB), **environment)
        assert done.returncode == 0, done.stderr
        self.number = str(json.loads(done.stdout)["job"])
        self.folder = cluster.jobs / self.number

    def verb(self, *words: str, **environment: str) -> Finished:
        """`vcluster slurm` on the login node."""
        return run("slurm", *words, cwd=self.cluster.folder, **{**self.cluster.environment, **environment})

    def asked(self, verb: str, *words: str) -> Finished:
        """A verb on this job."""
        return self.verb(verb, self.number, *words)

    def wait_ready(self, longest: str = "2m") -> None:
        """Wait as a person does."""
        done = self.asked("status", "--wait", longest)
        assert done.returncode == 0, done.stdout + done.stderr + self.printed()

    def end(self) -> None:
        """Cancel it, and wait until Slurm has its nodes back."""
        self.asked("stop", "--yes")
        until(lambda: self.number not in self.cluster.run("squeue", "-h", "-o", "%i").split(), 60)

    def printed(self) -> str:
        """What the batch script has printed."""
        return "".join(path.read_text() for path in self.cluster.jobs.glob(f"slurm-{self.number}.out"))

    def ends(self) -> list[str]:
        """How each of its starts ended."""
        path = self.folder / "ends"
        return re.findall(r"attempt=\d+ (\S+(?: ExitCode=\d+)?)", path.read_text()) if path.exists() else []

    def rank(self, number: int, replica: int = 1) -> int:
        """The process of vLLM of a rank."""
        return rank_of(self.number, number, replica)

    def process(self, program: bytes) -> int:
        """A process of the job that runs a program of vcluster."""
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words, where = (path / "cmdline").read_bytes(), (path / "environ").read_bytes()
            except OSError:
                continue
            if (
                words.startswith(b"python3\0")
                and program in words
                and f"SLURM_JOB_ID={self.number}\0".encode() in where
            ):
                return int(path.name)
        raise AssertionError(f"no {program!r} of job {self.number} runs")

    def answers(self) -> bool:
        """Whether its API does."""
        try:
            return self.ask() == 200
        except OSError:
            return False

    def ask(self, prompt: str = "Hello", key: str = "", at: str = "ready.json") -> int:
        """The status of a completion."""
        return self._response({"prompt": prompt}, key, at)[0]

    def answer(self, body: dict[str, object]) -> dict[str, Any]:
        """The answer to a completion."""
        status, raw = self._response(body)
        assert status == 200, raw
        return dict(json.loads(raw))

    def _response(self, body: dict[str, object], key: str = "", at: str = "ready.json") -> tuple[int, bytes]:
        ready = json.loads((self.folder / at).read_text())
        return ask((ready["address"], ready["port"]), body, key or (self.folder / "key").read_text())


@pytest.fixture
def job(cluster: Slurm) -> Iterator[Job]:
    """A job whose model is ready."""
    found = Job(cluster)
    found.wait_ready()
    yield found
    found.end()


def test_ready_is_a_token_and_the_key_is_in_its_file_alone(cluster: Slurm, job: Job) -> None:
    key = (job.folder / "key").read_text()
    assert ((job.folder / "key").stat().st_mode & 0o777, len(key) >= 32) == (0o600, True)
    assert (job.ask(), job.ask(key="wrong")) == (200, 401)
    assert job.asked("endpoint").stdout.splitlines()[1] == f"export OPENAI_API_KEY={key}"
    for verb in ("status", "endpoint", "logs", "explain"):
        validate(["slurm", verb], job.asked(verb, "--json").stdout)
    for path in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                own = path.stat().st_uid == os.getuid()
                assert not own or key.encode() not in (path / name).read_bytes(), f"{name} of process {path.name}"
            except OSError:  # it has ended
                continue
    assert key not in cluster.run("scontrol", "show", "job", job.number)
    kept = [path for path in cluster.folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert kept == [job.folder / "key"]


# fault: features/slurm/on_host/step.py: threading.Timer(GRACE_SECONDS → threading.Timer(1000
# fault: features/slurm/job.sh: --kill-on-bad-exit=1 → --kill-on-bad-exit=0
# fault: kernel/explain/failures.toml: signal (?:4|6|7|9|11) has → signal x has
@pytest.mark.parametrize("rank", [1, 0])
def test_a_killed_rank_ends_the_step_and_the_model_is_ready_again(job: Job, rank: int) -> None:
    """On the same nodes: Slurm lets a job that it queues again wait for two minutes."""
    process, began = job.rank(rank), time.monotonic()
    os.kill(process, signal.SIGKILL)
    timed(job.ends)
    # Twice its limit: this machine runs other tests.
    assert time.monotonic() - began < 2 * END_SECONDS
    job.wait_ready()
    assert (job.ends(), job.ask()) == (["failed ExitCode=137"], 200)
    shown = job.asked("status").stdout
    assert "first failure: start 1, failed ExitCode=137" in shown
    explained = job.asked("explain").stdout
    assert "(vcluster explain rank-killed)" in explained
    assert f"--sbatch mem=SIZE where memory was full: sacct -j {job.number}" in explained
    assert "start:   2, " in shown


# fault: features/slurm/on_host/step.py: code or 1 → code
def test_that_vllm_exits_with_0_is_a_failure_at_once(job: Job) -> None:
    """It does when its engine has died; Slurm alone would let the job idle to its end."""
    began = time.monotonic()
    assert job.ask("exit 0") == 200
    timed(job.ends)
    assert time.monotonic() - began < 2 * END_SECONDS
    job.wait_ready()
    assert job.ends() == ["failed ExitCode=1"]


# fault: features/slurm/on_host/step.py: watches: list[Watch] = [stopped_rank, → watches: list[Watch] = [
def test_a_rank_that_is_stopped_ends_the_step(job: Job) -> None:
    """All others wait for it, and srun sees nothing of that."""
    process, began = job.rank(1), time.monotonic()
    os.kill(process, signal.SIGSTOP)
    timed(job.ends)
    assert time.monotonic() - began < HANG_SECONDS
    job.wait_ready()
    assert job.ends() == ["failed ExitCode=137"]
    why = rf"process {process}( \(\w+\))? of vLLM has been stopped by a signal for 10 s"
    assert re.search(why, job.asked("explain").stdout)


# fault: features/slurm/on_host/step.py: watch.look() → pass
def test_an_engine_that_hangs_ends_the_step(job: Job) -> None:
    """As one whose ranks wait for each other on their GPUs: none has ended, and /health stays 200."""
    assert job.ask("hang") == 200
    began = time.monotonic()
    timed(job.ends)
    assert time.monotonic() - began < HANG_SECONDS
    job.wait_ready()
    assert job.ends() == ["failed ExitCode=137"]
    assert "has made no step for" in job.asked("explain").stdout


@pytest.fixture
def replicas(cluster: Slurm) -> Iterator[Job]:
    """A job of two replicas, both of them ready."""
    found = Job(cluster, *JOB, "--replicas", "2")
    found.wait_ready()
    until(lambda: "replicas: 2 of 2 ready" in found.asked("status").stdout, 60)
    yield found
    found.end()


def answering(job: Job, times: int = 16) -> set[str]:
    """The starts that answer requests, each of which is answered."""
    return {job.answer({"model": MODEL, "prompt": f"Hello {number}"})["id"] for number in range(times)}


# fault: features/slurm/job.sh: [ @REPLICAS@ = 1 ] || front → true
# fault: features/slurm/on_host/job_front.py: if ready != before: → if before is None:
def test_a_replica_that_dies_starts_again_and_the_other_one_serves(replicas: Job) -> None:
    """No request is lost meanwhile; each start is a number and a folder of its own."""
    assert answering(replicas) == {"start-1", "start-2"}
    assert (replicas.ask(key="wrong"), replicas.rank(0, 2) != replicas.rank(0, 1)) == (401, True)
    process = replicas.rank(0, 1)
    os.kill(replicas.rank(0, 2), signal.SIGKILL)
    timed(lambda: answering(replicas, 1) and replicas.ends())
    until(lambda: answering(replicas) - {"start-1", "start-2"}, 60)
    assert (replicas.ends(), replicas.rank(0, 1)) == (["failed ExitCode=137"], process)
    until(lambda: "replicas: 2 of 2 ready" in replicas.asked("status").stdout, 60)
    validate(["slurm", "status"], replicas.asked("status", "--json").stdout)


# fault: features/slurm/jobs.py: "ready" if ready.ready >= ready.replicas else "degraded" → "ready"
# fault: features/slurm/job.sh: ln -sfn "attempt-$VCLUSTER_ATTEMPT" → : "attempt-$VCLUSTER_ATTEMPT"
def test_a_replica_that_is_missing_is_named_and_its_log_found(replicas: Job) -> None:
    """All requests are answered meanwhile; the exit code is that of a cluster with a replica missing."""
    (replicas.folder / "hold").touch()
    os.kill(replicas.rank(0, 2), signal.SIGKILL)
    until(lambda: replicas.asked("status").stdout.startswith(f"job {replicas.number} is degraded: "))
    done = replicas.asked("status")
    assert (done.returncode, "replicas: 1 of 2 ready" in done.stdout, len(answering(replicas))) == (1, True, 1)
    validate(["slurm", "status"], replicas.asked("status", "--json").stdout)
    [last] = replicas.folder.glob("attempt-3")
    until(lambda: (last / "rank-0.log").exists() and "started" in (last / "rank-0.log").read_text())
    printed = {one: json.loads(replicas.asked("logs", "--replica", one, "--json").stdout) for one in "12"}
    assert printed["2"]["start"] == 3
    assert printed["1"]["start"] in (1, 2)
    assert replicas.asked("logs", "--replica", "3").returncode == 3
    (replicas.folder / "hold").unlink()
    replicas.wait_ready()


# fault: features/slurm/script.py: "replica-key" if several → "key" if several
def test_clients_do_not_have_the_key_of_a_replica(replicas: Job) -> None:
    """What is behind the front answers the front alone."""
    keys = [(replicas.folder / name).read_text() for name in ("key", "replica-key")]
    assert {(replicas.folder / name).stat().st_mode & 0o777 for name in ("key", "replica-key")} == {0o600}
    assert [replicas.ask(key=key) for key in keys] == [200, 401]
    assert [replicas.ask(key=key, at="replica-1.json") for key in keys] == [401, 200]
    process = replicas.rank(0, 1)
    assert f"{replicas.folder}/replica-key" in Path(f"/proc/{process}/environ").read_text()


# fault: features/slurm/job.sh: until srun --overlap → while srun --overlap
def test_a_front_that_dies_starts_again(replicas: Job) -> None:
    url = replicas.asked("endpoint").stdout
    os.kill(replicas.process(b"job_front.py"), signal.SIGKILL)
    timed(lambda: not replicas.answers())
    until(replicas.answers, 60)
    assert (answering(replicas), replicas.asked("endpoint").stdout, replicas.ends()) == (
        {"start-1", "start-2"},
        url,
        [],
    )


def test_a_job_of_replicas_fails_once_none_of_them_can_be_ready(cluster: Slurm) -> None:
    found = Job(cluster, *JOB, "--replicas", "2", VLLM_FAILS="1")
    until(lambda: cluster.state(found.number) == "FAILED", 60)
    assert (len(found.ends()), found.asked("status").returncode) == (2, 1)
    assert "no architectures" in found.asked("explain").stdout


def test_what_never_was_ready_is_not_tried_again(cluster: Slurm) -> None:
    found = Job(cluster, VLLM_FAILS="1")
    until(lambda: cluster.state(found.number) == "FAILED")
    done = found.asked("status")
    assert done.returncode == 1
    # Slurm names the highest code of all ranks: 143 where one was ended before Python had started in it.
    assert found.ends() in (["failed ExitCode=1"], ["failed ExitCode=143"])
    assert "is failed: " in done.stdout
    assert "no architectures" in found.asked("explain").stdout
    # One of them may have been ended before it has written a line.
    assert any("no architectures" in found.asked("logs", "--rank", rank).stdout for rank in "01")


# fault: features/slurm/on_host/step.py: if not shutil.which(argv[0]): → if False:
def test_a_vllm_that_is_missing_is_named(cluster: Slurm) -> None:
    found = Job(cluster, PATH=f"{PYTHON}:{SBIN}")
    until(lambda: cluster.state(found.number) == "FAILED", 60)
    # 143 where another one was ended before Python had started in it.
    assert found.ends() in (["failed ExitCode=127"], ["failed ExitCode=143"])
    printed = found.asked("explain").stdout
    assert re.search(r"vcluster: vllm: command not found on n[12]: /", printed), printed
    assert "fix:     load the module of vLLM or of apptainer, or activate the venv, before sbatch" in printed


def test_a_job_that_is_stopped_has_not_failed(cluster: Slurm, job: Job) -> None:
    assert job.asked("stop", "--yes").returncode == 0
    until(lambda: cluster.state(job.number) == "CANCELLED")
    done = job.asked("status")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"job {job.number} is ended: cancelled")
    assert "No start of it has failed." in job.asked("explain").stdout
    assert "had ended" in job.asked("stop", "--yes").stderr


def test_the_time_limit_is_named(cluster: Slurm, job: Job) -> None:
    """Slurm asks the batch script to end before that, and it writes it down."""
    cluster.run("scontrol", "update", f"JobId={job.number}", "TimeLimit=1")
    until(lambda: cluster.state(job.number) in ("COMPLETED", "TIMEOUT"), 180)
    done = job.asked("status")
    assert (done.returncode, done.stdout.splitlines()[0]) == (1, f"job {job.number} is ended: ended by its time limit")


def test_two_jobs_share_the_nodes(cluster: Slurm, job: Job) -> None:
    other = Job(cluster)
    other.wait_ready()
    ports = [json.loads((one.folder / "ready.json").read_text())["port"] for one in (job, other)]
    assert len(set(ports)) == 2
    assert (job.ask(), other.ask(), other.ask(key=(job.folder / "key").read_text())) == (200, 200, 401)
    other.end()


@pytest.mark.deep
def test_a_job_that_is_preempted_is_named(cluster: Slurm, job: Job) -> None:
    cluster.run("scontrol", "update", f"JobId={job.number}", "Requeue=0")
    wrap = "sleep 60"
    first = cluster.run(
        "sbatch", "--parsable", "--partition=first", "--nodes=2", "--exclusive", "--output=/dev/null", f"--wrap={wrap}"
    )
    until(lambda: cluster.state(first) == "RUNNING", 120)
    assert job.asked("status").stdout.splitlines()[0] == f"job {job.number} is ended: preempted"
    cluster.run("scancel", first)


# fault: features/slurm/jobs.py: | sbatch --test-only || exit 3 → | true
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--nodes", "3"), "Requested node configuration is not available"),
        (("--gpus", "9", "--nodes", "1"), "Requested node configuration is not available"),
        (("--sbatch", "partition=none"), "sbatch: error: invalid partition specified: none"),
    ],
)
def test_what_slurm_would_never_start_is_not_submitted(cluster: Slurm, words: tuple[str, ...], text: str) -> None:
    before = cluster.run("squeue", "-h", "-a", "-o", "%i")
    done = run("slurm", *JOB, *words, "--submit", cwd=cluster.folder, **cluster.environment)
    assert (done.returncode, text in done.stderr) == (3, True), done.stderr
    assert cluster.run("squeue", "-h", "-a", "-o", "%i") == before


# fault: features/slurm/jobs.py: *"#SBATCH --output="*) → *"#SBATCH --none="*)
# fault: features/slurm/jobs.py: cd "${{1:-$HOME}}" → cd "$d"
@pytest.mark.parametrize(("words", "output"), [((), "jobs"), (("--sbatch", "output=own.out"), "here")])
def test_a_job_is_submitted_from_the_current_folder(cluster: Slurm, words: Sequence[str], output: str) -> None:
    """A file that the call names, as an image, is found; what the job prints is beside the other jobs'."""
    job = Job(cluster, *JOB, *words)
    shown = cluster.run("scontrol", "show", "job", job.number).split()
    facts = dict(word.split("=", 1) for word in shown if "=" in word)
    printed = {"jobs": cluster.jobs / f"slurm-{job.number}.out", "here": cluster.folder / "own.out"}[output]
    job.end()
    assert (facts["WorkDir"], facts["StdOut"]) == (str(cluster.folder), str(printed))


# fault: features/slurm/render.py: yield to_paste("fix:     ", paste(there("sinfo", Option("-o"), "%P %l %D %G"))) → pass
def test_a_job_that_waits_without_end_has_failed(cluster: Slurm) -> None:
    """Slurm takes a job of more time than its partition allows, and never starts it."""
    found = Job(cluster, *JOB, "--time", "2-00:00:00")
    done = found.asked("status", "--wait", "2m")
    assert (done.returncode, "is failed: Slurm never starts it: PartitionTimeLimit" in done.stdout) == (1, True)
    assert "has no log: no start of vLLM has begun" in found.asked("logs").stderr
    assert f"why:     vcluster slurm explain {found.number}\n" in done.stdout
    explained = found.asked("explain")
    fixes = re.findall(r"^fix: +(.*)$", explained.stdout, re.MULTILINE)
    assert explained.returncode == 0
    assert fixes == ["sinfo -o '%P %l %D %G'", f"vcluster slurm stop {found.number} --yes"]
    assert "main" in cluster.run("bash", "-c", fixes[0])
    found.end()


# fault: features/slurm/jobs.py: pwd -P) || exit 4 → pwd -P) || exit 5
# fault: features/slurm/render.py: and state.output.startswith("/"):  # as → and False:  # as
def test_a_folder_that_cannot_be_written_is_named(cluster: Slurm, tmp_path: Path) -> None:
    """As in a home that is full."""
    (tmp_path / "jobs").write_text("")
    text = run("slurm", *JOB, cwd=tmp_path).stdout
    out = tmp_path / "out"
    there = {**cluster.environment, "VCLUSTER_JOBS": f"{tmp_path}/jobs"}
    one = Slurm(cluster.folder, there)
    number = one.run("sbatch", "--parsable", f"--output={out}", text=text)
    until(lambda: cluster.state(number) == "FAILED")
    assert f"vcluster: cannot write to {tmp_path}/jobs/{number}" in out.read_text()
    done = run("slurm", "explain", number, cwd=tmp_path, **there)
    assert (done.returncode, done.stdout.splitlines()) == (
        1,
        [
            f"job {number} is failed: its batch script, before a start of vLLM",
            "No start of it has failed.",
            f"fix:     tail -- {out}",
        ],
    )
    # Before it is submitted, where vcluster does that.
    done = run("slurm", *JOB, "--submit", cwd=tmp_path, **there)
    assert (done.returncode, "fix: export VCLUSTER_JOBS=" in done.stderr) == (1, True), done.stderr


# fault: features/slurm/action.py: diagnose(seen, together=True) if seen else None, number → diagnose(seen, together=True), number
# fault: kernel/explain/failures.toml: exec: apptainer: not found → exec: apptainer: x
@pytest.mark.parametrize(
    ("container", "shown"),
    [
        (("pyxis", "org/image"), "Its start 1 has no log.\nfix:     tail -- {}/slurm-{}.out\n"),
        (("apptainer", "vllm.sif"), "(vcluster explain program-missing)"),
    ],
)
def test_a_container_that_the_nodes_cannot_run_is_explained(
    cluster: Slurm, container: tuple[str, str], shown: str
) -> None:
    """Slurm here has no pyxis, and no node apptainer: the first fails in srun, before any log."""
    found = Job(cluster, *JOB, "--container", container[0], "--image", container[1])
    until(lambda: cluster.state(found.number) == "FAILED")
    assert shown.format(cluster.jobs, found.number) in found.asked("explain").stdout


# fault: features/slurm/jobs.py: hint = "sbatch --help" if → hint = "" if
def test_an_option_that_sbatch_does_not_know_is_named(cluster: Slurm) -> None:
    done = run("slurm", *JOB, "--sbatch", "foo=bar", "--submit", cwd=cluster.folder, **cluster.environment)
    assert (done.returncode, "fix: sbatch --help\n" in done.stderr) == (3, True), done.stderr


def test_an_inventory_has_the_nodes_and_gpus_of_a_job(
    cluster: Slurm, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    text = f"version: 1\ncluster: lab\nimage: vllm\nmodel_cache: /srv/models\nhosts_from: slurm:{job.number}\n"
    found = load_text(text.encode(), path=None, cwd=cluster.folder)
    assert {name: len(host.gpus or ()) for name, host in found.hosts.items()} == {"n1": 1, "n2": 1}  # type: ignore[arg-type]
    assert found.lent_until is not None
    assert 0 < found.lent_until - time.time() <= 600


def test_every_command_of_the_page(cluster: Slurm, tmp_path: Path) -> None:
    """In its order, by a person on the login node; the number of the job is that which Slurm gives."""
    text = (ROOT / "docs/slurm.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    number, environment = "1", {**cluster.environment, "PATH": f"{VCLUSTER.parent}:{cluster.environment['PATH']}"}
    for block in blocks:
        words = re.sub(r"(?<=slurm )(\w+) 1\b", rf"\1 {number}", block)
        if ">answers.jsonl" in words:
            # What several programs write into one file at once is mixed, and in another order.
            (tmp_path / "requests.jsonl").write_text("".join(f'{{"prompt": "id {one}"}}\n' for one in range(40)))
        done = subprocess.run(
            ["bash", "-ec", words],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0 or "explain" in words, f"$ {words}\n{done.stdout}{done.stderr}"
        if found := re.search(r"Submitted job (\d+)", done.stdout):
            number = found[1]
    assert subprocess.run(["bash", "-n", tmp_path / "job.sh"], check=False).returncode == 0
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    assert [one["asked"] for one in answers] == [f"id {one}" for one in range(40)]
    assert (tmp_path / "auth").stat().st_mode & 0o777 == 0o600


@pytest.mark.deep
@pytest.mark.timeout(3600)
def test_the_real_engine_over_two_nodes(tmp_path: Path) -> None:
    """vLLM's CPU build, TP=2 over both: a token, sampling, logprobs; a killed rank, a token again; a stopped rank."""
    program, environment = engine()
    with slurm(tmp_path, program, environment) as found:
        words = (
            "--nodes",
            "2",
            "--gpus",
            "1",
            "--tp",
            "2",
            "--pp",
            "1",
            "--sbatch",
            "cpus-per-task=2",
            "--time",
            "1:00:00",
        )
        job = Job(found, TINY, *words, "--", "--enforce-eager", "--max-model-len", "256")
        job.wait_ready("20m")
        answer = job.answer({"model": TINY, "prompt": "The head", "max_tokens": 4, "temperature": 0.7, "logprobs": 2})
        [choice] = answer["choices"]
        # The two best, and the one that was drawn where it is none of them.
        assert {len(one) for one in choice["logprobs"]["top_logprobs"]} <= {2, 3}
        os.kill(job.rank(1), signal.SIGKILL)
        began = time.monotonic()
        timed(job.ends)
        seconds = time.monotonic() - began
        job.wait_ready("20m")
        assert job.ends() == ["failed ExitCode=137"]
        assert job.answer({"model": TINY, "prompt": "The head", "max_tokens": 4})["usage"]["completion_tokens"] == 4
        assert seconds < 2 * END_SECONDS, f"{seconds:.1f} s"
        os.kill(job.rank(1), signal.SIGSTOP)
        began = time.monotonic()
        timed(lambda: len(job.ends()) > 1)
        assert time.monotonic() - began < HANG_SECONDS


def test_a_job_of_which_nothing_is_known(cluster: Slurm) -> None:
    done = run("slurm", "status", "4711", cwd=cluster.folder, **cluster.environment)
    assert (done.returncode, "knows of job 4711" in done.stderr) == (3, True)
