"""One host's Docker: the calls that vcluster makes, each with a deadline and an error that names the host."""

from __future__ import annotations

import io
import json
import posixpath
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TypeVar

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, Clock, Deadline
from vllm_cluster.kernel.docker import parse
from vllm_cluster.kernel.docker.archive import BEGINNING, first_entry, has_entries
from vllm_cluster.kernel.docker.calls import CALL_SECONDS, PIECE, Call, Calls, NotFound, Unreadable, path
from vllm_cluster.kernel.docker.connection import Guard, OpenStream
from vllm_cluster.kernel.docker.log_frames import OutputFrames
from vllm_cluster.kernel.docker.streams import Streams
from vllm_cluster.kernel.docker.tar_stream import TarStream
from vllm_cluster.kernel.docker.volumes import Volumes
from vllm_cluster.kernel.errors import CommandFailed
from vllm_cluster.kernel.facts.docker_objects import Container, ContainerInfo, Image, ImageInfo
from vllm_cluster.kernel.held import Memory
from vllm_cluster.kernel.transport.base import Stream, Transport
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument, bounded

# The newest that these calls were tried with; Docker speaks older dialects down to its own minimum.
MAX_API = (1, 47)

# What is kept of text from a host: a log of one endless line must not fill our memory.
MAX_LOG = 256 << 10
# What is read of a log to find its end: Docker sends the oldest line first, and keeps at most 16 KiB of each.
MAX_LOG_READ = 32 << 20
# Of what a build printed, and of the reason why it failed.
MAX_BUILD_LOG, MAX_ERROR = 2000, 4000
MAX_FILE = MAX_BYTES
MAX_SYMLINKS = 5
# Docker looks up a file's size and then opens it by name: one that is replaced in between comes cut, or ends the
# archive early (70 of 1,206 reads of a file that a loop replaced, on Docker 20.10).
MAX_READS = 4
# For a file of that size over a slow line.
FILE_SECONDS = 120.0
# Some ten thousand files of an image on a busy disk.
REMOVE_SECONDS = 300.0
# Docker would run the check that an image brings in each container of it, again and again.
UNCHECKED: Mapping[str, object] = {"Healthcheck": {"Test": ["NONE"]}}
T = TypeVar("T")

DIAL = ("docker", "system", "dial-stdio")


class DockerApi:
    """The Docker of one host. Safe to use from several threads."""

    def __init__(
        self, transport: Transport, api_version: str, guard: Guard | None = None, *, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.host = transport.host

        def open_stream() -> Stream:
            return transport.open_stream(DIAL, self._calls.after(CALL_SECONDS))

        # A fixed version saves the round trip of asking for it.
        spoken = min(tuple(int(part) for part in api_version.split(".")), MAX_API)
        self._calls = Calls(transport.host, ".".join(map(str, spoken)), open_stream, guard, clock)
        self.volumes, self.streams = Volumes(self._calls), Streams(self._calls)
        # Whose the files are that are written: root's, unless the containers run as another user.
        self.owner = (0, 0)

    @property
    def requests(self) -> int:
        """How many calls were made."""
        return self._calls.count

    @property
    def guard(self) -> Guard | None:
        """What is called right before each call that may change the host (all but GET and HEAD) is sent.

        What it raises reaches the caller, and nothing was sent.
        """
        return self._calls.guard

    @guard.setter
    def guard(self, guard: Guard | None) -> None:
        self._calls.guard = guard

    @property
    def now(self) -> float | None:
        """The host's own clock when Docker answered last, as seconds of Unix time; None where it sent none."""
        return self._calls.now

    def after(self, seconds: float) -> Deadline:
        """The moment `seconds` from now."""
        return self._calls.after(seconds)

    @contextmanager
    def counted(self, memory: Memory, most: int) -> Iterator[None]:
        """Count meanwhile what is made of answers as kept there; from now on one read at once has so many bytes."""
        self._calls.memory, self._calls.most = memory, most
        try:
            yield
        finally:
            self._calls.memory = None

    def fence(self, open_stream: OpenStream) -> None:
        """Send what follows over streams that `open_stream` opens; idle ones of before are closed."""
        self._calls.pool.fence(open_stream)

    def without_idle(self) -> AbstractContextManager[None]:
        """Keep no stream that is not used meanwhile."""
        return self._calls.pool.without_idle()

    def close(self) -> None:
        """Close the streams."""
        self._calls.pool.close()

    def containers(self, label: str | None) -> tuple[Container, ...]:
        """Every container, running or not, that has the label (`key` or `key=value`); None: any."""
        query = {"all": 1, "filters": json.dumps({"label": [label]}) if label else None}
        return self._calls.rows(Call("list containers", "GET", "/containers/json", query), parse.listed_container)

    def container_info(self, name: str) -> ContainerInfo | None:
        """The output of `docker inspect` for a container, None where there is none of that name or id."""
        return self._info(Call(f"inspect {name}", "GET", path("containers", name, "json")), parse.container)

    def container_document(self, name: str) -> dict[str, object]:
        """All of the output of `docker inspect` for a container, for a report; empty where there is none."""
        return self._info(Call(f"inspect {name}", "GET", path("containers", name, "json")), parse.whole) or {}

    def images(self) -> tuple[Image, ...]:
        """Every image that has a name."""
        return self._calls.rows(Call("list images", "GET", "/images/json"), parse.listed_image)

    def image_info(self, reference: str, deadline: Deadline | None = None) -> ImageInfo | None:
        """The output of `docker image inspect`, None where the image is not there."""
        call = Call(f"inspect image {reference}", "GET", path("images", reference, "json"))
        return self._info(call, parse.read_image, deadline)

    def _info(self, call: Call, read: Callable[[object], T], deadline: Deadline | None = None) -> T | None:
        try:
            return self._calls.ask(call, read, deadline)
        except NotFound:
            return None

    def build(
        self,
        context: bytes | TarStream,
        tag: str,
        arguments: Mapping[str, str],
        labels: Mapping[str, str],
        deadline: Deadline,
    ) -> str:
        """Build an image, without network, from a tar archive that holds a Dockerfile; returns its id."""
        query = {"t": tag, "buildargs": json.dumps(arguments), "labels": json.dumps(labels)}
        query |= {"rm": "1", "forcerm": "1", "networkmode": "none"}
        call = Call(f"build {tag}", "POST", "/build", query, body=context)
        with self._calls.stream(call, deadline) as reply:
            try:
                problem, log = _built(reply.messages())
            except RefusedDocument as refused:
                raise reply.unreadable(f"{refused.field} {refused.why}") from None
        if problem:
            raise CommandFailed(self.host, f"cannot build {tag}: {problem}\n{log}", exit_code=1, stderr=log, again=())
        made = self.image_info(tag)
        if made is None:
            raise CommandFailed(self.host, f"{tag} was built and is not there", exit_code=1, stderr=log, again=())
        return made.id

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        """Give an image another name."""
        query = {"repo": repository, "tag": tag}
        self._calls.do(Call(f"tag {repository}:{tag}", "POST", path("images", image_id, "tag"), query))

    def remove_image(self, reference: str, deadline: Deadline | None = None) -> None:
        """Remove an image by a name, or one that has none by its id; no error where it is gone."""
        with suppress(NotFound):
            call = Call(f"remove image {reference}", "DELETE", path("images", reference))
            self._calls.ask(call, lambda _: None, deadline or self._calls.after(REMOVE_SECONDS))

    def create(self, name: str, body: Mapping[str, object]) -> str:
        """Create a container from an Engine API body, without its image's own health check; returns its id."""
        call = Call(f"create {name}", "POST", "/containers/create", {"name": name}, {**body, **UNCHECKED})
        return self._calls.ask(call, lambda made: parse.text(made, "Id"))

    def start(self, container: str) -> None:
        """Start a container; no error where it runs."""
        self._calls.do(Call(f"start {container[:12]}", "POST", path("containers", container, "start")))

    def restart(self, container: str, grace: int = 30) -> None:
        """Stop a container, kill it after `grace` seconds, and start it."""
        call = Call(f"restart {container[:12]}", "POST", path("containers", container, "restart"), {"t": grace})
        self._calls.do(call, self._calls.after(grace + CALL_SECONDS))

    def remove(self, container: str, grace: int = 30, deadline: Deadline | None = None) -> None:
        """Stop a container with `grace` seconds to end by itself, and remove it; no error where it is gone."""
        deadline = deadline.sooner(grace + CALL_SECONDS) if deadline else self._calls.after(grace + CALL_SECONDS)
        there, short = path("containers", container), container[:12]
        try:
            self._calls.do(Call(f"stop {short}", "POST", f"{there}/stop", {"t": grace}), deadline)
            self._calls.do(Call(f"remove {short}", "DELETE", there, {"force": 1, "v": 1}), deadline)
        except NotFound:
            return
        except CommandFailed as error:
            if error.returncode != 409:
                raise
            # A removal that began earlier is under way, and keeps the name till it ends.
            gone = Call(f"wait for {short} to go", "POST", f"{there}/wait", {"condition": "removed"})
            with suppress(NotFound):
                self._calls.do(gone, deadline)

    def logs(self, container: str, tail: int = 200, *, times: bool = False, most: int = MAX_LOG) -> str:
        """The last lines that a container printed, both streams, with the time of each: whole ones of `most` bytes."""
        query = {"stdout": 1, "stderr": 1, "tail": tail, "timestamps": int(times)}
        call = Call(f"read the log of {container[:12]}", "GET", path("containers", container, "logs"), query)
        kept, size, cut, frames = bytearray(), 0, False, OutputFrames()
        with self._calls.stream(call) as reply:
            for piece in reply.pieces():
                try:
                    kept += b"".join(content for _, content in frames.parts(piece))
                except ValueError as error:
                    raise reply.unreadable(error) from None
                cut = cut or len(kept) > most
                del kept[:-most]
                size += len(piece)
                if size > MAX_LOG_READ:
                    break
        return _whole_lines(kept, cut).decode("utf-8", "replace")

    def put_files(
        self, container: str, folder: str, files: Mapping[str, tuple[bytes, int]], folders: Iterable[str] = ()
    ) -> None:
        """Write files (name → content, mode) of `self.owner` below a folder of a container, running or not.

        `folders` are those below it, for the owner alone: Docker makes what is not named, for root.
        """
        there, query = path("containers", container, "archive"), {"path": folder}
        what = f"write files to {container[:12]}"
        body = packed(files, self.owner, folders)
        call = Call(what, "PUT", there, query, body=body, answer_seconds=CALL_SECONDS)
        self._calls.do(call, self._calls.after(FILE_SECONDS))

    def read_file(
        self, container: str, place: str, limit: int = MAX_FILE, until: Deadline | None = None
    ) -> bytes | None:
        """A file of a container, running or not; at most `limit` bytes, None where there is no such file.

        What is replaced while Docker reads it is read again; a document that stays damaged is returned as it is. All
        of that ends by `until`, and by the time that one file has.

        Raises:
            Unreadable: what Docker sends is not an archive, or would take too much memory as a document.
        """
        until = until.sooner(FILE_SECONDS) if until else self._calls.after(FILE_SECONDS)
        for _ in range(MAX_READS - 1):
            with suppress(Unreadable):
                content = self._read_file(container, place, limit, until)
                if not (content and _is_cut(place, content)):
                    return content
        return self._read_file(container, place, limit, until)

    def _read_file(self, container: str, place: str, limit: int, until: Deadline) -> bytes | None:
        for _ in range(MAX_SYMLINKS):
            call = Call(f"read {place}", "GET", path("containers", container, "archive"), {"path": place})
            try:
                with self._calls.stream(call, until) as reply:
                    data = reply.read(limit + BEGINNING)
                    with reply.reading():
                        found = _first(data, limit)
                        if isinstance(found, bytes) and place.endswith(".json"):
                            bounded(found, limit)
            except NotFound:
                return None
            if not isinstance(found, str):
                return found
            # Docker sends a link as itself, not what it points to.
            place = _link_target(place, found)
        return None

    def read_end(self, container: str, place: str, limit: int, kept: int) -> bytes | None:
        """The whole lines of the last `kept` bytes of the first `limit` of a file of a container; None without a file.

        The rest is not held: 17 MB of each of 32 hosts at once took 2 GB.

        Raises:
            Unreadable: what Docker sends is not an archive.
        """
        call = Call(f"read {place}", "GET", path("containers", container, "archive"), {"path": place})
        with suppress(NotFound), self._calls.stream(call, self._calls.after(FILE_SECONDS)) as reply:
            data = reply.read(BEGINNING)
            with reply.reading():
                entry = first_entry(data)
            if entry is None or not entry.is_file:
                return None
            size = min(entry.size, limit)
            end = bytearray(data[entry.begin :][: entry.size])
            left = size - len(end)
            while left > 0 and (piece := reply.read(min(PIECE, left))):
                end += piece
                del end[:-kept]
                left -= len(piece)
            return bytes(_whole_lines(end[-kept:], size > kept))
        return None

    def has_files(self, container: str, folder: str, seconds: float) -> bool:
        """Whether a folder of a container, running or not, is there and has anything in it."""
        call = Call(f"look into {folder}", "GET", path("containers", container, "archive"), {"path": folder})
        try:
            with self._calls.stream(call, self._calls.after(seconds)) as reply:
                # The beginning is enough: what follows may be gigabytes.
                data = reply.read(BEGINNING)
                with reply.reading():
                    return has_entries(data)
        except NotFound:
            return False


def _built(messages: Iterable[Mapping[str, object]]) -> tuple[str, str]:
    """Read what a build prints: the error in it, empty where it succeeded, and the end of its log."""
    log = ""
    for row in map(parse.build_row, messages):
        log = (log + row.stream)[-MAX_BUILD_LOG:]
        if row.error is not None:
            return (row.error or "without a reason")[:MAX_ERROR], log.strip()
    return "", log.strip()


def packed(
    files: Mapping[str, tuple[bytes, int]], owner: tuple[int, int] = (0, 0), folders: Iterable[str] = ()
) -> bytes:
    """An archive of files of one owner: name → content, mode; and of folders, for the owner alone."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name in folders:
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o700
            entry.uid, entry.gid = owner
            tar.addfile(entry)
        for name, (content, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            entry.uid, entry.gid = owner
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()


def _whole_lines(end: bytearray, cut: bool) -> bytearray:
    # A part of a secret in the first line would have its shape no more.
    return end[end.find(b"\n") + 1 :] if cut else end


def _first(data: bytes, limit: int) -> bytes | str | None:
    """The first entry: at most `limit` bytes of a file, where a link points to, or None for anything else.

    Raises:
        ValueError: it is not an archive, or ends in the middle.
    """
    entry = first_entry(data)
    if entry and entry.is_file:
        return entry.content(data, limit)
    # It becomes a part of the next request.
    return (entry and entry.link) or None


def _is_cut(place: str, content: bytes) -> bool:
    """Whether a document was cut: Docker sends no more of a file than what it had before it was replaced."""
    if not place.endswith(".json"):
        return False
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return True
    return False


def _link_target(place: str, link: str) -> str:
    """Where a link that lies at a place points to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
