"""Exceptions that only carry another one, loggers of people's own, and warnings above an exception."""

from __future__ import annotations

import pytest

from tests.support.logs import explained
from vllm_cluster.kernel.shell_line import Pasted
from vllm_cluster.serving.explain.render import show_explained

START = "INFO 05-02 10:00:00 [api_server.py:1772] vLLM API server version 0.10.2\n"
FRAME = '  File "/usr/lib/python3/site-packages/vllm/a/b.py", line 7, in run\n    run()\n'
FAILED = f"Traceback (most recent call last):\n{FRAME}RuntimeError: shape '[3, 4]' is invalid\n"
CAUSED = (
    "\nThe above exception was the direct cause of the following exception:\n\nTraceback (most recent call last):\n"
)


# fault: vllm_cluster/kernel/explain/stream.py: root or old → root
def test_the_first_exception_of_a_chain_is_shown_beside_the_last_one() -> None:
    found = explained(f"{START}{FAILED}{CAUSED}{FRAME}RuntimeError: Failed to apply the processor\n", together=False)
    assert found.raised
    assert found.raised.root
    assert found.raised.line.text == "RuntimeError: Failed to apply the processor"
    assert found.raised.root.text == "RuntimeError: shape '[3, 4]' is invalid"


# fault: vllm_cluster/kernel/explain/stream.py: if wraps(parsed.words) → if False
def test_what_only_carries_an_exception_of_a_subprocess_is_replaced_by_it() -> None:
    carried = "Traceback (most recent call last):\n"
    carried += f"{FRAME}RuntimeError: Error raised in subprocess:\nx.py:1: RuntimeWarning: y\n"
    inner = '  File "/usr/lib/python3.12/getpass.py", line 169, in getuser\n    return get()\n'
    inner = f"Traceback (most recent call last):\n{inner}KeyError: 'getpwuid(): uid not found: 1001'\n"
    found = explained(START + carried + inner, together=False)
    assert found.raised
    assert found.raised.line.text == "KeyError: 'getpwuid(): uid not found: 1001'"
    assert found.raised.frame
    assert found.raised.frame.file == "/usr/lib/python3.12/getpass.py"
    assert found.raised.root is None


def test_an_exception_whose_message_is_a_traceback_is_not_shown_itself() -> None:
    found = explained(f"{START}Traceback (most recent call last):\n{FRAME}RuntimeError: {FAILED}", together=False)
    assert found.raised
    assert found.raised.line.text == "RuntimeError: shape '[3, 4]' is invalid"


# fault: vllm_cluster/kernel/explain/log_line.py: if level := _OTHERS.match(text, at): → if level := None:
@pytest.mark.parametrize(
    "stamp",
    [
        "2026-05-02 10:00:01,455 - vllm.v1.engine.core - ERROR - ",
        "[2026-05-02 10:00:01,820] [ERROR] [MainThread] [vllm.worker.worker_base] >>> ",
        "2026-05-02 10:00:01.123 | ERROR    | vllm.x:run:33 - ",
        "2026-05-02 10:00:01 | ERROR | stderr | ",
    ],
)
def test_lines_of_loggers_of_other_forms_are_read(stamp: str) -> None:
    log = "".join(f"{stamp}{line}\n" for line in FAILED.splitlines())
    found = explained(log, together=False)
    assert found.raised
    assert found.raised.line.text == "RuntimeError: shape '[3, 4]' is invalid"
    assert found.raised.frame
    assert not found.error_lines


# fault: vllm_cluster/kernel/explain/diagnosis.py: if all(map(_only_warns, foremost)) → if False
@pytest.mark.parametrize(
    "warning",
    [
        "WARNING 05-02 10:00:00 [x.py:1] Failed to import: libcuda.so.1: cannot open shared object file",
        "[rank0]:[W502 10:00:00.1 socket.cpp:752] [c10d] The client socket has failed to connect to [gpu1]:29500",
        "gpu1:1:2 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_open_device failed: No such device",
        "WARNING 05-02 10:00:01 [model_runner.py:1] Failed to pickle inputs: CUDA error: an illegal memory access",
    ],
)
def test_an_exception_comes_before_a_warning(warning: str) -> None:
    assert explained(f"{START}{warning}\n{FAILED}", together=False).result == "exception"


# fault: vllm_cluster/kernel/explain/evidence.py: FORMS, FORM = 256, 56 → FORMS, FORM = 256, 40
def test_an_error_that_only_begins_like_one_that_is_over_counts() -> None:
    first = FAILED.replace("shape '[3, 4]' is invalid", "Worker failed with error 'the request is too long'")
    last = FAILED.replace("shape '[3, 4]' is invalid", "Worker failed with error 'the weights are gone'")
    answer = 'INFO:     10.0.0.1:4000 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    assert explained(START + first + answer + last, together=False).result == "exception"


# fault: vllm_cluster/kernel/explain/frame.py: RuntimeError: (?:Event loop is closed| → RuntimeError: (?:
def test_what_a_closed_loop_raises_is_not_the_exception_that_came_first() -> None:
    closed = FAILED.replace("shape '[3, 4]' is invalid", "Event loop is closed")
    found = explained(START + closed + FAILED, together=False)
    assert found.raised
    assert "shape" in found.raised.line.text


# fault: vllm_cluster/kernel/explain/signs.py: return [NO_SUCH_MODEL] → return []
def test_a_type_of_model_that_transformers_does_not_list_is_an_unknown_architecture() -> None:
    frame = '  File "/usr/lib/python3/site-packages/transformers/models/auto/configuration_auto.py", line 7, in get\n'
    found = explained(f"Traceback (most recent call last):\n{frame}    raise key\nKeyError: 'qwen9'\n", together=False)
    assert found.named
    assert found.named.failure.slug == "architecture-unknown"


# fault: vllm_cluster/kernel/explain/stream.py: if is_exception(parsed.words) and len → if False and len
def test_a_clients_exception_with_a_note_is_shown() -> None:
    frame = '  File "/home/x/app.py", line 9, in <module>\n    ask()\n'
    words = "openai.NotFoundError: Error code: 404 - {'message': 'The model `m` does not exist.'}"
    found = explained(f"Traceback (most recent call last):\n{frame}{words}\n", together=False)
    assert found.raised
    assert found.raised.line.text == words


CUT_OFF = f'{FRAME}  File "/usr/lib/python3/site-packages/vllm/_custom_ops.py", line 242, in scaled_mm\n'


# fault: kernel/explain/scan.py: broken_off(part, self._names) → ()
# fault: kernel/explain/frame.py: if code.words.strip("^~ "): → if True:
@pytest.mark.parametrize("prefix", ["", "(rank0) ", "(Worker_TP1 pid=7) "])
@pytest.mark.parametrize("above", ["", START, "Traceback (most recent call last):\n"])
@pytest.mark.parametrize(
    "code", ["    assert b.shape[0] % 16 == 0\n", "    assert b.shape[0] % 16 == 0\n    ^^^^^^\n", ""]
)
def test_a_traceback_within_which_the_log_ends_is_a_failure_at_its_last_frame(
    prefix: str, above: str, code: str
) -> None:
    """Its exception was not copied: there was no failure in it, exit code 0."""
    lines = "".join(f"{prefix}{line}" for line in (CUT_OFF + code).splitlines(keepends=True))
    found = explained(above + lines, together=False)
    assert found.result == "unknown"
    shown = [place.text for place in found.error_lines if not place.text.startswith("Traceback")]
    assert "line 242, in scaled_mm" in shown[0]
    assert shown[1:] == (["assert b.shape[0] % 16 == 0"] if code else [])


# fault: kernel/explain/stream.py: in () if self._fails() or self.seen.quiet or self.seen.murmurs else lines: → in lines:
def test_the_last_frame_counts_only_where_nothing_else_has_failed() -> None:
    found = explained(f"{START}{FAILED}Traceback (most recent call last):\n{CUT_OFF}    assert b\n", together=False)
    assert found.raised
    assert all("File " not in place.text and "assert" not in place.text for place in found.error_lines)


@pytest.mark.parametrize("below", ["INFO:     Application startup complete.\n", "ValueError: b\n", "no indent\n"])
def test_a_traceback_with_something_below_it_is_not_cut_off(below: str) -> None:
    found = explained(f"{START}{CUT_OFF}    assert b\n{below}", together=False)
    assert all("scaled_mm" not in place.text for place in found.error_lines)


# fault: kernel/explain/diagnosis.py: overcome if kind in ("healed", "unfinished") else → overcome if kind == "healed" else
def test_of_starts_that_fail_one_after_the_other_the_last_one_alone_is_unfinished(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """None of them has answered, so none has recovered: what the one before failed of is shown."""
    weights = "(EngineCore pid=9) ERROR 05-02 10:01:00 [core.py:1] KeyError: 'layers.5.mlp.experts.w13_weight'\n"
    later = [START.replace("10:00", f"10:{minute}") for minute in (10, 20)]
    loading = "(EngineCore pid=9) INFO 05-02 10:11:00 [loader.py:1] reading\n" * 40
    found = explained(START + weights + loading + later[0] + loading + FAILED + later[1], together=False)
    assert found.result == "unfinished"
    show_explained(found, Pasted, color="never")
    printed = capsys.readouterr().out
    assert "a start before it failed: the names or shapes of the weights" in printed
    assert "KeyError: 'layers.5.mlp.experts.w13_weight'" in printed
    assert "RuntimeError: shape '[3, 4]' is invalid" in printed
    assert "answer" not in printed


# fault: kernel/explain/frame.py: startswith(TRACEBACK) or nearby.quotes(parsed.who, parsed.words) → startswith(TRACEBACK)
def test_the_code_in_a_traceback_that_python_ignores_does_not_count() -> None:
    ignored = "Exception ignored in: <function LLMEngine.__del__ at 0xffff>\nTraceback (most recent call last):\n"
    code = '  File "/w/llm_engine.py", line 466, in __del__\n    with suppress(Exception):\n         ^^^^^^^^\n'
    found = explained(f"{ignored}{code}NameError: name 'suppress' is not defined\nAvg latency: 4.9 s\n", together=False)
    assert found.result == "nothing"


# fault: kernel/explain/stream.py: and (self.seen.alive or progress.IN_ORDER in asked.text) → and progress.IN_ORDER in asked.text
def test_what_does_not_start_after_another_one_has_ended_in_order_is_a_failure() -> None:
    """It was called recovered, with exit code 0: a script starts an engine twice, without a banner."""
    worked = (
        "Processed prompts: 100%|##| 2/2 [00:01<00:00, 1.1s/it, est. speed input: 532.97 toks/s, output: 9.1 toks/s]\n"
    )
    ended = (
        "(EngineCore pid=3) INFO 05-02 10:05:00 [core.py:1] [shutdown] EngineCore: trigger received signal=SIGTERM\n"
    )
    again = f"Traceback (most recent call last):\n{FRAME}"
    again += "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
    found = explained(START + worked + ended + again, together=False)
    assert found.symptom
    assert found.symptom.failure.slug == "engine-died"
    # Before it has worked, a signal can be why it does not start.
    assert explained(START + ended + again, together=False).result == "nothing"


# fault: kernel/explain/prefix.py: return last if _RAISED.match(last) else → return
def test_the_exception_that_a_json_logger_puts_beside_its_message_is_read() -> None:
    beside = r'"exc_info": "Traceback (most recent call last):\n  File \"a.py\", line 1\n    run()\nBlubError: no blub"'
    line = f'{{"ts": "2026-02-28 11:39:27,951", "level": "ERROR", "message": "evaluation failed", {beside}}}\n'
    found = explained(line, together=False)
    assert found.raised
    assert found.raised.line.text == "BlubError: no blub"
    assert (
        explained(line.replace("BlubError: no blub", "run()"), together=False).error_lines[0].text
        == "evaluation failed"
    )


def test_a_fault_that_torch_prints_itself_is_seen() -> None:
    lines = '!!!!!!! Segfault encountered !!!!!!!\n  File "<unknown>", line 0, in _ZN5brute8store_kvEiii\n'
    found = explained(START + lines, together=False)
    assert found.symptom
    assert found.symptom.failure.slug == "rank-killed"


# fault: kernel/explain/prefix.py: )?| {2,64})\| → )?| {999})\|
def test_the_exceptions_of_a_group_are_read_behind_the_margin_beside_them() -> None:
    lines = ("Traceback (most recent call last):", *FRAME.splitlines(), "AssertionError")
    found = explained("".join(f"    | {line}\n" for line in lines) + "    +-----------\n", together=False)
    assert found.raised
    assert found.raised.line.text == "AssertionError"
    assert found.raised.more == ("run()",)
    assert found.raised.frame
    assert found.raised.frame.line == 7


def test_what_torch_writes_of_views_is_not_taken_for_a_refusal() -> None:
    words = "RuntimeError: view size is not compatible with input tensor's size and stride. Use .reshape(...) instead."
    found = explained(f"{START}Traceback (most recent call last):\n{FRAME}{words}\n", together=False)
    assert found.raised
    assert found.raised.line.text == words
