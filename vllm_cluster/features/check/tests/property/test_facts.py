"""Any answer of a host to the fact script is read or refused; nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import world
from tests.support.hostile import harmless, hostile, recorded, shown_by, some
from tests.support.tree import FACTS
from vllm_cluster.features.check.action import CheckReport
from vllm_cluster.features.check.render import report_document, show_report
from vllm_cluster.features.check.render_facts import facts_document, show_facts
from vllm_cluster.kernel.checks.registry import check_all, unseen
from vllm_cluster.kernel.facts import parse
from vllm_cluster.kernel.shell_line import Pasted

pytestmark = pytest.mark.timeout(3600)

ANSWER = (FACTS / "sandbox-host.txt").read_text()
SECTIONS = [line[2:] for line in ANSWER.splitlines() if line.startswith("@@")]
WORDS = [
    "0",
    "-1",
    "1",
    "9" * 30,
    "²",
    "NaN",
    "N/A",
    "null",
    "[]",
    "{}",
    "|",
    "||||||||",
    ",,,,",
    "readable",
    "asked",
    "::1",
]
json_like = st.recursive(
    st.sampled_from([None, True, 1, -1, 1e400, "", "eth0", "10.0.0.1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["ifname", "addr_info", "local", "prefixlen", "mtu", "linkinfo", "Root", "Runtimes", "ApiVersion"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)
garbage = st.one_of(
    hostile,
    st.lists(st.sampled_from(WORDS), max_size=6).map("|".join),
    st.lists(hostile, max_size=4).map("\n".join),
    json_like.map(json.dumps),
    json_like.map(lambda value: '{"Root":' + json.dumps(value) + "}"),
    st.sampled_from(["[" * 100_000, "<a>" * 1000, "0" * 5000, "\u0660", "\ud800"]),
)


def test_any_answer_is_read_or_refused() -> None:
    @some
    @given(st.dictionaries(st.sampled_from(SECTIONS[:-1]), garbage, min_size=1, max_size=4), st.booleans())
    def check(sections: dict[str, str], whole: bool) -> None:
        text = ANSWER
        for name, said in sections.items():
            head, _, tail = text.partition(f"\n@@{name}\n")
            text = f"{head}\n@@{name}\n{said}\n{tail[tail.index('@@') :]}" if "@@" in tail else text
        judge(text if whole else text[: len(text) // 2])

    with recorded("P23", "any section of the facts, through every check and renderer", some.max_examples):
        check()


def test_any_text_is_read_or_refused() -> None:
    @some
    @given(st.lists(st.tuples(st.sampled_from(SECTIONS), garbage), max_size=6))
    def check(sections: Sequence[tuple[str, str]]) -> None:
        judge("".join(f"\n@@{name}\n{said}\n" for name, said in sections) + "\n@@end\n@@whole\n")

    check()


def judge(text: str) -> None:
    """Read it as the answer of one of two hosts, check both, and show what was found."""
    try:
        odd = parse.facts("gpu2", text, deep=True)
    except ValueError:
        return
    facts = {"gpu1": replace(world.host(1), details=parse.facts("gpu1", ANSWER, deep=True).details), "gpu2": odd}
    for inventory in (world.inventory(), world.inventory(accelerator="cpu")):
        report = CheckReport(check_all(inventory, facts), unseen(inventory, facts), tuple(facts), 1.0)
        assert harmless(shown_by(lambda report=report: show_report(report, Pasted, color="never")))  # type: ignore[misc]
        json.loads(json.dumps(report_document(report, Pasted)))
    assert harmless(shown_by(lambda: show_facts(facts, color="never")))
    json.loads(json.dumps(facts_document(facts)))
