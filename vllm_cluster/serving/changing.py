"""A cluster that is another at each look: which of its hosts shows what, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vllm_cluster.kernel.errors import PreflightFailed
from vllm_cluster.kernel.plan.spec import node_name
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import printable

# As long as an id of Docker's.
MAX_SHOWN = 64

# What it is, and by host the word for it at the look before and now.
Shown = tuple[str, Mapping[str, str], Mapping[str, str]]


def refuse_changing(cluster: str, looks: int, shown: Iterable[Shown]) -> PreflightFailed:
    """The refusal of what was another at each of so many looks; it names the hosts that differed, and in what."""
    found: dict[str, list[str]] = {}
    for what, before, now in shown:
        for host in sorted(before.keys() | now.keys()):
            if before.get(host) != now.get(host):
                words = (printable(there.get(host, "none"))[:MAX_SHOWN] for there in (before, now))
                found.setdefault(host, []).append(f"its {what} was {', then '.join(words)}")
    text = f"{cluster} was another at each of {looks} looks"
    if not found:
        return PreflightFailed(f"{text}: what its hosts show changes all the time", hint="vcluster status")
    hints = [
        command_line("docker", "ps", Option("-a"), Option(f"--filter=name={node_name(cluster)}"), on=host)
        for host in found
    ]
    hints.append(f"where it stays so, take {' and '.join(found)} out of the inventory")
    return PreflightFailed(text, *(f"{host}: {'; '.join(all_)}" for host, all_ in found.items()), hint="\n".join(hints))
