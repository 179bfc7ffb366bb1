"""Lines that repeat, folded: the first at once, the others as one line with their number and hosts."""

from __future__ import annotations

from vllm_cluster.core.log_fold import WINDOW, WORDINGS, Fold
from vllm_cluster.core.log_lines import Line, copied_from, split_source


def line(at: int, host: str, text: str) -> Line:
    """A line of a host."""
    return Line(at, host, "vllm", text)


def test_what_several_ranks_print_is_shown_once_with_its_number() -> None:
    fold = Fold()
    same = [line(at, host, f"(Worker pid={at}) Loading took 0.{at} s") for at, host in enumerate(("a", "b", "b"))]
    assert fold.fold([*same, line(3, "a", "other")], 4) == [same[0], line(3, "a", "other")]
    assert fold.fold([line(WINDOW + 1, "a", "later")], WINDOW + 1) == [
        same[2]._replace(text=f"{same[2].text} [repeated 2 times on b]"),
        line(WINDOW + 1, "a", "later"),
    ]
    assert fold.rest() == []


def test_a_line_that_comes_twice_is_shown_twice() -> None:
    fold = Fold()
    assert fold.fold([line(0, "a", "x 1"), line(1, "b", "x 2")], 2) == [line(0, "a", "x 1")]
    assert fold.rest() == [line(1, "b", "x 2")]


def test_any_number_of_wordings_takes_bounded_memory() -> None:
    fold = Fold()
    texts = ["".join(chr(97 + int(digit)) for digit in str(number)) for number in range(2 * WORDINGS)]
    assert len(fold.fold([line(0, "a", text) for text in texts], 1)) == len(texts)
    assert len(fold._open) == WORDINGS


def test_the_part_of_a_containers_log_that_a_line_belongs_to() -> None:
    assert split_source(b"[vllm] INFO: x") == ("vllm", b"INFO: x")
    assert split_source(b"[nodes] ended") == ("node", b"ended")
    assert split_source(b"Traceback (most recent") == ("node", b"Traceback (most recent")
    assert split_source(b"[other] y") == ("node", b"[other] y")


def test_where_a_line_was_copied_from() -> None:
    assert copied_from(b"(RayWorkerProc pid=126, ip=172.18.0.12) x") == "172.18.0.12"
    assert copied_from(b"(RayWorkerWrapper pid=126) x") == ""
    assert copied_from(b"(EngineCore pid=126) x") is None
