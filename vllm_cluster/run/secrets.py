"""The secrets of a cluster: read by reference, kept from the head, or made anew."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vllm_cluster.core.desired import SECRETS_FOLDER
from vllm_cluster.core.errors import HostError
from vllm_cluster.docker.engine import EngineClient
from vllm_cluster.inventory.model import Inventory, SecretRef
from vllm_cluster.inventory.secrets import read_secret

if TYPE_CHECKING:
    from vllm_cluster.run.runtime import Runtime

# Made by vcluster where nobody gives them, and kept for as long as the head's container is there.
GENERATED = ("ray-token", "api-key")


@dataclass
class Secrets:
    """Ids by name, and those values that are known here; values never show in a repr."""

    ids: dict[str, str]
    values: dict[str, str] = field(repr=False)

    def complete(self, head: EngineClient, container: str) -> None:
        """Fetch the kept values from the head, so that a new node can be given them.

        Raises:
            HostError: the head does not hold one of them.
        """
        for name, identity in self.ids.items():
            if name not in self.values:
                content = head.read_file(container, f"{SECRETS_FOLDER}/{name}-{identity}")
                if content is None:
                    raise HostError(
                        head.host,
                        f"the head holds no {name.replace('-', ' ')} any more",
                        hint="vcluster down, then vcluster up: that makes new ones",
                    )
                self.values[name] = content.decode()

    def files(self, names: Mapping[str, str]) -> dict[str, tuple[bytes, int]]:
        """The secret files for a container, by file name: content and mode."""
        return {f"{name}-{identity}": (self.values[name].encode(), 0o600) for name, identity in names.items()}


def gather(inventory: Inventory, kept: Mapping[str, str], runtime: Runtime) -> Secrets:
    """The secrets that the cluster shall have: given by reference, else kept, else new."""
    values = read(inventory, references(inventory), runtime)
    ids = {name: runtime.secret_id(inventory.cluster, name, value) for name, value in values.items()}
    for name in GENERATED:
        if name in ids:
            continue
        if name in kept:
            ids[name] = kept[name]
        else:
            values[name] = runtime.token(32)
            ids[name] = runtime.secret_id(inventory.cluster, name, values[name])
    return Secrets(ids, values)


def references(inventory: Inventory) -> dict[str, SecretRef]:
    """Where the secrets are that the inventory refers to, by name."""
    named = {"hf-token": inventory.hf_token, "api-key": inventory.api_key}
    return {name: reference for name, reference in named.items() if reference}


def read(inventory: Inventory, wanted: Mapping[str, SecretRef], runtime: Runtime) -> dict[str, str]:
    """The values of these secrets.

    Raises:
        InventoryError: one of them is not where it should be.
    """
    base = inventory.path.parent if inventory.path else Path.cwd()
    return {
        name: read_secret(reference, base=base, environ=os.environ, run=runtime.processes)
        for name, reference in wanted.items()
    }


def identify(cluster: str, name: str, value: str) -> str:
    """An id that changes with the value and gives nothing of it away: it stands in labels and paths.

    Slow on purpose (scrypt): a key that a person thought up must not be found by trying words.
    """
    digest = hashlib.scrypt(value.encode(), salt=f"vcluster/{cluster}/{name}".encode(), n=2**14, r=8, p=1, dklen=6)
    return digest.hex()
