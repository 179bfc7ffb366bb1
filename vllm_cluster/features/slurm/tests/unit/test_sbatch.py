"""The options of a stranger's batch script: taken over, or dropped with the reason; none of them without a word."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.bounds import within
from tests.support.in_process import Finished, run
from tests.support.paths import ROOT
from vllm_cluster.features.slurm import action
from vllm_cluster.features.slurm.render import job_fix
from vllm_cluster.features.slurm.sbatch import JobRequest, merged
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.serving.fit.layouts import Workload
from vllm_cluster.serving.serve.translated import RequestSource
from vllm_cluster.wire.order import Deployment

OLD = """#!/bin/bash
#SBATCH --job-name=llama
#SBATCH -N 2 -p gpu   # two nodes
#SBATCH --ntasks-per-node=4 --gres=gpu:h100:4
#SBATCH --cpus-per-task=8 --mem 200G
#SBATCH -t04:00:00 --exclude=n7 --array=1-2 --requeue
module load cuda
srun vllm serve org/model -tp 4 -pp 2 --nnodes 2 --node-rank $SLURM_PROCID
"""
ROWS = {
    "--job-name=llama": "--sbatch job-name=llama",
    "--nodes=2": "--nodes 2",
    "--partition=gpu": "--sbatch partition=gpu",
    "--ntasks-per-node=4": "dropped",
    "--gres=gpu:h100:4": "--gpus h100:4",
    "--cpus-per-task=8": "--sbatch cpus-per-task=32",
    "--mem=200G": "--sbatch mem=200G",
    "--time=04:00:00": "--time 04:00:00",
    "--exclude=n7": "--sbatch exclude=n7",
    "--array=1-2": "dropped",
    "--requeue": "dropped",
}


def taken(folder: Path, text: str, *words: str) -> Finished:
    """The call with this script."""
    (folder / "old.sh").write_text(text)
    return run("slurm", "--from", "old.sh", *words, cwd=folder)


def directives(printed: str) -> set[str]:
    """The options of a script."""
    return set(re.findall(r"^#SBATCH --(.*)$", printed, re.MULTILINE))


# fault: features/slurm/verb.py: rows=rows, → rows=(),
# fault: features/slurm/sbatch.py: "cpus-per-task": tasks} → "cpus-per-task": 1}
def test_the_options_of_a_script_are_taken_over_or_dropped_by_name(tmp_path: Path) -> None:
    done = taken(tmp_path, OLD)
    table = dict(re.findall(r"^(--\S+) +(\S.*?)(?:  .*)?$", done.stderr, re.MULTILINE))
    assert {given: here.strip() for given, here in table.items() if given in ROWS} == ROWS
    assert directives(done.stdout) == {
        *("job-name=llama", "nodes=2", "ntasks-per-node=1", "gpus-per-node=h100:4", "time=04:00:00"),
        *("cpus-per-task=32", "mem=200G", "requeue", "open-mode=append", "signal=B:TERM@60"),
        *("partition=gpu", "exclude=n7"),
    }


# fault: features/slurm/sbatch.py: ("export", "export-file", "get-user-env") → ()
# fault: features/slurm/sbatch.py: lambda line: not line.strip() or line.startswith("#") → lambda line: True
def test_no_variable_of_a_script_and_nothing_below_its_first_command_is_taken_over(tmp_path: Path) -> None:
    """As sbatch reads it; a variable could name another hub, which would get the token of whoever submits it."""
    text = "#!/bin/bash\n#SBATCH --nodes=1 --gpus=1 --time=1:00:00\n\n# x\n#SBATCH --export=ALL,HF_ENDPOINT=http://hub.example\n"
    done = taken(tmp_path, text + "vllm serve org/model\n#SBATCH --partition=late\n")
    assert directives(done.stdout) > {"nodes=1", "time=1:00:00"}, done.stderr
    assert not {one for one in directives(done.stdout) if one.startswith(("export", "partition"))}
    assert "export them before sbatch" in done.stderr


# fault: features/slurm/sbatch.py: (name not in _OVER or (name → (not name or (name
def test_an_option_of_a_plugin_is_not_taken_over_from_a_script(tmp_path: Path) -> None:
    """With pyxis these run the job in an image of whoever wrote the script, with the home of whoever submits it."""
    mounts = "#SBATCH --container-image=docker://evil/image\n#SBATCH --container-mounts=/home:/home\n"
    done = taken(tmp_path, f"#!/bin/bash\n{mounts}#SBATCH --account=lab\nvllm serve org/model\n")
    assert "account=lab" in directives(done.stdout), done.stderr
    assert not {one for one in directives(done.stdout) if one.startswith("container")}
    assert "where you trust it: --sbatch container-mounts=VALUE" in done.stderr
    given = taken(tmp_path, f"#!/bin/bash\n{mounts}vllm serve org/model\n", "--sbatch", "container-mounts=/data:/data")
    assert "container-mounts=/data:/data" in directives(given.stdout)


BEFORE = """#!/bin/bash -l
#SBATCH -N 2 --gres=gpu:8
module load cuda/12.8
eval "$(conda shell.bash hook)"
  conda activate vllm
export HF_HOME=/scratch/hf NCCL_DEBUG=INFO
export HF_TOKEN=hf_abcdef CUDA_VISIBLE_DEVICES=0,1
srun --container-image=vllm/vllm-openai:v0.32.0 ray symmetric-run --address $HEAD:6379 -- \\
  singularity exec --nv vllm.sif vllm serve org/model --distributed-executor-backend ray --port 8000 --api-key x
"""


# fault: features/slurm/verb.py: , reasoned=of_job →
# fault: features/slurm/sbatch.py: rows += _before_vllm(text, own, reading) → pass
def test_the_reasons_are_those_of_a_job(tmp_path: Path) -> None:
    """It has no inventory, and none of what a script does before vLLM is left out without a row."""
    shown = taken(tmp_path, BEFORE).stderr
    assert "inventory" not in shown
    rows = dict(re.findall(r"^(\S.*?)  +(?:dropped|not taken) +(\S.*)$", shown, re.MULTILINE))
    load = "do it before sbatch, or where the job's script marks it"
    assert rows == {
        "module load cuda/12.8": load,
        'eval "$(conda shell.bash hook)"': load,
        "conda activate vllm": load,
        "--container-image=vllm/vllm-openai:v0.32.0": "--container pyxis --image IMAGE does this",
        "singularity exec": "--container apptainer --image FILE does this",
        "--distributed-executor-backend ray": "vLLM spans the nodes by itself",
        "--port 8000": "the job finds a free port",
        "--api-key": "the job makes a key",
        "CUDA_VISIBLE_DEVICES": "Slurm sets it",
        "HF_HOME": "export it before sbatch",
        "HF_TOKEN": "export it before sbatch",
        "NCCL_DEBUG=INFO": "export it before sbatch",
    }


# fault: features/slurm/sbatch.py: if given.get(key): → if False:
def test_the_line_below_the_table_gives_the_same_script(tmp_path: Path) -> None:
    words = ["--nodes", "4", "--replicas", "2", "--sbatch", "partition=long", "--container", "apptainer"]
    words += ["--image", "a"]
    done = taken(tmp_path, OLD, *words)
    assert {"nodes=4", "partition=long"} < directives(done.stdout)
    assert done.stderr.count("this call gives another") == 2
    line = re.search(r"^the same: vcluster (.*)$", done.stderr, re.MULTILINE)
    assert line
    script = "import sys; sys.argv = ['vcluster', *sys.argv[1:]]\nfrom vllm_cluster.cli.main import main; main()"
    again = subprocess.run(
        ["bash", "-c", f'"$0" -c "$1" {line[1]}', sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert again.stdout == done.stdout


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("#SBATCH --gpus=16 --nodes=2", "--nodes 2 --gpus 8"),
        ("#SBATCH --gpus-per-task=1 --ntasks-per-node=8", "--nodes 1 --gpus 8"),
        ("#SBATCH --gres=gpu:4 -A lab", "--nodes 1 --gpus 4 --sbatch account=lab"),
        ("#SBATCH --gres=lustre:1 --hold", "--nodes 1"),
        ("#SBATCH --exclusive --mem=0 --cpus-per-task=96", "--nodes 1"),
        ("#SBATCH --mem-per-cpu=4G --ntasks=16", "--nodes 1"),
        ("# SBATCH --nodes=2", "--nodes 1"),
    ],
)
def test_what_options_mean_for_one_task_a_node(lines: str, words: str) -> None:
    assert " ".join(merged(lines, "old.sh", JobRequest())[0].words) == words


# fault: features/slurm/script.py: "time": job.time_limit} → "time": job.time}
def test_a_time_that_sbatch_cannot_read_is_named(tmp_path: Path) -> None:
    """The script is printed first, and submitted by hand."""
    for time in ("90", "4:00", "4:00:00", "1-12", "1-12:30", "1-12:30:00", "UNLIMITED"):
        assert run("slurm", "org/model", "--time", time, cwd=tmp_path).returncode == 0, time
    for time in ("4h", "4:00:00:00", "1-", "", "4 hours", "-1"):
        done = run("slurm", "org/model", f"--time={time}", cwd=tmp_path)
        assert (done.returncode, "fix: use --time 4:00:00" in done.stderr) == ((2, True) if time else (0, False)), time


@pytest.mark.parametrize("line", ["--nodes=2-4", "--comment='x", "gpu", "-Z1"])
def test_a_line_that_cannot_be_read_is_named(line: str) -> None:
    with pytest.raises(UsageError, match=r"old\.sh"):
        merged(f"#SBATCH {line}\n", "old.sh", JobRequest())


# fault: features/slurm/render.py: (r"vcluster serve\b", "vcluster slurm"), →
# fault: features/slurm/render.py: if not _NOT_THERE.search(one)) → )
# fault: features/slurm/render.py: |gpus|model_cache|hcas|interface) → |gpus)
# fault: features/slurm/render.py: (r"vcluster fit MODEL", "vcluster fit MODEL --gpus 2x8 --gpu-memory 80GB"), →
def test_a_fix_for_a_job_names_nothing_of_a_cluster() -> None:
    """No inventory, Docker or folder of Ray, and of vcluster what works with a job."""
    for slug, failure in FAILURES.items():
        fix = job_fix(failure)
        assert not re.search(r"/tmp/ray|inventory|docker|vcluster (?!slurm|fit|explain)", fix), slug
        assert not re.search(r"\b(?:environment|image|ports|gpus|model_cache|hcas|interface):", fix), slug
        # Without an inventory it needs the GPUs.
        assert "vcluster fit MODEL" not in fix or "vcluster fit MODEL --gpus 2x8 --gpu-memory 80GB" in fix, slug
    assert job_fix(FAILURES["kv-cache-no-room"]).splitlines()[0] == (
        "vcluster slurm MODEL -- --gpu-memory-utilization 0.95"
    )


# fault: kernel/backends/seam.py: from dataclasses import dataclass, field → import pydantic; from dataclasses import dataclass, field
def test_a_script_is_printed_without_the_library_of_the_inventory(tmp_path: Path) -> None:
    """It takes as long to load as all the rest, and a person waits for it before each job."""
    script = "import sys; from vllm_cluster.cli.main import main\ntry: main()\n"
    script += "finally: print(*sys.modules, file=sys.stderr)"
    argv = [sys.executable, "-c", script, "slurm", "org/model"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=True)
    loaded = done.stderr.split()
    assert ("vllm_cluster.features.slurm.script" in loaded, "pydantic" in loaded) == (True, False)


# fault: features/slurm/sbatch.py: "exclusive": "the job takes whole nodes" → "exclusive": "x"
def test_the_page_shows_what_becomes_of_its_script(tmp_path: Path) -> None:
    page = (ROOT / "docs/slurm-scripts.md").read_text()
    script, shown = (page.partition(f"```{begin}")[2].partition("```")[0] for begin in ("bash\n", "\n$ vcluster "))
    (tmp_path / "old-job.sh").write_text(script)
    done = run("slurm", "--from", "old-job.sh", cwd=tmp_path)
    assert shown == f"slurm --from old-job.sh >job.sh\n{done.stderr}"


# fault: features/slurm/sbatch.py: name in _OUTPUTS and not _LOG.fullmatch(value) → False
@pytest.mark.parametrize(
    ("value", "over"),
    [
        ("logs/serve-%j.out", True),
        ("/scratch/me/%4A", True),
        ("slurm.err", True),
        ("/dev/null", True),
        (".bashrc", False),
        ("/home/me/.zshenv", False),
        ("/home/me/.config/x.log", False),
        ("../notes.log", False),
        ("/home/%u/thesis.tex", False),
        ("results.json", False),
    ],
)
@pytest.mark.parametrize("name", ["output", "error"])
def test_a_script_chooses_no_file_of_a_persons_for_the_output(name: str, value: str, *, over: bool) -> None:
    """What the job prints is added to it; only what a log is called is taken over."""
    job, (row,) = merged(f"#SBATCH --{name}={value}\n", "old.sh", JobRequest())
    assert (dict(job.others), row.kind) == (({name: value}, "taken") if over else ({}, "dropped"))
    assert over or row.why == f"where you trust it: --sbatch {name}=VALUE"


# fault: features/slurm/sbatch.py: if len(line[1]) > MAX_LINE: → if False:
# fault: features/slurm/sbatch.py: reading.spend("rows", 1, 1 + → reading.spend("rows", 0, 1 +
# fault: features/slurm/sbatch.py: reading.spend("rows", 1, number) → pass
@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("#SBATCH " + "-p " * 80_000, "old.sh:1: longer than 4096 characters"),
        ('#!/bin/sh\n#SBATCH --comment="' + "a" * 200_000, "old.sh:2: longer than 4096 characters"),
        ("#SBATCH -p a -q b\n" * 14_000, "old.sh:1001: more than 2000 options, variables and lines of setup"),
        ("module load x\n" * 18_000, "old.sh:2001: more than 2000 options, variables and lines of setup"),
        ("srun --container-image=a\n" * 10_000, "old.sh:2001: more than 2000 options"),
        ("module load x\n" * 20_000, "old.sh: longer than 256 kB"),
    ],
    ids=["words", "quote", "options", "modules", "images", "long"],
)
def test_a_script_of_any_length_is_refused_in_a_moment(text: str, error: str) -> None:
    """A line of 250 kB was read in the square of its words, and each module load became a row."""
    with within(5), pytest.raises(UsageError, match=re.escape(error)):
        merged(text, "old.sh", JobRequest())


# fault: serving/serve/translated.py: text_of(Path(source), MAX_BYTES, INSTEAD) → text_of(Path(source))
# fault: serving/api/question.py: read_given(expanded(path), most + 1) → read_given(expanded(path), 1 << 26)
def test_of_a_file_no_more_is_read_than_may_be_used(tmp_path: Path) -> None:
    """It was 64 MiB, in which the lines of sbatch were looked for first."""
    (tmp_path / "old.sh").write_text("#SBATCH -p a\n" * 1_000_000)
    with within(5, megabytes=2), pytest.raises(UsageError, match="longer than 256 kB") as refused:
        _ = RequestSource(str(tmp_path / "old.sh")).text
    assert refused.value.hint == "give only the command that serves"


# fault: kernel/text.py: and len(text) <= MAX_DIGITS else → else
@pytest.mark.parametrize("length", ["9" * 5000, "\u0661"])
def test_a_length_that_is_none_is_not_counted(length: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Deployment("m", "org/m", ("--max-model-len", length), 1, 1)
    taken: list[Workload] = []

    def fit(_model: str, workload: Workload, *_: object, **_more: object) -> None:
        taken.append(workload)
        raise PreflightFailed("asked")

    monkeypatch.setattr(action, "fit", fit)
    with pytest.raises(PreflightFailed, match="asked"):
        action.ensure_fits(asked, JobRequest(1, "1", "1:00:00"), "80GB", lambda _: None)
    assert taken == [Workload(0)]
