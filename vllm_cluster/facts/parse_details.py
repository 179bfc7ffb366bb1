"""Turns the longer part of the fact script's answer into typed details."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from vllm_cluster.facts.details import Details, FileSystem
from vllm_cluster.facts.nvidia_smi import parse_nvlinks, parse_smi
from vllm_cluster.facts.values import number, split_fields

# These end in commands that a person may paste.
_MODEL = re.compile(r"\w[\w.-]*")


def details(part: Mapping[str, str]) -> Details:
    """The details, from the script's sections by name; a section without words leaves its field unknown."""
    gpus = parse_smi(part["smi"])
    readable, *xids = part["xid"].splitlines() or [""]
    asked, *resolves = part["resolves"].split() or [""]
    acs = part["acs"].splitlines()
    return Details(
        cuda=gpus.cuda,
        gpu_health=gpus.gpus,
        nvlinks=parse_nvlinks(part["nvlink"]),
        xids=tuple(xids) if readable == "readable" else None,
        fabric_manager=_service(part["fabricmanager"]),
        peermem=bool({"nvidia_peermem", "nv_peer_mem"} & set(part["driver"].split())),
        open_driver="Open Kernel Module" in part["driver"],
        acs_enabled=any("SrcValid+" in line for line in acs) if acs else None,
        iommu=part["iommu"],
        memlock=part["memlock"],
        docker_memlock=part["enginelock"],
        shm_bytes=number(part["shm"]) or 0,
        remove_ipc=part["removeipc"].partition("=")[2].strip().lower() in ("yes", "true", "1", "on"),
        linger=part["linger"] == "yes",
        hostname_addresses=tuple(dict.fromkeys(resolves)) if asked == "asked" else None,
        filesystems=tuple(_filesystems(part["filesystems"])),
        revisions={f[0]: f[1] for f in split_fields(part["revisions"], 2) if _MODEL.fullmatch(f[0]) and f[1].isalnum()},
        incomplete_files=tuple(part["incomplete"].splitlines()),
        broken_symlinks=tuple(part["dangling"].splitlines()),
    )


def _service(text: str) -> str:
    """A service's state as systemd calls it; empty where there is none of that name."""
    words = dict(line.partition("=")[::2] for line in text.splitlines())
    return "" if words.get("LoadState") == "not-found" else words.get("ActiveState", "")


def _filesystems(text: str) -> Iterable[FileSystem]:
    for path, kind, source, mount, total, uuid, *_ in split_fields(text, 5):
        yield FileSystem(path, kind, source, mount, number(total) or 0, uuid)
