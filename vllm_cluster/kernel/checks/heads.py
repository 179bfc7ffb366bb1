"""Which host is the head, where more than one has what a head has: a person decides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.facts.host_facts import HostFacts
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.plan.claims import Claim, find_claims
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.plan.history import AUDIT_FILE
from vllm_cluster.kernel.plan.identity import who_denies
from vllm_cluster.kernel.plan.spec import node_name
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import and_more

_KNOWN = (
    "this machine does not know it as that",
    "this machine knows that it was that before",
    "this machine knows it as that",
    "this machine made it that",
)


_BEGAN = "this machine only began to make it that"


def undecided_head(inventory: Inventory, facts: Mapping[str, HostFacts]) -> Iterator[Finding]:
    """Two nodes that call themselves the head, or what a head has on a host from which `up` takes nothing.

    Each claims it by its own labels, so its key may be one that it chose. And it may be the head: then all of that
    would go with its node. Where the inventory's head has a key too, what both hold is compared under the lease.
    """
    head = inventory.head_name
    if head not in facts:
        return
    claims = find_claims(inventory, facts)
    own = any(one.host == head for one in claims)
    if inventory.keep and inventory.keep not in (one.host for one in claims):
        yield _without("--keep", inventory.keep, "it has nothing that a head has")
        return
    if inventory.keep == "" and own:
        yield _without("--new-key", head, "it has what a head has")
        return
    if inventory.keep is not None:
        certain = inventory.keep in ("", head) or _moves(inventory, claims, inventory.keep)
    else:
        certain = sum(one.runs for one in claims) < 2 and (own or all(one.trusted and one.runs for one in claims))
    if not certain:
        yield which_head(inventory, facts, claims, {})


def _without(option: str, host: str, text: str) -> Finding:
    return Finding("other-head", host, text, f"without {option}:\n{command_line('vcluster', 'up')}")


def which_head(
    inventory: Inventory, facts: Mapping[str, HostFacts], claims: Sequence[Claim], found: Mapping[str, str]
) -> Finding:
    """The question which of these is the head, with the steps for each; `found` is more of what each has.

    The likeliest one is first, and no step removes anything before `up` has asked.
    """
    head = inventory.head_name
    texts = [f"{one.host} ({_text(inventory, facts, one, found.get(one.host, ''))})" for one in claims]
    looks = [] if found or _is_clear(claims) else _looks(inventory, claims)
    steps = [_steps(inventory, claims, one.host, f"if {one.host} is the head:") for one in claims]
    if head not in (one.host for one in claims):
        none = command_line("vcluster", "up", Option("--new-key"))
        steps.append(f"if none of them is, and the head is gone for good:\n{none}")
    text = f"it is not certain which host is the head: {'; '.join(texts)}"
    if len(claims) == 1 and claims[0].trusted and not claims[0].runs:
        text, steps = (
            f"{claims[0].host} was the head, and its node is gone: it is made again before the head moves",
            steps[:1],
        )
    return Finding("other-head", head, text, "\n".join([*looks, *steps]))


def _text(inventory: Inventory, facts: Mapping[str, HostFacts], claim: Claim, found: str) -> str:
    texts = [
        "its node is the head" if claim.runs else "its volumes have the API key",
        _BEGAN if claim.began else _KNOWN[claim.known],
    ]
    texts += [found] if found else []
    if claim.named_by:
        texts.append(f"named as that by the node on {and_more(claim.named_by)}")
    if denied := who_denies(inventory, claim.host, facts) if facts[claim.host].was_head_of else []:
        texts.append(f"the node on {and_more(denied)} names another head")
    return ", ".join(texts)


def _is_clear(claims: Sequence[Claim]) -> bool:
    """Whether this machine remembers the first more surely than the others, and no node is against it."""
    first, *others = [(bool(one.named_by), one.known) for one in claims]
    used = claims[0].runs or not any(one.runs for one in claims)
    return not others or (used and first > others[0] and first[1] >= max(known for _, known in others))


def history_line(node: str, host: str) -> str:
    """The command that shows who changed the cluster of a head last."""
    path = f"{STATE_FOLDER}/{AUDIT_FILE}"
    return command_line("docker", "exec", node, "tail", Option("-n"), "1", path, on=host)


def _looks(inventory: Inventory, claims: Sequence[Claim]) -> list[str]:
    lines = [history_line(node_name(inventory.cluster), one.host) for one in claims if one.runs]
    return ["who changed it last:", *lines] if lines else []


def _moves(inventory: Inventory, claims: Sequence[Claim], host: str) -> bool:
    """Whether all that a host has as the head can be carried to the inventory's head: it alone has the head's node.

    Else it is made the head again first.
    """
    running = [one.host for one in claims if one.runs]
    return host in running and inventory.head_name not in running


def _steps(inventory: Inventory, claims: Sequence[Claim], host: str, when: str) -> str:
    keep = command_line("vcluster", "up", Option("--keep"), host)
    if host == inventory.head_name or _moves(inventory, claims, host):
        return f"{when}\n{keep}"
    return f"{when} set head: {host}\n{keep}\nthen set head: {inventory.head_name}"
