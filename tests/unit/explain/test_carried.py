"""Exceptions that only carry another one, loggers of people's own, and warnings above an exception."""

from __future__ import annotations

import pytest

from tests.support.logs import explained

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
