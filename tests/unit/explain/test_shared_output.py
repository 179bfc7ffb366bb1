"""What else is in the file of a failure: progress bars, headings, other jobs, and what works without a part."""

from __future__ import annotations

import pytest

from tests.support.logs import explained
from vllm_cluster.kernel.explain.scan import LogSource, scan

BAR = "Capturing batches (bs=448 avail_mem=87.41 GB):   8%|█▋      | 4/51 [00:20<03:35,  4.59s/it]"
LOST = (
    '[2026-11-03 10:00:00] Controller hit an exception: Traceback (most recent call last):\n  File "/a/b.py", line 9\n'
)
EMPTY = "OSError: /models/org does not appear to have a file named config.json. Checkout 'https://huggingface.co//x'\n"
TRACE = 'Traceback (most recent call last):\n  File "/a.py", line 9, in f\n'
POST = 'INFO:     10.0.0.1:33022 - "POST /act HTTP/1.1" 200 OK\n'
CANCELLED = "slurmstepd: error: *** JOB {0} ON dgx-{0} CANCELLED AT 2026-11-{0}T10:00:00 ***\n"


def named(text: str) -> tuple[str, str]:
    found = explained(text, together=False)
    return found.result, found.named.failure.slug if found.named else ""


# fault: kernel/explain/log_line.py: return bar.end() if bar else at → return at
@pytest.mark.parametrize("bar", ["", BAR, f"{BAR}{BAR}"])
def test_what_follows_a_progress_bar_is_a_line_of_its_own(bar: str) -> None:
    """The rank that crashed comes before the parent that lost it, also behind a bar."""
    crash = f"{bar}Fatal Python error: Segmentation fault\n\nThread 0x00007ee0 (most recent call first):\n"
    assert named(f"{crash}{LOST}EOFError\n") == ("symptom", "rank-killed")
    glued = f"{bar}[rank0]:[E1103 10:00:00.1 ProcessGroupNCCL.cpp:1] [Rank 0] Frob is broken\n"
    assert [line.process for line in explained(glued).error_lines] == ["rank0"]


# fault: kernel/explain/frame.py: begun = frames or below > MAX_BETWEEN or → begun = True or
def test_a_line_of_another_library_does_not_end_a_traceback() -> None:
    text = f"{BAR}{TRACE}".replace("\n", "\nUnsloth: Will offload gradients\n", 1)
    assert named(f"{text}    loss.backward()\nKeyboardInterrupt\n") == ("nothing", "")
    assert named(f"{text}    loss.backward()\nqueue.Empty\n") == ("exception", "")


# fault: kernel/explain/prefix.py: if found and name and not → if found and not
def test_a_line_of_dashes_names_no_host() -> None:
    """What follows is of the same one: the next job, or the server that has started again."""
    text = f"{EMPTY}{'-' * 96}\n\n{'-' * 96}\nFrobError: no\n"
    assert scan(LogSource("a.log", [(1, text.encode())])).streams == []
    assert [one.host for one in scan(LogSource("a.log", [(1, b"FrobError: no\n--- gpu2 ---\n" * 2)])).streams]


# fault: kernel/explain/slurm_ends.py: time > self._job + ENDING → time < self._job
# fault: kernel/explain/slurm_ends.py: self._job = time → self._job = None
def test_of_several_jobs_in_one_file_the_last_one_counts() -> None:
    served = f"Tue Nov 03 09:00:00 2026\n{POST}{CANCELLED.format('03')}"
    failed = f"2026-11-04 09:00:00,123 I begin\n{TRACE}FrobError: no\n"
    assert named(served) == ("nothing", "")
    assert named(served + failed) == ("exception", "")
    assert named(served + failed + CANCELLED.format("04"))[0] == "exception"
    assert named(served + failed + CANCELLED.format("04") + CANCELLED.format("05")) == ("symptom", "job-cancelled")


# fault: kernel/explain/progress.py: (?:[Cc]ontinuing|[Pp]roceeding) without → continuing without
def test_what_proceeds_without_a_file_has_not_failed() -> None:
    lacks = "Failed to load generation config for /m: /m does not appear to have a file named generation_config.json."
    hub = (
        " Checkout 'https://huggingface.co//m/tree/main' for available files.. Proceeding without generation config.\n"
    )
    ended = f"{TRACE}FileNotFoundError: [Errno 2] No such file or directory: '/psm_3'\n"
    assert named(lacks + hub + ended) == ("exception", "")
    assert named(lacks + hub) == ("nothing", "")


FULL = "(raylet) [2026-11-03 10:00:00,730 E 4 5] (raylet) file_system_monitor.cc:1: /tmp is over 95% full, available\n"
BACKEND = "(WorkerDict pid=4) INFO 11-03 10:00:00 config.py:887] Defaulting to use ray for distributed inference\n"


# fault: kernel/explain/stream.py: if found and all(known.kind is SignKind.NOTE → if found and all(known.kind is None
# fault: kernel/explain/ranks.py: "Defaulting to use ", → "Frob",
def test_a_note_at_the_level_of_errors_ends_no_start() -> None:
    found = explained(FULL + BACKEND + FULL)
    assert (found.result, [one.failure.slug for one in found.notes]) == ("unfinished", ["disk-full"])
    assert explained(FULL + BACKEND + FULL.replace("/tmp is over 95% full", "frob")).result == "unknown"
    assert explained(FULL).result == "unknown"


# fault: kernel/explain/frame.py: above.who == line.who and above.words.endswith(":") → False
# fault: kernel/explain/log_line.py: \((pid=\d{1,9}|[A-Za-z] → \(([A-Za-z]
@pytest.mark.parametrize("who", ["", "(pid=458471) ", "(main_task pid=4) "])
def test_a_warning_announces_no_failure(who: str) -> None:
    warns, lacks = f"{who}/a/connections.py:8: RuntimeWarning: Failed to read it:\n", "No module named 'vllm._frob'\n"
    assert named(f"{warns}{who}{lacks}") == ("nothing", "")
    assert named(f"{warns.replace('it:', 'it')}{who}{lacks}") == ("unknown", "")
    assert named(f"{warns}(other pid=5) {lacks}") == ("unknown", "")


TASK, LOOP = "(TaskRunner pid=3) ", "(LoopWorker pid=5) "
ODD = f"{LOOP}Error: <answer> tag not found.\n{LOOP}ValueError: step {{0}} - extract action failed from: frob {{0}}\n"


# fault: kernel/explain/scan.py: [at] if of_mark or mark is not progress.STEP else [] → [at]
# fault: kernel/explain/stream.py: self.seen.outlive(line.parsed.words for line in self._trouble) → pass
# fault: kernel/explain/weighing.py: if seen.failing or not forms → if True or not forms
# fault: kernel/explain/weighing.py: if seen.failing or not forms.issuperset(map(form_of, texts)): → if seen.failing or not forms:
def test_an_error_after_which_a_training_makes_further_steps_is_not_its_end() -> None:
    """Also where the same comes again; what comes for the first time may be the end, and so may what is known."""
    steps = [f"{TASK}step:{at} - training/global_step:{at} - timing_s/gen:20.1\n" for at in range(1, 4)]
    went_on = ODD.format(0) + steps[0] + ODD.format(1) + steps[1] + steps[2] + ODD.format(2)
    assert named(went_on)[0] == "healed"
    # What is written of a step that was under way shows nothing.
    assert named(ODD.format(0) + steps[0])[0] == "exception"
    assert named(f"{went_on}{LOOP}ValueError: another frob\n")[0] == "exception"
    assert named(f"{went_on}{LOOP}RuntimeError: {'NCCL error: unhandled system error'}\n")[0] == "symptom"
