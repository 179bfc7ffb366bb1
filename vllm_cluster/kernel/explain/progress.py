"""Lines that show how far a start is, where one begins, and what any trouble looks like."""

from __future__ import annotations

import re

# Work has continued; the strong ones show that the server answers and has survived what failed before.
PROGRESS = (
    "Starting to load model",
    "shards:",
    "Loading weights took",
    "Available KV cache memory",
    "KV cache size:",
    "init engine (profile",
    "Capturing CUDA graph",
    "Graph capturing finished",
    "Dynamo bytecode transform",
    "Compiling a graph for",
    "finish build [",
    "Autotuning process",
    "is assigned as DP rank",
    "Init COMPLETE",
    "vLLM is using nccl",
)
READY = "Application startup complete"
# A program without a server has its answers so far in the bar of its prompts.
# A training that samples from its engines has their answers with each step, which takes all of its processes. What is
# written of one may be late: only the step after it shows that work went on.
STEP = b" step:"
STRONG = (READY.encode(), b'"POST /', b"est. speed input: ", STEP)
ANSWERED = re.compile(
    rb'Application startup complete|"POST /[^"\n]{1,300}" 200|est\. speed input: (?!0\.00 )\d| step:[1-9]\d{0,8} - \w'
)
# These only announce a traceback, whose last line names what happened.
ANNOUNCED = (
    "Traceback",
    "Error in ",
    "Exception in worker",
    "Exception in ASGI application",
)
# A new start of vLLM: every line before it belongs to an earlier run.
START = ("vLLM API server version", "non-default args:")
# What was started so does not answer: its head does.
HEADLESS = re.compile(r"'headless': True|--headless\b")
# The node program writes this, in the log that holds all attempts.
OWN_START = "vcluster starts vLLM"
# vLLM is stopped by a request: from here on its processes end, and write so.
OWN_STOP = "vcluster stops vLLM"
# An engine that has started ends, of which nothing can follow that one never did.
IN_ORDER, NOT_STARTED = "Shutdown initiated (timeout=", "Engine core initialization failed"
# The same, asked for by docker stop, an orchestrator, a launcher or a script that is done; after a failure it is only
# its end.
# An engine reports a signal also where the API server sends it; an API server that is asked to end reports that before.
TO_AN_ENGINE = "EngineCore: trigger received signal=SIG"
SIGNALLED = (
    *("API server: shutdown triggered", "trigger received signal=SIG", IN_ORDER),
    *("srun: interrupt (one more within", "ZMQ RPC Server was interrupted"),
)
# Slurm writes this of a job that was cancelled by hand; of one that Slurm itself ends it adds why.
CANCELLED = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT [\dT:-]+ \*\*\*")
JOB_ENDED = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT ")
# A step ends so by hand, and when one of its tasks fails: of that srun writes before, so both lines are needed.
STEP_CANCELLED = re.compile(r"\*\*\* STEP [\w.+]+ ON \S+ CANCELLED AT [\dT:-]+ \*\*\*")
STEP_ABORTED = re.compile(r"srun: Job step aborted: Waiting up to \d+ seconds for job step to finish\.$")
# What Python raises at Ctrl-C, and vLLM at SIGTERM while it starts.
INTERRUPTED = "KeyboardInterrupt"
GROUP_START = ("Ray runtime started",)
# A process of vLLM ends its own: what it reports of them from here on it has done itself, and why, it may write later.
ENDS_ITS_OWN = re.compile(r"\[shutdown\] (?:Executor|Process manager|Subprocess manager|MPClient)\b")
# One of these is in each line by which vLLM or Ray starts, or is asked to end.
TURNS = (*START, OWN_START, OWN_STOP, *SIGNALLED, " CANCELLED AT ", "Job step aborted", "[shutdown] ", *GROUP_START)

# From here on a line names what is possible, and not what was seen: lists of reasons, and guesses of programs.
POSSIBLE = re.compile(
    r"Possible reasons include|There are some potential root causes|Some common causes include"
    r"|(?i:\bit is possible that\b"
    r"|\b(?:may|might|could|can) (?:also )?(?:have been |be )?(?:caused by|due to|because|the result of)\b"
    r"|\b(?:probably|possibly|usually|typically|commonly|most likely) (?:caused by|due to|because|happens|means)\b)"
)
# A command that a person or a shell repeats: what it is given has not happened.
COMMAND = re.compile(r"\+{1,4} \w|\$ \S|[\[(]?[\w.-]{1,60}@[\w.-]{1,80}(?::|\s)[^$#]{0,120}[$#] \S")

# What begins a line that reports a failure of any kind.
_TROUBLE = re.compile(
    r"Traceback \(|[\w.]{0,120}(?:Error|Exception|Exit)\b:?|(?:\w{1,40}\.){1,8}(?:errors|exc|exceptions)\.\w+: "
    r"|Killed\b|Aborted\b|\[[\d\- :,.]{19,27} [EFC] |\[[EF]\d{3,4} \d\d:"
)
# What shows such a line anywhere in it, and what only does so as a word of its own.
_ANYWHERE = ("panic:", "Segmentation fault", "core dumped")
_WORDS = ("ERROR", "CRITICAL", "FATAL", "NCCL WARN", "Error:", "error:", ": error")

# How torch writes where it was: the failure itself is in the line above.
_STACK = ("frame #", "Exception raised from ")

# What ssh, Docker, the kernel, daemons and C++ libraries write when they fail: no word ERROR, no level.
QUIET_WORDS = (
    *("FAILED rc=", "non-zero status", "not accessible, exiting", "segfault at", "Main process exited", "UFW BLOCK"),
    *("Failed with result", "sending SIG", "terminate called after", "error while loading shared libraries"),
    *("No route to host", "Permission denied", "what():", "Error response from daemon"),
    *("Failed: Cuda error", "Assertion `", "Assertion failed:", "failed to start.", "CrashLoopBackOff"),
)
# How programs without levels report a failure: only where nothing else is found.
FAILED = (
    *("fail", "fails", "failed", "failure", "failures", "error", "errors", "exception", "fatal", "cannot", "can't"),
    *("couldn't", "could not", "unable", "denied", "refused", "rejects", "rejected", "crash", "crashed", "crashes"),
    *("crashing", "abort", "aborts", "aborted", "panic", "panicked", "killed", "oom", "unhealthy", "invalid"),
    *("timed out", "unsupported", "unreachable", "corrupt", "corrupted", "insufficient", "mismatch", "mismatched"),
    *("evicted", "segfault", "fault", "died", "lost", "no such", "no module named", "out of memory"),
    *(f"not {word}" for word in ("supported", "found", "allowed", "permitted", "installed", "enough", "valid")),
)
# The word by which a line with an exit code is found.
EXIT = ("exit", "exited")
_FAILED = re.compile(
    # A logger may be called so: uvicorn.error.
    rf"(?<!\w\.)\b(?:{'|'.join(FAILED)}|exit(?:ed)?(?: with)?(?: (?:code|status))?[ =:]{{1,3}}\(?-?[1-9]\d{{0,2}})\b"
)
_CALM = re.compile(
    r"(?i)^\W{0,4}(?:info|debug|warn(?:ing)?|trace|notice)\b|^\[?[diw]\d{3,4} \d\d:"
    r"|\b(?:level|severity)\W{1,3}\"?(?:info|debug|warn)"
    r"|\bNCCL (?:INFO|TRACE)\b|\bwarning\b|\b(?:no|0|without|zero) (?:\w+ )?(?:errors?|failures?|failed)\b"
    r"|\b(?:errors?|fail\w*|exceptions?|killed|lost|oom\w*)\W{1,4}(?:0|none|null|false|\{\}|\[\])"
    r"|\berrors?\"?: \"\"(?!\w)|\bfault.tolera"
    r"|\b(?:failed|invalid|lost|aborted|rejected|killed) (?:\w{1,20} ){0,2}\w{1,20}:\s{1,60}0(?:\.0{1,9})?$"
    r"|\b(?:if|when|unless|retry|retrying|ignor\w+|fallback|falling back|skipp\w+|--\w)\b"
)
# What is below the heading of a list that is empty.
_NONE = re.compile(rb"\s{0,20}\W?(?:no|none|nothing|n/a)\b")
# A part of vLLM takes another way than it would: what the line names is missing, and nothing fails by it.
GIVES_WAY = re.compile(
    r"alling back to|^[^A-Za-z]{0,40}(?:Ignor(?:e|ed|ing)|Skipp(?:ed|ing)|Retrying)\b"
    r"|\b(?:skipping|ignoring|disabling|(?:[Cc]ontinuing|[Pp]roceeding) without)\b"
    r"|\bwill be (?:skipped|ignored|disabled)\b"
)
# The server ends by this, though it still writes of its requests.
DEAD = "EngineDeadError"
# A process leaves: from here on, lost connections do not count.
LEAVES = "destroy_process_group() was not called"
# An engine's regular report.
RATES = "Avg generation throughput:"
ENGINE = re.compile(r"Engine \d{1,5}")
IDLE = re.compile(r"prompt throughput: 0\.0 tokens/s, Avg generation throughput: 0\.0 tokens/s, Running: [1-9]")


def is_trouble(words: str) -> bool:
    """Whether a line reports a failure of any kind."""
    if words.startswith(_STACK):
        return False
    if _TROUBLE.match(words):
        return True
    if any(map(words.__contains__, _ANYWHERE)):
        return True
    marks = [mark for mark in _WORDS if mark in words]
    return bool(marks) and any(_is_word(mark, words) for mark in marks)


def _is_word(mark: str, words: str) -> bool:
    """Whether a mark is in a line, and its letters are a word there, or the end of one."""
    before, after = mark[0].isalpha(), mark[-1].isalpha()
    at = words.find(mark)
    while at >= 0:
        end = at + len(mark)
        if not (before and _is_in_word(words[at - 1 : at])) and not (after and _is_in_word(words[end : end + 1])):
            return True
        at = words.find(mark, at + 1)
    return False


def _is_in_word(letter: str) -> bool:
    return letter == "_" or letter.isalnum()


def announces(words: str) -> bool:
    """Whether a line only announces a traceback; Uvicorn writes its level before it."""
    return words.removeprefix("ERROR:").lstrip().startswith(ANNOUNCED) or words.endswith("(most recent call last):")


def may_fail(words: str, below: bytes) -> bool:
    """Whether a line has a word of failure, and none that takes it back; a frame of code is called anything."""
    if words.startswith('File "') or not _FAILED.search(words.lower()):
        return False
    return not _CALM.search(words) and not (words.endswith(":") and _NONE.match(below))


def asks_to_end(words: str, *, alive: bool) -> bool:
    """Whether vLLM is asked to end by this line; a job is cancelled for many reasons until its server answers."""
    return any(map(words.__contains__, SIGNALLED)) or (alive and CANCELLED.search(words) is not None)
