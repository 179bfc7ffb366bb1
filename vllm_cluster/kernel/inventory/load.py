"""Read the inventory, and report all its problems at once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.beside import others_change, others_change_command
from vllm_cluster.kernel.inventory.consistency import check, ssh_key
from vllm_cluster.kernel.inventory.document import Document, read_document
from vllm_cluster.kernel.inventory.find import MAX_BYTES
from vllm_cluster.kernel.inventory.model import Host, HostSsh, Inventory, SecretRef, SshSettings
from vllm_cluster.kernel.inventory.problems import Loc, as_error, file_name
from vllm_cluster.kernel.inventory.sources import add_hosts
from vllm_cluster.kernel.inventory.validate import validate
from vllm_cluster.kernel.laptop import here

# The YAML parser needs 4 s for 100,000 of them.
MAX_BRACKETS = 5_000
# Each text is looked through for secrets: one of 165 kB, as the address of 3,500 hosts by an alias, took minutes.
MAX_TEXT = 2 * MAX_BYTES


def load_text(raw: bytes, *, path: Path | None, cwd: Path | None, found: bool = False) -> Inventory:
    """The inventory in these bytes; `path` is the file that they came from, None for standard input.

    One that was `found`, and not named, uses no file and runs no command that others may change.

    Raises:
        InventoryError: one line for each problem, with file, line and key.
    """
    base = path.parent if path else cwd or here()
    document = _document(raw)
    inventory = None
    if add_hosts(document, base, found=found):
        inventory = validate(document)
        check(document)
    if inventory is not None and not document.problems:
        inventory = _with_paths(inventory, _PathResolver(base, document, found=found))
    if inventory is None or document.problems:
        raise as_error(document.problems, file_name(path, cwd))
    hosts = {
        name: host.model_copy(update={"line": document.line(("hosts", name))}) for name, host in inventory.hosts.items()
    }
    keys: list[tuple[str, ...]] = [("hf_token",), ("api_key",), *(("secrets", name) for name in inventory.secrets)]
    keys += [("ssh", "config"), ("ssh", "identity"), *(("hosts", name, "ssh", "identity") for name in hosts)]
    lines = {".".join(key): document.line(key) for key in keys}
    known = {"path": path, "found": found, "hosts": hosts, "lines": lines, "lent_until": document.lent_until}
    return inventory.model_copy(update=known)


def _document(raw: bytes) -> Document:
    document = Document()
    if len(raw) > MAX_BYTES:
        document.add_problem((), f"larger than {MAX_BYTES // 1000} kB, the limit of an inventory")
        return document
    if raw.count(b"[") > MAX_BRACKETS:
        document.add_problem((), "nested too deep to be an inventory")
        return document
    try:
        return read_document(raw.decode("utf-8-sig"), MAX_TEXT)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        document.add_problem((), "is not UTF-8 text: save the file as UTF-8", line)
        return document


def _with_paths(inventory: Inventory, ends: _PathResolver) -> Inventory:
    """The inventory with every path of this machine absolute, relative ones to its folder and ~ expanded.

    What cannot be expanded, or may not be used, is noted in the document.
    """
    hosts = {
        name: host.model_copy(update={"ssh": ends.ssh(host.ssh, ("hosts", name, "ssh"))})
        for name, host in inventory.hosts.items()
    }
    return inventory.model_copy(
        update={
            "ssh": ends.settings(inventory.ssh),
            "hosts": hosts,
            "hf_token": ends.secret(inventory.hf_token, ("hf_token",)),
            "api_key": ends.secret(inventory.api_key, ("api_key",)),
            "secrets": {name: ends.reference(ref, ("secrets", name)) for name, ref in inventory.secrets.items()},
        }
    )


class _PathResolver:
    def __init__(self, base: Path, document: Document, *, found: bool) -> None:
        self.base = base
        self.document = document
        self.found = found

    def settings(self, ssh: SshSettings) -> SshSettings:
        update = {"config": self.path(ssh.config, ("ssh", "config"))}
        return ssh.model_copy(update={**update, "identity": self.path(ssh.identity, ("ssh", "identity"))})

    def ssh(self, ssh: HostSsh, loc: Loc) -> HostSsh:
        return ssh.model_copy(update={"identity": self.path(ssh.identity, (*loc, "identity"))})

    def secret(self, ref: SecretRef | None, loc: Loc) -> SecretRef | None:
        return self.reference(ref, loc) if ref else None

    def reference(self, ref: SecretRef, loc: Loc) -> SecretRef:
        if self.found and ref.kind == "cmd" and (why := others_change_command(ref.value, self.base)):
            self.document.add_problem(loc, why)
        if ref.kind != "file":
            return ref
        return ref.model_copy(update={"value": str(self.path(Path(ref.value), loc))})

    def path(self, path: Path | None, loc: Loc) -> Path | None:
        if path is None:
            return None
        try:
            whole = self.base / path.expanduser()
        except RuntimeError:
            self.document.add_problem(loc, "begins with ~ of a user that this machine does not know")
            return path
        if self.found and (why := others_change(whole)):
            self.document.add_problem(loc, why)
        return whole


def duplicates_by_resolution(inventory: Inventory, resolve: Callable[[Host], tuple[str | int, ...]]) -> None:
    """Reject hosts that ssh_config resolves to one endpoint.

    `resolve` gives (host name, port), and may add what else separates two routes, such as a jump host.

    Raises:
        InventoryError: two hosts resolve to the same endpoint.
    """
    seen: dict[tuple[object, ...], str] = {}
    lines: list[str] = []
    file = file_name(inventory.path)
    for name, host in inventory.hosts.items():
        way = ssh_key(host, inventory.ssh)
        jump = way[-1] if isinstance(way, tuple) else None
        end = resolve(host)
        first = seen.setdefault((*end, jump), name)
        if first != name:
            other = inventory.hosts[first]
            lines.append(
                f"{file}:{host.line or 1}: hosts.{name}: reaches {end[0]} port {end[1]}, as hosts.{first} "
                f"on line {other.line or 1} does: list each host once"
            )
    if lines:
        raise InventoryError(*lines)
