"""Turns what the fact script printed into typed facts."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from vllm_cluster.core.facts import Engine, Gpu, Hca, HostFacts, Nic


def facts(host: str, text: str) -> HostFacts:
    """The facts of one host.

    Raises:
        ValueError: the text breaks off, so that nothing can be concluded from what is absent.
    """
    part = _sections(text)
    if "end" not in part:
        raise ValueError("the answer of the fact script breaks off")
    return HostFacts(
        host=host,
        machine_id=part["machine"],
        hostname=part["hostname"],
        clock=float(part["clock"] or 0),
        nics=_nics(part["nics"]),
        hcas=tuple(_hcas(part["hcas"].splitlines())),
        gpus=tuple(_gpus(part["gpus"].splitlines())),
        slots=int(part["slots"]) if part["slots"].isdigit() else None,
        memory=int(part["memory"] or 0),
        listening=frozenset(int(port, 16) for port in part["listening"].split()),
        routes=dict(_routes(part["routes"].splitlines())),
        missing_paths=frozenset(part["missing"].splitlines()),
        free={path: int(free) for path, _, free in (row.partition("|") for row in part["disks"].splitlines()) if free},
        engine=_engine(part["docker"], part["dockerinfo"], part["cdi"]),
    )


def _sections(text: str) -> dict[str, str]:
    pieces = re.split(r"^@@(\w+)$", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


def _nics(text: str) -> tuple[Nic, ...]:
    try:
        rows: list[dict[str, Any]] = json.loads(text or "[]")
    except ValueError:
        return ()  # an `ip` without -j (busybox): preflight then says that the interface is not known
    return tuple(
        Nic(
            name=row["ifname"],
            addresses=tuple(f"{a['local']}/{a['prefixlen']}" for a in row.get("addr_info", ()) if "local" in a),
            mtu=int(row.get("mtu", 0)),
            state=row.get("operstate", "UNKNOWN"),
        )
        for row in rows
        if "ifname" in row
    )


def _hcas(rows: Iterable[str]) -> Iterable[Hca]:
    for row in rows:
        device, port, state, link_layer, rate, verbs = row.split("|")
        yield Hca(device, int(port), state, link_layer, rate, tuple(filter(None, verbs.split(","))))


def _gpus(rows: Iterable[str]) -> Iterable[Gpu]:
    for row in rows:
        fields = [field.strip() for field in row.split(",")]
        if len(fields) == 4 and fields[0].isdigit():
            memory = int(fields[3]) if fields[3].isdigit() else 0  # "[N/A]" on unified memory
            yield Gpu(int(fields[0]), fields[1], fields[2], memory)


def _routes(rows: Iterable[str]) -> Iterable[tuple[str, str | None]]:
    for row in rows:
        address, _, interface = row.partition(" ")
        if address:
            yield address, interface.strip() or None


def _engine(version: str, info: str, cdi: str) -> Engine:
    server = _json(version)
    rows = [line for line in info.splitlines() if line.startswith('{"Root"')]
    details = _json(rows[0]) if rows else {}
    if not server.get("ApiVersion"):
        problem = "\n".join(line for line in info.splitlines() if not line.startswith("{")).strip()
        return Engine(problem=problem or "no answer")
    kinds = (re.sub(r'.*[:\s"]', "", line) for line in cdi.splitlines())
    return Engine(
        version=str(server.get("Version", "")),
        api_version=str(server["ApiVersion"]),
        architecture=str(server.get("Arch", "")),
        runtimes=tuple(sorted(details.get("Runtimes") or ())),
        cdi_devices=tuple(sorted(set(filter(None, kinds)))),
        root=str(details.get("Root") or ""),
    )


def _json(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
