"""The page of failures, from the catalogue and the logs that show each one."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.corpus import CORPUS
from tests.support.logs import PRODUCED, failure_of, reported
from vllm_cluster.kernel.explain.catalogue import FAILURES
from vllm_cluster.kernel.explain.failure import KnownFailure

# It is in the log of another one.
WITHIN = {"model-name-unknown": "in the log of rank-killed.worker-killed-after-a-stop"}
SUBJECTS = {
    "host": "Host, SSH, Docker",
    "network": "Network: interface, Gloo, NCCL, RDMA",
    "ray": "Ray",
    "serve": "vLLM: plan, memory, life",
    "model": "Model and tokens",
    "start": "Starts that fail at once, and what many causes share",
    "image": "Drivers, downloads, images, and models that vLLM does not know",
}
HEAD = """# Failures

How a cluster of several hosts fails, as its users reported it: what is seen, why, and what repairs it. The names \
are those that `vcluster explain` prints; `docs/reference/failures.md#failure-71` leads to the one that had that number.

A **symptom** has many causes, and its line does not show which: `vcluster explain` then calls it a symptom, and names \
where the cause is written.

*Found by* is the code of the finding with which [`vcluster check`](../check.md) shows it before anything is loaded, \
or the verb that refuses it. *Explained* is the log by which tests hold that [`vcluster explain`](../explain.md) names \
it: **produced** by breaking a real cluster in that way (`tests/fixtures/logs`), **reported** by the user of another \
in the thread that is named, **worded** as the program that is named writes it, or in the **corpus** \
(`tests/fixtures/corpus`). Where no log can show it, the reason is there.

This page is written by `make generate`.
"""


def shown() -> dict[str, list[str]]:
    """The logs that show each failure."""
    found: dict[str, list[str]] = {slug: [text] for slug, text in WITHIN.items()}
    for path in PRODUCED:
        found.setdefault(failure_of(path), []).append(f"produced: {path.stem}")
    for slug, source, _ in reported():
        kind = "reported" if "#" in source else "worded"
        found.setdefault(slug.removeprefix("note-"), []).append(f"{kind}: {source}")
    for slug in {slug for case in CORPUS for slug in case.failures[:1]} - set(found):
        found[slug] = [f"corpus: {next(case.log for case in CORPUS if case.failures[:1] == (slug,))}"]
    return found


def page() -> str:
    """The whole page: a section for each failure, so that it can be linked."""
    logs, lines = shown(), [HEAD]
    for subject, title in SUBJECTS.items():
        lines += [f"## {title}", ""]
        for failure in FAILURES.values():
            lines += section(failure, logs.get(failure.slug, ())) if failure.subject == subject else ()
    return "\n".join(lines).rstrip() + "\n"


def section(failure: KnownFailure, logs: Sequence[str]) -> list[str]:
    """One failure under its anchors: its slug, and the number that it had."""
    before = ", ".join(f"`{code}`" for code in failure.checks)
    before = before or (f"held otherwise: {failure.prevented}" if failure.prevented else "")
    before = before or (f"`{failure.found_by}`" if failure.found_by else "nothing")
    no_log = f"no: {failure.silent}" if failure.silent else "by its own lines; no log of it is at hand"
    explained = "; ".join(logs) or no_log
    symptom = failure.kind == "symptom"
    names = ("What it means", "Where its cause is written") if symptom else ("Cause", "Fix")
    parts = [("Seen (symptom)" if symptom else "Seen", failure.symptom), (names[0], failure.cause)]
    parts += [(names[1], "; ".join(failure.fix.splitlines())), ("Found by", before), ("Explained", explained)]
    number = [f'<a id="failure-{failure.number}"></a>', ""] if failure.number else []
    return [*number, f"### {failure.slug}", "", *(f"- {name}: {text}" for name, text in parts), ""]
