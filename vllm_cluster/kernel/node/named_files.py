"""The files that a head names, one for each of its replicas: its word alone can name thousands, each large and slow."""

from __future__ import annotations

from vllm_cluster.kernel.errors import HostError, TimedOut
from vllm_cluster.kernel.node.handle import NodeHandle
from vllm_cluster.kernel.plan.desired import STATE_FOLDER
from vllm_cluster.kernel.shell_line import Option, command_line
from vllm_cluster.kernel.text import size
from vllm_cluster.wire.order import READY, TAKEN, Placement, Taken, of_replica, read_ready, read_taken
from vllm_cluster.wire.reading import RefusedDocument

# An honest replica has some 10 KB, and is read in some 20 ms.
MAX_ALL, ALL_SECONDS = 16 * 1000**2, 60.0


class Spent(HostError):
    """What a head names is larger, or takes longer, than all of it may."""

    code = "keeps-too-much"


class NamedFiles:
    """Reads files of a head one by one, with one limit in bytes and one deadline for all of them.

    Who reads lets go of one before the next: what Python makes of a document takes several times its bytes.
    """

    def __init__(self, node: NodeHandle, seconds: float = ALL_SECONDS, most: int = MAX_ALL) -> None:
        self._node, self._seconds, self._most = node, seconds, most
        self._until, self._left = node.connection.runtime.after(seconds), most

    def read(self, file: str, limit: int | None = None) -> bytes | None:
        """A file of the state volume; None where it is not there.

        Raises:
            Spent: all files together are too large, or took too long.
        """
        late = self._spent(f"{file}: all that it keeps cannot be read within {self._seconds:.0f} s")
        if not self._until.left():
            raise late
        try:
            content = self._node.read(file, limit, self._until)
        except TimedOut as error:
            if self._until.left():
                raise
            raise late from error
        self.count(file, len(content or b""))
        return content

    def count(self, file: str, number: int) -> None:
        """Take so many bytes from what is left for all.

        Raises:
            Spent: that is more than there is.
        """
        self._left -= number
        if self._left < 0:
            raise self._spent(f"{file}: all that it keeps is more than {size(self._most)}")

    def _spent(self, text: str) -> Spent:
        """The error, with the command that shows what is so large."""
        look = command_line("docker", "exec", self._node.name, "ls", Option("-lhSR"), STATE_FOLDER, on=self._node.host)
        return Spent(self._node.host, text, hint=look)

    def ready(self, index: int) -> tuple[Placement, ...]:
        """What was ready in the place of a replica, the newest last; nothing where that cannot be read.

        Raises:
            Spent: as `read`.
        """
        file = of_replica(READY, index)
        try:
            return read_ready(self.read(file) or b"", f"{self._node.host}: {file}").requests
        except RefusedDocument:
            return ()

    def taken(self, index: int) -> Taken:
        """What the head knows of the order of a replica; nothing where that cannot be read.

        Raises:
            Spent: as `read`.
        """
        file = of_replica(TAKEN, index)
        try:
            return read_taken(self.read(file) or b"{}", f"{self._node.host}: {file}")
        except RefusedDocument:
            return Taken()
