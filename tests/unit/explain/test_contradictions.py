"""A sign names no cause that the same logs contradict: it is a symptom then, with how to distinguish its causes."""

from __future__ import annotations

import pytest

from tests.support.logs import explained
from vllm_cluster.kernel.explain.catalogue import FACTS, FAILURES

REGISTER = "gpu2:19:34 [0] NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory\n"
FOLLOWER = "AssertionError: collective_rpc should not be called on follower node\n"
ADDRESS = "RuntimeError: Every node should have a unique IP address. Got 2 nodes and 1 unique IP addresses.\n"
DRIVER = "RuntimeError: Error 804: forward compatibility was attempted on non supported HW\n"
SMI = "| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: {}     |\n"


# fault: kernel/explain/contradictions.py: contradicted = any(_places(known.unless, facts, host)) → contradicted = False
@pytest.mark.parametrize(
    ("line", "fact", "cause", "symptom"),
    [
        (REGISTER, "$ ulimit -l\nunlimited\n", "memlock-low", "registration-failed"),
        (REGISTER, "max locked memory           (kbytes, -l) unlimited\n", "memlock-low", "registration-failed"),
        (FOLLOWER, "$ vllm serve m --nnodes 2 --node-rank 1 --headless\n", "follower-entry", "follower-confused"),
        (ADDRESS, "10.4.1.2  ALIVE\n10.4.1.3  ALIVE\n", "host-twice", "address-shared"),
        (DRIVER, SMI.format("13.0"), "driver-too-old", "driver-refused"),
    ],
)
def test_a_cause_that_the_logs_contradict_is_a_symptom(line: str, fact: str, cause: str, symptom: str) -> None:
    alone = explained(line)
    assert alone.cause and alone.cause.failure.slug == cause
    for logs in ((fact + line,), (line + fact,), (line, fact)):
        found = explained(*logs)
        assert found.symptom and found.symptom.failure.slug == symptom
        # More than one way to look: a symptom has several causes.
        assert len(found.symptom.failure.fix.splitlines()) >= 2


@pytest.mark.parametrize(
    ("line", "other", "cause"),
    [
        (REGISTER, "open files                          (-n) unlimited\n", "memlock-low"),
        (REGISTER, "max locked memory           (kbytes, -l) 8192\n", "memlock-low"),
        (FOLLOWER, "$ python3 -m vllm.entrypoints.openai.api_server --headless\n", "follower-entry"),
        # One address twice, or one address in two lists.
        (ADDRESS, "10.4.1.3  ALIVE\n10.4.1.3  ALIVE\n10.4.1.2  DEAD\n", "host-twice"),
        (DRIVER, SMI.format("12.2"), "driver-too-old"),
    ],
)
def test_what_is_about_something_else_contradicts_nothing(line: str, other: str, cause: str) -> None:
    found = explained(other + line)
    assert found.cause and found.cause.failure.slug == cause


# fault: kernel/explain/stream.py: (known.host or not group) and not known.is_fact → known.host or not group
def test_a_fact_holds_though_vllm_was_started_after_it() -> None:
    start = (
        "(APIServer pid=1) INFO 07-13 10:42:50 [utils.py:3] non-default args: {'model_tag': 'm', 'headless': True}\n"
    )
    found = explained("$ ulimit -l\nunlimited\n" + start + REGISTER)
    assert found.symptom and found.symptom.failure.slug == "registration-failed"


def test_each_contradiction_names_a_fact_and_leaves_a_symptom() -> None:
    signs = [sign for failure in FAILURES.values() for sign in failure.signs]
    assert {name for sign in signs for name in (*sign.unless, *sign.only, *sign.until)} == set(FACTS)
    assert all(FAILURES[sign.instead].kind == "symptom" for sign in signs if sign.instead or sign.unless)


def test_the_arguments_of_vllm_serve_are_a_fact_as_its_command_line_is() -> None:
    """Only `vllm serve` has a model_tag; python -m …api_server takes --headless and ignores it."""
    start = "(APIServer pid=1) INFO 07-13 10:42:50 [utils.py:3] non-default args: {%s}\n"
    found = explained(start % f"'model_tag': '{'m' * 500}', 'headless': True" + FOLLOWER)
    assert found.symptom and found.symptom.failure.slug == "follower-confused"
    found = explained(start % "'headless': True, 'model': 'm'" + FOLLOWER)
    assert found.cause and found.cause.failure.slug == "follower-entry"


# fault: kernel/explain/contradictions.py: if of == host or not host or not of) → if True)
@pytest.mark.parametrize(
    ("line", "fact", "cause"),
    [(REGISTER, "$ ulimit -l\nunlimited\n", "memlock-low"), (DRIVER, SMI.format("13.0"), "driver-too-old")],
)
def test_a_fact_of_another_host_contradicts_nothing(line: str, fact: str, cause: str) -> None:
    def of(host: str, text: str) -> str:
        return f"===== {host} =====\n{text}"

    found = explained(of("gpu1", fact) + of("gpu2", line))
    assert found.cause and found.cause.failure.slug == cause
    assert explained(of("gpu1", fact) + of("gpu1", line)).symptom


def test_addresses_differ_whichever_hosts_list_them() -> None:
    lists = "===== gpu1 =====\n10.4.1.2  ALIVE\n===== gpu2 =====\n10.4.1.3  ALIVE\n"
    assert explained(lists + "===== gpu3 =====\n" + ADDRESS).symptom
