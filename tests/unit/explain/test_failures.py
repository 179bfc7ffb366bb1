"""Each failure is named from the log that it really leaves, and from what users reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.corpus import CORPUS
from tests.support.logs import FOLDER, HEALTHY, PRODUCED, explained, reported, row_of
from vllm_cluster.explain.catalogue import FAILURES
from vllm_cluster.explain.failure import SignKind


@pytest.mark.parametrize("path", PRODUCED, ids=lambda path: path.stem)
def test_what_was_broken_is_named(path: Path) -> None:
    found = explained(path.read_bytes())
    named = found.named
    assert named, found.trouble
    assert (named.row.number, found.kind) == (row_of(path), "symptom" if named.row.kind == "symptom" else "explained")
    assert named.row.fix


@pytest.mark.parametrize(("row", "source", "text"), reported(), ids=lambda value: value[:60].replace("\n", " "))
def test_what_was_reported_is_named(row: str, source: str, text: str) -> None:
    found = explained(text)
    if row.startswith("note-"):
        assert (found.kind, found.notes[0].row.number) == ("nothing", row.removeprefix("note-")), source
    else:
        named = found.named
        assert named, (source, found.trouble)
        assert named.row.number == row, source


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_log_holds_no_failure(path: Path) -> None:
    found = explained(path.read_bytes())
    assert (found.kind, found.cause, found.trouble) == ("nothing", None, ())


def test_every_row_is_shown_by_a_log_or_says_why_not() -> None:
    shown = {row_of(path) for path in PRODUCED} | {row.removeprefix("note-") for row, _, _ in reported()}
    for number, row in FAILURES.items():
        assert bool(row.signs) != bool(row.silent), number
    shown |= {row for case in CORPUS for row in case.rows}
    # 69 stands in the log of row 40.
    assert {number for number, row in FAILURES.items() if row.signs} - shown == {"69"}


def test_a_symptom_has_no_sign_of_a_cause_and_a_cause_none_of_a_symptom() -> None:
    """Else a line that many causes share would stand in for one of them."""
    of_symptoms = (SignKind.SYMPTOM, SignKind.CONSEQUENCE)
    for number, row in FAILURES.items():
        for sign in row.signs:
            assert sign.weight is SignKind.NOTE or (sign.weight in of_symptoms) == (row.kind == "symptom"), number


def test_the_numbers_are_those_of_the_catalogue() -> None:
    numbers = [*map(str, range(1, 45)), "44a", *map(str, range(45, 106))]
    assert list(FAILURES) == numbers


def test_what_nccl_says_of_ethernet_is_no_word_on_adapters() -> None:
    """Two H200s joined by TCP: NCCL calls GPU Direct disabled for eth0 too."""
    found = explained((FOLDER.parent / "gpu" / "h200-x2-nccl-socket.log").read_bytes())
    assert (found.kind, [one.row.number for one in found.notes]) == ("nothing", ["24"])
    assert len(found.harmless) == 1
