"""Reads which models lie in the cache of a host, as the user of its connection."""

from __future__ import annotations

from importlib.resources import files

from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.held import one_at_a_time
from vllm_cluster.kernel.hosts.connection import HostConnection
from vllm_cluster.kernel.inventory.model import Inventory
from vllm_cluster.kernel.models.listed import CachedModel, parse_models
from vllm_cluster.kernel.text import end_of

# Some seconds for each model: the size of one on a network file system is asked file by file.
LIST_SECONDS = 300.0
# The script ends its list at 500 models and 200,000 bytes.
MAX_LIST = 256 << 10


def cached(inventory: Inventory, connection: HostConnection, seconds: float = LIST_SECONDS) -> tuple[CachedModel, ...]:
    """The models in the cache of one host, which has so long for its list.

    Raises:
        CommandFailed: it cannot be read.
    """
    script = files("vllm_cluster.kernel.models").joinpath("models.sh").read_bytes()
    result = connection.transport.run(
        ["sh", "-s", "--", inventory.model_cache], connection.runtime.after(seconds), stdin=script, most=MAX_LIST
    )
    try:
        with one_at_a_time():
            return connection.memory.keep(parse_models(result.text))
    except ValueError as error:
        stderr = result.stderr.decode("utf-8", "replace").strip()
        text = f"models: {error}: {end_of(stderr, 300)}"
        raise CommandFailed(connection.name, text, exit_code=result.returncode, stderr=stderr, again=()) from error
