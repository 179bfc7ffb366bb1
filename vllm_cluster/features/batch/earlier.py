"""The batches of an input that was shorter: what is answered of them is not asked again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping

from vllm_cluster.features.batch.on_head.files import BatchFiles
from vllm_cluster.features.batch.on_head.lines import BatchKey, Source
from vllm_cluster.features.batch.replies import JobEntry, read_entries
from vllm_cluster.kernel.hosts.program import Message
from vllm_cluster.kernel.laptop import whoami

LOOKED_AT = 3


def earlier(entries: tuple[JobEntry, ...], files: BatchFiles, fields: Mapping[str, object], key: str) -> list[str]:
    """Return the keys of the batches that this user has begun with the beginning of this input, for this output.

    Of many only the longest: each ends those before it, so there is one, and a head may list what it likes.
    Those of another input or of other options have other keys, also where their output has the same name.
    """
    me, output = whoami(), str(files.output.absolute())
    mine = {one.key for one in entries if one.asked and (one.asked.user, one.asked.output) == (me, output)} - {key}
    return [*deque((one for one in keys(files, fields) if one in mine), LOOKED_AT)] if mine else []


def keys(files: BatchFiles, fields: Mapping[str, object]) -> Iterator[str]:
    """Make the key of each beginning of an input: of one line, of two, and so on; the last is its own."""
    key = BatchKey(fields)
    for number, raw in Source(files.source).lines():
        yield key.add(number, raw)


def read_known(reply: Message) -> tuple[JobEntry, ...]:
    """Read the reply to `batches`; none where it cannot be read: what others have there ends no batch."""
    try:
        return read_entries(reply)
    except ValueError:
        return ()
