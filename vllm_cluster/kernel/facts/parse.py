"""Turns what the fact script printed into typed facts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_interface

from vllm_cluster.kernel.facts.bounds import MAX_TEXT, bounded, ensure_few, ensure_few_rows
from vllm_cluster.kernel.facts.details import Details, FileSystem
from vllm_cluster.kernel.facts.host_facts import DockerFacts, Gid, Gpu, Hca, HostFacts, Nic
from vllm_cluster.kernel.facts.nvidia_smi import MAX_GPUS, parse_nvlinks, parse_processes, parse_smi, parse_topology
from vllm_cluster.kernel.facts.values import items, mapping, number, parse_json, split_fields

# What the system, Ray and vLLM's own processes need of memory that GPU and processor share: this, or a tenth.
MIN_RESERVE = 8 << 30
# What is written into records of the cluster and compared; the kernel's own limit of a host's name is 64.
_NAMES, MAX_NAME = ("machine", "boot", "hostname", "architecture"), 256
_DOCUMENTS = ("smi", "nics")
# How nvidia-smi reports that a GPU has no memory of its own.
_NO_MEMORY = ("N/A", "Not Supported")
_ROW = re.compile(r"[0-9]+,")
# What is before the kind of a CDI device in a line: the last of these ends it.
_BEFORE_KIND = re.compile(r'[:\s"]')
# These end in commands that a person may paste.
_MODEL = re.compile(r"\w[\w.-]*")
_DISTRIBUTION, MAX_DISTRIBUTIONS = re.compile(r"[a-z][a-z0-9._-]{0,30}"), 8
_WORD = re.compile(r"[\w.+~:-]{1,64}", re.ASCII)
_VERSION = re.compile(r"[0-9]{1,4}(\.[0-9]{1,4})+")


class _Sections(dict[str, str]):
    """The text of each section; a missing one is empty."""

    def __missing__(self, name: str) -> str:
        return ""


def facts(host: str, text: str, *, deep: bool = False) -> HostFacts:
    """The facts of one host, with its details where these were asked for.

    Raises:
        ValueError: the text breaks off, so that nothing can be concluded from what is absent; or something in
            it is outside its bounds.
    """
    pieces = re.split(r"^@@(\w+)$", text, flags=re.MULTILINE)
    part = _Sections((name, body.strip()) for name, body in zip(pieces[1::2], pieces[2::2], strict=True))
    if "end" not in part or (deep and "whole" not in part):
        raise ValueError("the answer of the fact script breaks off")
    for name, section in part.items():
        # Documents are bounded where they are read.
        if name not in _DOCUMENTS:
            ensure_few_rows(name, section)
    for name in _NAMES:
        if len(part[name]) > MAX_NAME or not part[name].isprintable():
            raise ValueError(f"{name} must be one line of at most {MAX_NAME} printable characters")
    found = _facts(host, part)
    if len(found.gpus) > MAX_GPUS:
        raise ValueError(f"gpus must have at most {MAX_GPUS} entries")
    return bounded(replace(found, details=_details(part)) if deep else found)


def _facts(host: str, part: Mapping[str, str]) -> HostFacts:
    return HostFacts(
        host=host,
        machine_id=part["machine"],
        hostname=part["hostname"],
        clock=float(number(part["clock"]) or 0),
        nics=_nics(part["nics"], {fields[0]: number(fields[1]) or 0 for fields in split_fields(part["speeds"], 2)}),
        hcas=tuple(_hcas(part["hcas"])),
        gpus=tuple(_gpus(part)),
        gids=tuple(_gids(part["gids"])),
        gpu_problem=next((line for line in part["gpus"].splitlines() if not _ROW.match(line)), "")[:300],
        logical_gpus=number(part["slots"]),
        memory_bytes=number(part["memory"]) or 0,
        listening=frozenset(_ports(part["listening"].split())),
        routes=dict(_routes(part["routes"].splitlines())),
        missing_paths=frozenset(part["missing"].splitlines()),
        free_bytes={f[0]: free for f in split_fields(part["disks"], 2) if (free := number(f[1])) is not None},
        docker=_engine(part),
        available_bytes=number(part["available"]) or 0,
        architecture=part["architecture"],
        boot_id=part["boot"],
        rdma_devices=tuple(part["rdma"].split()),
        distribution=tuple(_DISTRIBUTION.findall(part["distribution"])[:MAX_DISTRIBUTIONS]),
    )


def _nics(text: str, speeds: Mapping[str, int]) -> tuple[Nic, ...]:
    # Not JSON is an `ip` without -j (busybox): preflight then reports that no interface is known.
    rows = items(parse_json(text or "[]"))
    # Before something is made of them, which takes many times as much.
    ensure_few("nics", len(rows))
    found = (
        Nic(
            name=row["ifname"],
            addresses=tuple(_addresses(row)),
            mtu=number(row.get("mtu")) or 0,
            state=str(row.get("operstate", "UNKNOWN")),
            kind=str(mapping(row.get("linkinfo")).get("info_kind", "")),
            speed_mbit=speeds.get(row["ifname"], 0),
            dynamic=any(mapping(entry).get("dynamic") is True for entry in items(row.get("addr_info"))),
        )
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("ifname"), str)
    )
    return tuple(nic for nic in found if not _is_of_container(nic))


def _is_of_container(nic: Nic) -> bool:
    """Whether it is an end of a pair of which a container has the other: a host has hundreds, and none leads to hosts.

    The host's own may be one too, with an address.
    """
    return nic.kind == "veth" and all(entry.is_link_local for entry in nic.interfaces())


def _addresses(row: Mapping[str, object]) -> Iterable[str]:
    for entry in map(mapping, items(row.get("addr_info"))):
        address = f"{entry.get('local')}/{entry.get('prefixlen')}"
        try:
            yield str(ip_interface(address))
        except ValueError:
            continue


def _hcas(text: str) -> Iterable[Hca]:
    for device, port, state, link_layer, rate, verbs, nets, pci, numa, path, *_ in split_fields(text, 6):
        uverbs, netdevs = (tuple(filter(None, names.split(","))) for names in (verbs, nets))
        yield Hca(device, number(port) or 0, state, link_layer, rate, uverbs, netdevs, pci, number(numa), path)


def _gids(text: str) -> Iterable[Gid]:
    for device, port, index, address, kind, netdev, *_ in split_fields(text, 5):
        yield Gid(device, number(port) or 0, number(index) or 0, address, kind, netdev)


def _gpus(part: Mapping[str, str]) -> Iterable[Gpu]:
    links = parse_topology(part["gputopology"])
    processes = parse_processes(part["gpuprocesses"])
    places = {bus: (path, number(numa)) for bus, path, numa, *_ in split_fields(part["gpupaths"], 3)}
    for line in part["gpus"].splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) >= 4 and (index := number(fields[0])) is not None:
            used, driver, mig, ecc, bus, *_ = (*fields[4:], "", "", "", "", "")
            path, numa = places.get(bus.lower()[4:], ("", None))
            memory, unified = number(fields[3]), fields[3].strip("[]") in _NO_MEMORY
            yield Gpu(
                index,
                uuid=fields[1],
                name=fields[2],
                memory_mib=unified_mib(number(part["memory"]) or 0) if unified else memory or 0,
                used_mib=number(used) or 0,
                driver=driver,
                mig={"Enabled": True, "Disabled": False}.get(mig),
                ecc_errors=number(ecc),
                unified=unified,
                numa=numa,
                pci_path=path,
                topology=links.get(index, ()),
                # Once: of rows that all claim one UUID each would get the processes of all.
                processes=processes.pop(fields[1], ()),
            )


def unified_mib(memory: int) -> int:
    """MiB of a host's memory, in bytes, that a GPU without memory of its own can have."""
    return max(0, memory - max(MIN_RESERVE, memory // 10)) >> 20


def _ports(words: Iterable[str]) -> Iterable[int]:
    for word in words:
        if re.fullmatch("[0-9A-Fa-f]{1,4}", word):
            yield int(word, 16)


def _routes(lines: Iterable[str]) -> Iterable[tuple[str, str | None]]:
    for line in lines:
        address, _, interface = line.partition(" ")
        if address:
            yield address, interface.strip() or None


def _engine(part: Mapping[str, str]) -> DockerFacts:
    server, info = mapping(part["docker"]), part["dockerinfo"]
    info_json = mapping(next((line for line in info.splitlines() if line.startswith('{"Root"')), ""))
    api = str(server.get("ApiVersion", ""))
    if not _VERSION.fullmatch(api):
        problem = "\n".join(line for line in info.splitlines() if not line.startswith("{")).strip()
        return DockerFacts(problem=problem[:MAX_TEXT] or "no answer")
    kinds = (_BEFORE_KIND.split(line)[-1] for line in part["cdi"].splitlines())
    toolkit = _VERSION.search(part["toolkit"])
    folders, devices = _json_lists(part["dockercdi"])
    return DockerFacts(
        id=str(info_json.get("ID") or ""),
        version=_word(server.get("Version")),
        api_version=api,
        architecture=_word(server.get("Arch")),
        container_runtimes=tuple(sorted(mapping(info_json.get("Runtimes")))),
        cdi_specs=tuple(sorted(set(filter(None, kinds)))),
        data_root=str(info_json.get("Root") or ""),
        cgroup_driver=_word(info_json.get("CgroupDriver")),
        cgroup_version=_word(info_json.get("CgroupVersion")),
        rootless="name=rootless" in map(str, items(info_json.get("SecurityOptions"))),
        toolkit_version=toolkit[0] if toolkit else "",
        gpu_hook="hook" in part["toolkit"].split(),
        missing_cdi_paths=tuple(part["cdistale"].splitlines()),
        cdi_enabled=any(folders) if folders is not None else None,
        cdi_devices=tuple(sorted(str(mapping(row).get("ID", "")) for row in devices or () if isinstance(row, dict))),
    )


def _word(value: object) -> str:
    """A version or a name as Docker has them; nothing for what cannot be one."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else ""


def _json_lists(text: str) -> Iterator[list[object] | None]:
    """The lists in lines of JSON, None for a line that is not there; Docker writes null for an empty one."""
    for line in (*text.splitlines(), "", "")[:2]:
        info_json = parse_json(line) if line else None
        yield info_json if isinstance(info_json, list) else ([] if line == "null" else None)


def _details(part: Mapping[str, str]) -> Details:
    """What the longer script printed; a section without words leaves its field unknown."""
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
        docker_memlock=part["enginelock"],
        hostname_addresses=tuple(dict.fromkeys(resolves)) if asked == "asked" else None,
        filesystems=tuple(_filesystems(part["filesystems"])),
        revisions={f[0]: f[1] for f in split_fields(part["revisions"], 2) if _MODEL.fullmatch(f[0]) and f[1].isalnum()},
        incomplete_files=tuple(part["incomplete"].splitlines()),
        broken_symlinks=tuple(part["dangling"].splitlines()),
        without_tokenizer=tuple(part["untokenized"].splitlines()),
    )


def _service(text: str) -> str:
    """A service's state as systemd calls it; empty where there is none of that name."""
    words = dict(line.partition("=")[::2] for line in text.splitlines())
    return "" if words.get("LoadState") == "not-found" else words.get("ActiveState", "")


def _filesystems(text: str) -> Iterable[FileSystem]:
    for path, kind, source, mount, total, uuid, *_ in split_fields(text, 5):
        yield FileSystem(path, kind, source, mount, number(total) or 0, uuid)
