"""GPU health and NVLinks, parsed from the output of `nvidia-smi`."""

from __future__ import annotations

import re
from dataclasses import dataclass

# The standard library's parser fetches nothing; what makes much of little is refused before.
from xml.etree.ElementTree import Element, ParseError, XMLParser

from vllm_cluster.kernel.facts.details import GpuHealth, NvLinks
from vllm_cluster.kernel.facts.host_facts import GpuProcess
from vllm_cluster.kernel.facts.values import number, split_fields

MAX_XML_BYTES = 2_000_000
# A GPU has 540 without its list of clocks.
MAX_TAGS = 40_000
# Twice what a host can have.
MAX_GPUS = 64
# Entities, attributes that each element of a name has by default, and namespaces, which become a part of each name:
# 1.5 MB of either took more than 4 GB.
_MAKES_MUCH = re.compile(r"<!(?!DOCTYPE\b|--|\[CDATA\[)|xmlns")
_CONTAINER = re.compile(r"\b[0-9a-f]{64}\b")
_SELF, _JOINED = "X", r"NV\d{1,3}|SYS|NODE|PHB|PXB|PIX"
_PENDING = {
    "ecc_errors/channel_repair_pending": "channel repair",
    "ecc_errors/tpc_repair_pending": "TPC repair",
    "ecc_errors/unrepairable_memory": "unrepairable memory",
    "retired_pages/pending_retirement": "page retirement",
    "retired_pages/pending_blacklist": "page retirement",
    "remapped_rows/remapped_row_pending": "row remapping",
    "remapped_rows/remapped_row_failure": "row remapping failed",
}


@dataclass(frozen=True)
class NvidiaSmiReport:
    """The driver's highest CUDA version, and each GPU."""

    cuda: str = ""
    gpus: tuple[GpuHealth, ...] = ()


def parse_smi(text: str) -> NvidiaSmiReport:
    """Parse `nvidia-smi -q -x`; empty if the XML is incomplete."""
    if len(text) > MAX_XML_BYTES or _MAKES_MUCH.search(text) or text.count("<") > MAX_TAGS:
        return NvidiaSmiReport()
    parser = XMLParser()  # noqa: S314
    try:
        parser.feed(text)
        root = parser.close()
    except (ParseError, ValueError, LookupError):
        return NvidiaSmiReport()
    gpus = root.findall("gpu")[:MAX_GPUS]
    return NvidiaSmiReport(_text(root, "cuda_version"), tuple(map(_health, gpus)))


def _text(element: Element, path: str) -> str:
    """The text at a path, empty where there is none or it is a placeholder."""
    words = (element.findtext(path) or "").strip()[:200]
    return "" if words in ("N/A", "None", "[N/A]") else words


def _health(gpu: Element) -> GpuHealth:
    errors = [entry for entry in gpu.findall("ecc_errors/volatile/*") if "uncorrectable" in entry.tag]
    counts = [count for entry in errors if (count := number(entry.text)) is not None]
    return GpuHealth(
        uuid=_text(gpu, "uuid"),
        mig=_text(gpu, "mig_mode/current_mig"),
        ecc=_text(gpu, "ecc_mode/current_ecc"),
        ecc_uncorrected=sum(counts) if counts else None,
        fabric_state=_text(gpu, "fabric/state"),
        fabric_status=_text(gpu, "fabric/status"),
        repair_pending=tuple(dict.fromkeys(what for path, what in _PENDING.items() if _text(gpu, path) == "Yes")),
        recovery=_text(gpu, "gpu_recovery_action"),
    )


def parse_processes(text: str) -> dict[str, tuple[GpuProcess, ...]]:
    """The processes of each GPU by its UUID: a row of the compute apps, with the process's user and cgroup."""
    found: dict[str, list[GpuProcess]] = {}
    for uuid, pid, user, cgroup, *rest in split_fields(text, 5):
        # A name may hold any character: it is the last of a row.
        used, _, name = "|".join(rest).rstrip("|").partition(",")
        if (known := number(pid)) is not None:
            container = _CONTAINER.search(cgroup)
            within = container[0] if container else "" if cgroup.strip() else None
            found.setdefault(uuid, []).append(GpuProcess(known, name.strip(), number(used) or 0, _user(user), within))
    return {uuid: tuple(rows) for uuid, rows in found.items()}


def _user(text: str) -> str:
    """A user's name; its number where the host has no name for it, as for users of containers."""
    name, _, uid = text.partition(" ")
    return f"uid {uid}" if name == "UNKNOWN" else name


def parse_nvlinks(text: str) -> tuple[NvLinks, ...]:
    """What `nvidia-smi nvlink -s` printed: a line a link, below the line of its GPU."""
    found: dict[int, list[bool]] = {}
    current: list[bool] = []
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d{1,3}):", line)
        if gpu:
            current = found.setdefault(int(gpu[1]), [])
        elif re.match(r"\s*Link \d+:", line):
            current.append("inactive" not in line)
    return tuple(NvLinks(gpu, sum(states), len(states)) for gpu, states in found.items() if states)


def parse_topology(text: str) -> dict[int, tuple[str, ...]]:
    """How each GPU is joined to every GPU, from `nvidia-smi topo -m`; empty where the table is not whole.

    Its columns are the GPUs, then adapters, then affinities; its header is underlined, on a terminal or not.
    """
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in text.splitlines()]
    header = next((line.split("\t") for line in lines if "GPU0" in line), [])
    columns = [int(found[1]) for cell in header if (found := re.fullmatch(r"\s*GPU(\d{1,3})\s*", cell))]
    rows = {}
    for line in lines:
        name, *fields = (cell.strip() for cell in line.split("\t"))
        kinds = tuple(fields[: len(columns)])
        if (found := re.fullmatch(r"GPU(\d{1,3})", name)) and len(kinds) == len(columns):
            rows[int(found[1])] = kinds
    if not sorted(rows) == columns == list(range(len(columns))) or len(columns) > MAX_GPUS:
        return {}
    # A row that lacks a cell is shifted: only the diagonal and the other half of the table show it.
    cells = [(rows[a][b], rows[b][a], a == b) for a in rows for b in rows]
    whole = all(re.fullmatch(_SELF if same else _JOINED, kind) and kind == back for kind, back, same in cells)
    return rows if whole else {}
