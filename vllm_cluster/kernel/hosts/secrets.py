"""The secrets of a cluster: read by reference, kept from the head, or generated."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vllm_cluster.kernel.backends import TOKEN
from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.problems import file_name
from vllm_cluster.kernel.inventory.secrets import read_secret
from vllm_cluster.kernel.laptop import here
from vllm_cluster.kernel.plan.desired import VARIABLE

if TYPE_CHECKING:
    from vllm_cluster.kernel.hosts.runtime import Runtime
    from vllm_cluster.kernel.inventory.model import Inventory, SecretRef

# Made by vcluster where the inventory has none, and kept for as long as the head's container is there.
GENERATED = (TOKEN, "api-key")
KEY_BYTES = 32


# In the place of the id of a secret that is not read and that the cluster does not have.
UNREAD = "unread"


@dataclass(frozen=True)
class KeptSecret:
    """The id that names a secret's file, and what the file holds: once it was rotated not what its name was made of."""

    identity: str
    content: str = field(repr=False)


@dataclass
class Secrets:
    """Ids by name, and those values that are known here; values never show in a repr."""

    ids: dict[str, str]
    values: dict[str, str] = field(repr=False)
    new: frozenset[str] = frozenset()

    def files(self, names: Mapping[str, str]) -> dict[str, tuple[bytes, int]]:
        """The secret files for a container, by file name: content and mode."""
        return {f"{name}-{identity}": (self.values[name].encode(), 0o600) for name, identity in names.items()}


def collect_secrets(inventory: Inventory, kept: Mapping[str, str], runtime: Runtime, *, read: bool = True) -> Secrets:
    """The secrets that the cluster shall have: given by reference, else kept (ids by name), else new.

    Without `read` what is given counts as unchanged.

    Raises:
        InventoryError: one that must be read cannot be.
    """
    given = references(inventory)
    made = {name: runtime.token(KEY_BYTES) for name in GENERATED if name not in {*kept, *given}}
    values = {**(read_references(inventory, given) if read else {}), **made}
    ids = {name: runtime.secret_id(inventory.cluster, name, value) for name, value in values.items()}
    ids |= {name: kept.get(name, UNREAD) for name in (*GENERATED, *given) if name not in ids}
    return Secrets(ids, values, frozenset(made))


def collect_with_values(inventory: Inventory, kept: Mapping[str, KeptSecret], runtime: Runtime) -> Secrets:
    """The same from what was kept by name, ready to be written."""
    found = collect_secrets(inventory, {name: secret.identity for name, secret in kept.items()}, runtime)
    return Secrets(found.ids, {**{name: secret.content for name, secret in kept.items()}, **found.values}, found.new)


def references(inventory: Inventory) -> dict[str, SecretRef]:
    """Where the secrets are that the inventory refers to, by name."""
    named = {"hf-token": inventory.hf_token, "api-key": inventory.api_key}
    given = {name: reference for name, reference in named.items() if reference}
    return {**given, **{VARIABLE + name: reference for name, reference in inventory.secrets.items()}}


def read_references(inventory: Inventory, wanted: Mapping[str, SecretRef]) -> dict[str, str]:
    """The values of these secrets.

    Raises:
        InventoryError: one of them is not where it should be.
    """
    base = inventory.path.parent if inventory.path else here()
    values = {}
    for name, reference in wanted.items():
        try:
            values[name] = read_secret(reference, base=base, environ=os.environ)
        except InventoryError as error:
            raise InventoryError(f"{_place(inventory, name)}: {error.message}", hint=error.hint) from None
    return values


def _place(inventory: Inventory, name: str) -> str:
    """The file, line and key of a secret's reference."""
    key = f"secrets.{name.removeprefix(VARIABLE)}" if name.startswith(VARIABLE) else name.replace("-", "_")
    line = inventory.lines.get(key)
    return f"{file_name(inventory.path)}:{line}: {key}" if line else key


def secret_id(cluster: str, name: str, value: str) -> str:
    """An id that changes with the value and gives nothing of it away: it is used in labels and paths.

    Slow on purpose (scrypt): a key that a person thought up must not be found by trying words.
    """
    digest = hashlib.scrypt(value.encode(), salt=f"vcluster/{cluster}/{name}".encode(), n=2**14, r=8, p=1, dklen=6)
    return digest.hex()
