"""One host's Docker engine: the calls that vcluster makes, each with a deadline and an error that names the host."""

from __future__ import annotations

import io
import posixpath
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, cast

import docker
import docker.errors
import requests
import urllib3.exceptions

from vllm_cluster.core.errors import CommandFailed, HostError, Lost, TimedOut, Unreachable
from vllm_cluster.core.facts import Container, Image
from vllm_cluster.docker.output import Ended, read_framed
from vllm_cluster.docker.stream import OpenStream, StreamAdapter
from vllm_cluster.docker.volumes import Volumes
from vllm_cluster.transport.base import Deadline, Transport

# The Engine API of Docker 20.10, the oldest that device requests and our filters were seen with.
OLDEST_API = (1, 41)
# The newest that the SDK was tried with; an engine speaks older dialects down to its own minimum.
NEWEST_API = (1, 47)

CALL_SECONDS = 30.0
# What is kept of text from a host: a log of one endless line, or an error of many pages, must not fill our memory.
MAX_LOG = 256 << 10
MAX_OUTPUT = 4 << 20
MAX_REASON = 4000
MOST_LINKS = 5


class EngineClient:
    """The Engine API of one host. Safe to use from several threads.

    `guard`, where one is set, is called right before each call that may change the host (all but GET and HEAD); what
    it raises reaches the caller, and nothing was sent.
    """

    def __init__(self, transport: Transport, api_version: str, guard: Callable[[], None] | None = None) -> None:
        self.host = transport.host
        self.guard = guard
        self.requests = 0
        self.volumes = Volumes(transport.host, self._call)

        def open_stream() -> Any:
            return transport.open_stream(["docker", "system", "dial-stdio"], Deadline.after(CALL_SECONDS))

        # A fixed version saves the round trip that the SDK would spend on asking for it.
        spoken = min(tuple(int(part) for part in api_version.split(".")), NEWEST_API)
        self._api = docker.APIClient(base_url="tcp://localhost:1", version=".".join(map(str, spoken)))
        self._api.trust_env = False  # a proxy set on the laptop is not on the way to the host
        # Only under this address does the SDK treat a reply that turns into a stream as ours.
        self._api.base_url = "http+docker://ssh"
        self._adapter: StreamAdapter | None = None
        self.fence(open_stream)

    def fence(self, open_stream: OpenStream) -> None:
        """Send what follows over streams that `open_stream` opens; idle ones of before are closed."""
        before, self._adapter = self._adapter, StreamAdapter(open_stream, CALL_SECONDS, self._longest, self._ask_guard)
        self._api.mount("http+docker://", self._adapter)
        if before:
            before.close()

    def _longest(self) -> float:
        return float(self._api.timeout)

    def _ask_guard(self) -> None:
        if self.guard:
            self.guard()

    def close(self) -> None:
        """Close the streams."""
        self._api.close()

    @contextmanager
    def _call(self, what: str, deadline: Deadline | None = None, hint: str | None = None) -> Iterator[Any]:
        self.requests += 1
        api = cast(Any, self._api)
        api.timeout = max(1.0, deadline.left()) if deadline else CALL_SECONDS
        try:
            yield api
        except docker.errors.APIError as error:
            reason = str(error.explanation or error)[:MAX_REASON]
            raise CommandFailed(
                self.host,
                f"{what}: Docker says: {reason}",
                exit_code=error.status_code or 1,
                stderr=reason,
                hint=hint,
            ) from error
        except Unreachable as error:
            # This client is made over a connection that stood: what was asked before may have happened.
            raise Lost(self.host, f"{what}: {error.detail}", hint=error.hint) from error
        except HostError:
            raise
        except (requests.Timeout, TimeoutError, urllib3.exceptions.TimeoutError) as error:
            raise TimedOut(self.host, f"{what}: Docker did not answer within {api.timeout:.0f} s") from error
        except (requests.RequestException, urllib3.exceptions.HTTPError, OSError, EOFError) as error:
            raise Lost(self.host, f"{what}: the connection to Docker broke: {error}") from error

    def containers(self, label: str | None) -> tuple[Container, ...]:
        """Every container, running or not, that has the label (`key` or `key=value`); None: whatever it has."""
        with self._call("list containers") as api:
            rows = api.containers(all=True, filters={"label": [label]} if label else {})
        return tuple(
            Container(
                row["Id"],
                (row["Names"] or ["/"])[0].lstrip("/"),
                row["State"],
                row["ImageID"],
                row.get("Labels") or {},
                str(row.get("Image", "")),
            )
            for row in rows
        )

    def container_named(self, name: str) -> Mapping[str, Any] | None:
        """What `docker inspect` says of a container, None where there is none of that name or id."""
        with self._call(f"inspect {name}") as api:
            try:
                return cast(Mapping[str, Any], api.inspect_container(name))
            except docker.errors.NotFound:
                return None

    def images(self) -> tuple[Image, ...]:
        """Every image that has a name."""
        with self._call("list images") as api:
            rows = api.images()
        return tuple(
            Image(
                row["Id"],
                tuple(row.get("RepoTags") or ()),
                tuple(row.get("RepoDigests") or ()),
                row.get("Labels") or {},
            )
            for row in rows
        )

    def image_config(self, reference: str) -> Mapping[str, Any] | None:
        """What `docker image inspect` says, None where the image is not there."""
        with self._call(f"inspect image {reference}") as api:
            try:
                return cast(Mapping[str, Any], api.inspect_image(reference))
            except docker.errors.ImageNotFound:
                return None

    def pull(self, reference: str, deadline: Deadline, progress: Callable[[str], None]) -> None:
        """Pull an image, telling the bytes as they come."""
        layers: dict[str, tuple[int, int]] = {}
        hint = f"check the name, log in on {self.host}, or load the image there: docker save | ssh docker load"
        with self._call(f"pull {reference}", deadline, hint) as api:
            for line in api.pull(reference, stream=True, decode=True):
                if "error" in line:
                    text = f"cannot pull {reference}: {line['error']}"
                    raise CommandFailed(self.host, text, exit_code=1, stderr=line["error"], hint=hint)
                detail = line.get("progressDetail") or {}
                if line.get("status") == "Downloading" and detail.get("total"):
                    layers[line["id"]] = (detail["current"], detail["total"])
                    done, total = (sum(column) for column in zip(*layers.values(), strict=True))
                    progress(f"pulling {reference}: {done / 1e9:.1f} of {total / 1e9:.1f} GB")

    def build(
        self, context: bytes, tag: str, arguments: Mapping[str, str], labels: Mapping[str, str], deadline: Deadline
    ) -> str:
        """Build an image, without network, from a tar archive that holds a Dockerfile; returns its id."""
        log: list[str] = []
        with self._call(f"build {tag}", deadline) as api:
            for line in api.build(
                fileobj=io.BytesIO(context),
                custom_context=True,
                tag=tag,
                buildargs=dict(arguments),
                labels=dict(labels),
                rm=True,
                forcerm=True,
                network_mode="none",
                decode=True,
            ):
                log.append(str(line.get("stream", "")))
                if "error" in line:
                    tail = "".join(log)[-2000:].strip()
                    raise CommandFailed(
                        self.host, f"cannot build {tag}: {line['error']}\n{tail}", exit_code=1, stderr=tail
                    )
        built = self.image_config(tag)
        if built is None:
            raise CommandFailed(self.host, f"{tag} was built and is not there", exit_code=1, stderr=log[-1])
        return str(built["Id"])

    def tag(self, image_id: str, repository: str, tag: str) -> None:
        """Give an image another name."""
        with self._call(f"tag {repository}:{tag}") as api:
            api.tag(image_id, repository, tag, force=True)

    def remove_image(self, reference: str) -> None:
        """Remove an image's name, and the image with its last name; no error where it is not there."""
        with self._call(f"remove image {reference}") as api:
            try:
                api.remove_image(reference)
            except docker.errors.ImageNotFound:
                return

    def create(self, name: str, body: Mapping[str, Any]) -> str:
        """Create a container from an Engine API body; returns its id."""
        with self._call(f"create {name}") as api:
            return str(api.create_container_from_config(dict(body), name)["Id"])

    def start(self, container: str) -> None:
        """Start a container; no error where it runs."""
        with self._call(f"start {container[:12]}") as api:
            api.start(container)

    def restart(self, container: str, grace: int = 30) -> None:
        """Stop a container, kill it after `grace` seconds, and start it."""
        with self._call(f"restart {container[:12]}", Deadline.after(grace + CALL_SECONDS)) as api:
            api.restart(container, timeout=grace)

    def remove(self, container: str, grace: int = 30) -> None:
        """Stop a container with `grace` seconds to end by itself, and remove it; no error where it is gone."""
        deadline = Deadline.after(grace + CALL_SECONDS)
        try:
            with self._call(f"stop {container[:12]}", deadline) as api:
                api.stop(container, timeout=grace)
            with self._call(f"remove {container[:12]}", deadline) as api:
                api.remove_container(container, force=True, v=True)
        except CommandFailed as error:
            # 409: a removal that began earlier is under way, and keeps the name till it ends. 404: gone already.
            if error.returncode == 409:
                self._await_removed(container, deadline)
            elif error.returncode != 404:
                raise

    def _await_removed(self, container: str, deadline: Deadline) -> None:
        with self._call(f"wait for {container[:12]} to go", deadline) as api, suppress(docker.errors.NotFound):
            api.wait(container, condition="removed")

    def wait(self, container: str, deadline: Deadline) -> int:
        """Wait until a container has ended; returns its exit code."""
        with self._call(f"wait for {container[:12]}", deadline) as api:
            return int(api.wait(container)["StatusCode"])

    def logs(self, container: str, tail: int = 200) -> str:
        """The last lines that a container printed, both streams; at most `MAX_LOG` bytes of them."""
        with self._call(f"read the log of {container[:12]}") as api:
            wanted = {"stdout": 1, "stderr": 1, "tail": tail}
            reply = api._get(api._url("/containers/{0}/logs", container), params=wanted, stream=True)
            api._raise_for_status(reply)
            return read_framed(reply, MAX_LOG)

    def put_files(self, container: str, folder: str, files: Mapping[str, tuple[bytes, int]]) -> None:
        """Write files (name → content, mode) below a folder of a container, running or not."""
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name, (content, mode) in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), mode
                tar.addfile(entry, io.BytesIO(content))
        with self._call(f"write files to {container[:12]}") as api:
            api.put_archive(container, folder, archive.getvalue())

    def read_file(self, container: str, path: str, limit: int = 4 << 20) -> bytes | None:
        """A file of a container, running or not; at most `limit` bytes, None where there is no such file."""
        for _ in range(MOST_LINKS):
            with self._call(f"read {path}") as api:
                try:
                    chunks, _stat = api.get_archive(container, path)
                except docker.errors.NotFound:
                    return None
                data = bytearray()
                for chunk in chunks:
                    data += chunk
                    if len(data) > limit + tarfile.RECORDSIZE:
                        break
            with tarfile.open(fileobj=io.BytesIO(data)) as tar:
                member = tar.next()
                if member is None or not member.issym():
                    content = tar.extractfile(member) if member else None
                    return content.read(limit) if content else None
            # Docker sends a link as itself, whatever it points to.
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), member.linkname))
        return None

    def exec(self, container: str, argv: Sequence[str], deadline: Deadline) -> Ended:
        """Run a command in a running container to its end; both output streams together."""
        with self._call(f"exec in {container[:12]}", deadline) as api:
            made = api.exec_create(container, list(argv))["Id"]
            reply = api._post_json(api._url("/exec/{0}/start", made), data={"Detach": False, "Tty": False}, stream=True)
            api._raise_for_status(reply)
            output = read_framed(reply, MAX_OUTPUT)
            return Ended(int(api.exec_inspect(made)["ExitCode"] or 0), output)
