"""Paths of this machine that an inventory names: relative to its folder, ~ expanded."""

from __future__ import annotations

from pathlib import Path

from vllm_cluster.inventory.model import HostSsh, Inventory, SecretRef, SshSettings
from vllm_cluster.inventory.problems import Loc
from vllm_cluster.inventory.sources.yaml_file import Document


def resolve_paths(inventory: Inventory, base: Path, document: Document) -> Inventory:
    """The inventory with every local path absolute; what cannot be expanded is noted in the document."""
    ends = _PathResolver(base, document)
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
    def __init__(self, base: Path, document: Document) -> None:
        self.base = base
        self.document = document

    def settings(self, ssh: SshSettings) -> SshSettings:
        update = {"config": self.path(ssh.config, ("ssh", "config"))}
        return ssh.model_copy(update={**update, "identity": self.path(ssh.identity, ("ssh", "identity"))})

    def ssh(self, ssh: HostSsh, loc: Loc) -> HostSsh:
        return ssh.model_copy(update={"identity": self.path(ssh.identity, (*loc, "identity"))})

    def secret(self, ref: SecretRef | None, loc: Loc) -> SecretRef | None:
        return self.reference(ref, loc) if ref else None

    def reference(self, ref: SecretRef, loc: Loc) -> SecretRef:
        if ref.kind != "file":
            return ref
        return ref.model_copy(update={"value": str(self.path(Path(ref.value), loc))})

    def path(self, path: Path | None, loc: Loc) -> Path | None:
        if path is None:
            return None
        try:
            return self.base / path.expanduser()
        except RuntimeError:
            self.document.add_problem(loc, "begins with ~ of a user that this machine does not know")
            return path
