"""A transport to the hosts in memory: commands, the Engine API over a stream, and the lease."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from email.utils import formatdate
from importlib.resources import files
from urllib.parse import parse_qsl, unquote, urlsplit

from tests.support.sim import blobs, programs
from tests.support.sim.engine import Answer, FakeEngine, Refused, Request, fetch, reply
from tests.support.sim.facts import details, engine_id, models, sections
from tests.support.sim.faults import Fault, Killed
from tests.support.sim.world import Lock, Picture, World
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import ConnectionLost, TimedOut, Unreachable
from vllm_cluster.kernel.images import carrier as image_carrier
from vllm_cluster.kernel.images.for_docker import REFUSED
from vllm_cluster.kernel.transport.base import Forward, Result, Stream, Target

FACTS = files("vllm_cluster.kernel.facts").joinpath("facts.sh").read_bytes()
DETAILS = files("vllm_cluster.kernel.facts").joinpath("details.sh").read_bytes()
MODELS = files("vllm_cluster.kernel.models").joinpath("models.sh").read_bytes()
LEASE = files("vllm_cluster.kernel.lease").joinpath("lease.sh").read_text()
FENCED = files("vllm_cluster.kernel.lease").joinpath("lease_stream.sh").read_text()
DIAL = ("docker", "system", "dial-stdio")
# Requests that dockerd finishes though no client waits any more; the others are over in a moment.
SLOW = ("/containers/create", "/start", "/stop", "/restart")


class FakeTransport:
    """One connection to one host of the world."""

    def __init__(self, world: World, target: Target) -> None:
        self._world, self._name = world, target.name
        self.machine = world.machines[target.name]
        self.script = world.script
        self.round_trips = 0
        self.cut = ""
        self._streams: list[_Stream] = []

    @property
    def host(self) -> str:
        """The host's name in the inventory."""
        return self._name

    def connect(self, deadline: Deadline) -> None:
        """Connect, where the host can be reached."""
        fault = self.script.ask(self._name, "connect", False)
        self.stumble(fault, "connect", deadline)
        if fault in (Fault.LOST, Fault.LOST_AFTER, Fault.REFUSED, Fault.ERROR, Fault.ERROR_AFTER):
            raise Unreachable(self._name, "connection refused", hint="is its sshd up?")
        if not self.machine.reachable:
            self._world.clock.sleep(deadline.left())
            raise Unreachable(self._name, "no answer")

    def run(self, argv: Sequence[str], deadline: Deadline, *, stdin: bytes = b"", most: int = 0) -> Result:
        """Run the fact script; beside it the version of a Docker with images is known, and no other command."""
        self.round_trips += 1
        self._alive()
        if list(argv[:2]) == ["test", "-d"]:
            return Result(0, b"", b"")
        if list(argv[:2]) == ["docker", "version"] and self.machine.images:
            return Result(0, b"1.41\n", b"")
        fault = self.script.ask(self._name, "facts", False)
        self.stumble(fault, "facts", deadline)
        if fault in (Fault.LOST, Fault.LOST_AFTER):
            raise self.lose("the connection broke")
        if fault in (Fault.ERROR, Fault.ERROR_AFTER, Fault.REFUSED) or list(argv[:3]) != ["sh", "-s", "--"]:
            return Result(127, b"", b"sh: not found")
        if stdin == MODELS:
            return Result(0, "".join(f"{row}\n" for row in models(self.machine)).encode(), b"")
        if stdin not in (FACTS, FACTS + DETAILS):
            raise AssertionError("another script than facts.sh")
        found = sections(self._world, self.machine, argv[3].split(","), argv[4:])
        return Result(0, (found + (details() if stdin != FACTS else "")).encode(), b"")

    def open_stream(self, argv: Sequence[str], deadline: Deadline) -> Stream:
        """Talk to Docker, or hold the lease."""
        self.round_trips += 1
        self._alive()
        docker = tuple(argv[-3:]) == DIAL
        pull = list(argv[-3:-1]) == ["docker", "pull"]
        command = list(argv[argv.index("docker") :]) if "docker" in argv else []
        split, load = image_carrier.SAVE in argv, bool({*argv} & {image_carrier.LOAD, image_carrier.LOAD_WITH_ROOM})
        cat = command[1:2] == ["exec"] and "cat" in command
        program = not (split or load or cat) and command[1:2] in (["exec"], ["start"])
        moved = "docker save" if split else "docker pull" if pull else "docker load"
        what = (
            "dial docker"
            if docker
            else moved
            if pull or split or load
            else programs.called(command)
            if program
            else "cat"
            if cat
            else "lease"
        )
        # Whoever gets the lease changes a lock file; that is for all to see, but nothing of a cluster.
        changes = pull or load or (program and programs.changes(command))
        fault = self.script.ask(self._name, what, changes)
        if changes:
            self.judge(what)
        self.stumble(fault, what, deadline)
        if fault in (Fault.LOST, Fault.LOST_AFTER):
            raise self.lose("the connection broke")
        stream = self._stream(argv, command, fault)
        # What `up` does is behind the lease; `image push` has none.
        lock = self.machine.lock
        mine = lock is not None and lock.stream.script is self.script
        if list(argv[:3]) == ["sh", "-c", FENCED] or (changes and mine):
            self._fence(stream, argv)
        self._streams.append(stream)
        return stream

    def _stream(self, argv: Sequence[str], command: list[str], fault: Fault | None) -> _Stream:
        world = self._world
        if tuple(argv[-3:]) == DIAL:
            return EngineStream(self, world, ended=fault is not None)
        if list(argv[-3:-1]) == ["docker", "pull"]:
            return _PullStream(self, world, argv[-1], fault)
        if argv[:3] == ["sh", "-c", LEASE]:
            self._require_its_lock(argv[4])
            return _LeaseStream(self, world, argv[5], argv[6], float(argv[7]))
        if command[1:2] in (["exec"], ["start"]) and programs.talks(command, self.machine):
            return _JobStream(self, world, command, fault)
        return self._image_stream(argv, command, fault) or _ProgramStream(self, world, command, fault)

    def _image_stream(self, argv: Sequence[str], command: list[str], fault: Fault | None) -> _Stream | None:
        """Of an image that goes from host to host."""
        world = self._world
        if image_carrier.IN_FOLDER in argv:
            return _NoPythonStream(self, world)
        if image_carrier.SAVE in argv:
            return _SplitStream(self, world, argv, fault)
        if {*argv} & {image_carrier.LOAD, image_carrier.LOAD_WITH_ROOM}:
            return _LoadStream(self, world, fault, packed=image_carrier.LOAD in argv)
        if "cat" in command:
            return _BlobsStream(self, world, command[command.index("cat") + 1 :])
        if not command:
            raise AssertionError(f"an unknown command: {argv}")
        return _CarryStream(self, world, command, fault) if programs.carries(command, self.machine) else None

    def _fence(self, stream: _Stream, argv: Sequence[str]) -> None:
        """lease_stream.sh: a way to Docker that ends with the lease, and is none without it."""
        if list(argv[:4]) != ["sh", "-c", FENCED, "stream"]:
            raise AssertionError(f"an unknown command: {argv}")
        self._require_its_lock(argv[4])
        lock = self.machine.lock
        if lock and lock.token == argv[5]:
            lock.ways.append(stream)
        else:
            stream.ended = True

    def _require_its_lock(self, folder: str) -> None:
        """The lock is that of the engine, which this host alone has."""
        name = hashlib.sha256(engine_id(self.machine).encode()).hexdigest()[:16]
        if folder != f"/tmp/vcluster-{name}":
            raise AssertionError(f"a lock of another engine than {self._name}'s: {folder}")

    def judge(self, what: str) -> None:
        """Note what changes a host without its lease."""
        lock = self.machine.lock
        if not (lock and lock.stream.script is self.script):
            self._world.unfenced.append(f"{self._name}: {what}")

    def forward(self, remote_port: int, local_port: int = 0, *, remote_host: str = "127.0.0.1") -> Forward:
        """No verb that runs here forwards ports."""
        raise AssertionError(remote_port)

    def require_alive(self) -> None:
        """No verb that runs here waits on a connection alone."""

    def close(self) -> None:
        """End the connection and its streams."""
        self.cut = self.cut or "closed"
        for stream in self._streams:
            stream.hang_up()

    def lose(self, why: str) -> ConnectionLost:
        """The link is gone, for good."""
        self.cut = why
        for stream in self._streams:
            stream.hang_up()
        return ConnectionLost(self._name, why)

    def stumble(self, fault: Fault | None, what: str, deadline: Deadline) -> None:
        """Raise what every call raises alike."""
        if fault is Fault.INTERRUPT:
            raise KeyboardInterrupt
        if fault and fault.kills:
            self.drop_all()
            raise Killed(what)
        if fault in (Fault.SILENT, Fault.SILENT_AFTER):
            self._world.clock.sleep(deadline.left())
            raise TimedOut(self._name, f"`{what}` did not end in time")

    def drop_all(self) -> None:
        """A killed controller's streams end on the host's side."""
        for machine in self._world.machines.values():
            if machine.lock and machine.lock.stream.script is self.script:
                machine.free()

    def _alive(self) -> None:
        if self.cut:
            raise Unreachable(self._name, f"the connection was lost earlier: {self.cut}")


class _Stream:
    """A command's input and output."""

    def __init__(self, transport: FakeTransport, world: World) -> None:
        self.transport, self.world = transport, world
        self.script = transport.script
        self.out = bytearray()
        self.ended = False
        self.seconds: float | None = None

    def recv(self, size: int, /) -> bytes:
        """What has come; silence lasts as long as the time-out allows."""
        if not self.out and self.transport.cut:
            raise ConnectionLost(self.transport.host, self.transport.cut)
        if not self.out and not self.ended:
            if self.seconds is None:
                raise AssertionError("waits for ever: no time-out was set on the stream")
            # Heartbeats are sent beside the work, which they don't hold up.
            if not self.world.beating:
                self.world.clock.sleep(self.seconds)
            raise TimeoutError("timed out")
        data = bytes(self.out[:size])
        del self.out[:size]
        return data

    def settimeout(self, seconds: float | None, /) -> None:
        self.seconds = seconds

    def sendall(self, data: bytes, /) -> None:
        """Send, where there is still a link."""
        if self.script.dead and not self.script.spare:
            raise Killed("send")
        if self.transport.cut:
            raise ConnectionLost(self.transport.host, self.transport.cut)
        if self.ended:
            raise BrokenPipeError("the command has ended")
        self.take(data)

    def take(self, data: bytes) -> None:
        """What the command does with its input."""

    def shutdown_write(self) -> None:
        """No more input comes."""

    def stderr_tail(self) -> str:
        """Nothing was written there."""
        return ""

    def exit_code(self) -> int | None:
        """It ended well."""
        return 0

    def hang_up(self) -> None:
        """The link under it is gone."""

    def close(self) -> None:
        """The command ends."""
        self.hang_up()
        self.ended = True


class _LeaseStream(_Stream):
    """lease.sh: exclusive, held while heartbeats come, freed when the stream ends."""

    def __init__(self, transport: FakeTransport, world: World, token: str, who: str, seconds: float) -> None:
        super().__init__(transport, world)
        held = transport.machine.lock
        if held:
            self.out += f"vcluster-lease busy {held.who}\n".encode()
            self.ended = True
        else:
            transport.machine.lock = Lock(who, self, token, world.clock.now, seconds)
            self.out += b"vcluster-lease held\n"

    @property
    def _mine(self) -> Lock | None:
        lock = self.transport.machine.lock
        return lock if lock and lock.stream is self else None

    def take(self, data: bytes) -> None:
        lock = self._mine
        if not self.transport.machine.reachable:
            return  # into a black hole
        if lock is None:
            self.ended = True
            raise BrokenPipeError("the command has ended")
        if b"end" in data:
            self.transport.machine.free(kill=False)
            self.ended = True
        else:
            lock.beaten = self.world.clock.now
            self.out += b".\n"

    def hang_up(self) -> None:
        # Behind a black hole the other side receives nothing.
        if self._mine and self.transport.machine.reachable:
            self.transport.machine.free()


class _PullStream(_Stream):
    """`docker pull`, with the login that the host has."""

    def __init__(self, transport: FakeTransport, world: World, image: str, fault: Fault | None) -> None:
        super().__init__(transport, world)
        self.ended, self._said, self._code = True, "", 1
        if fault is not None and not fault.happens:
            self._said = "Cannot connect to the Docker daemon"
            return
        try:
            fetch(world, transport.machine, image, logged_in=transport.machine.logged_in)
        except Refused as error:
            self._said = f"Using default tag: latest\nError response from daemon: {error}"
        else:
            self.out += b"layer: Pulling fs layer\nlayer: Download complete\nlayer: Pull complete\n"
            self._code = 1 if fault else 0

    def stderr_tail(self) -> str:
        """What docker prints of a failure."""
        return self._said

    def exit_code(self) -> int | None:
        """How docker ended."""
        return self._code


class _SplitStream(_Stream):
    """`docker save` into the program that makes blobs of it."""

    def __init__(self, transport: FakeTransport, world: World, argv: Sequence[str], fault: Fault | None) -> None:
        super().__init__(transport, world)
        self.ended, self._code = True, 1 if fault else 0
        image, *words = argv[list(argv).index(image_carrier.SAVE) + 2 :]
        have = int(words[words.index("-c") + 2])
        if fault is None or fault.happens:
            picture = world.swaps.get(transport.host) or transport.machine.images[image]
            world.blobs[transport.host] = picture
            self.out += json.dumps(blobs.row(picture, have)).encode() + b"\n"

    def exit_code(self) -> int | None:
        """How docker ended."""
        return self._code


class _NoPythonStream(_Stream):
    """A program on a host that has no Python."""

    def __init__(self, transport: FakeTransport, world: World) -> None:
        super().__init__(transport, world)
        self.ended = True

    def stderr_tail(self) -> str:
        """What the shell prints."""
        return "sh: 3: python3: not found"

    def exit_code(self) -> int | None:
        """As a shell ends there."""
        return 127


class _BlobsStream(_Stream):
    """`cat` of blobs."""

    def __init__(self, transport: FakeTransport, world: World, names: Sequence[str]) -> None:
        super().__init__(transport, world)
        self.ended = True
        there = blobs.of(world.blobs[transport.host])
        made = b"".join(there[name] for name in names)
        self.out += made[::-1] if world.forges == transport.host else made


class _LoadStream(_Stream):
    """`docker load` of what comes through the controller, or of the blobs that have come from other hosts."""

    def __init__(self, transport: FakeTransport, world: World, fault: Fault | None, *, packed: bool) -> None:
        super().__init__(transport, world)
        self._fault, self._taken, self._refusal = fault, b"", ""
        if packed:
            self._refusal = blobs.refusal(sent := world.blobs[transport.host])
            self.ended = True
            if not self._refusal:
                self._load(sent)

    def take(self, data: bytes) -> None:
        self._taken += data

    def shutdown_write(self) -> None:
        """The archive is whole: the image is there, unless docker fails."""
        self._load(blobs.packed(self._taken, self.world))

    def _load(self, sent: Picture) -> None:
        self.ended = True
        if self._fault is None or self._fault.happens:
            there = self.transport.machine.take_image(sent)
            self.out += f"Loaded image ID: {there.id}\n".encode()

    def stderr_tail(self) -> str:
        """What is wrong with the blobs."""
        return self._refusal

    def exit_code(self) -> int | None:
        """It fails where the archive ends too early, and is not begun where a blob is not for Docker."""
        return REFUSED if self._refusal else 1 if self._fault else 0


class _ProgramStream(_Stream):
    """A program in a container: `docker exec`, or `docker start` of one that was made for it."""

    def __init__(self, transport: FakeTransport, world: World, argv: list[str], fault: Fault | None) -> None:
        super().__init__(transport, world)
        self._program = programs.Program(world, transport.machine, argv)
        self._errors, self._code = self._program.start() if fault is None or fault.happens else ("", 1)
        if fault:
            self._refuse()
        self.ended = self._code != 0
        self._shown = self.ended

    def _refuse(self) -> None:
        self._errors, self._code = "Error response from daemon: something broke inside dockerd", 1

    def take(self, data: bytes) -> None:
        self._program.take(data)

    def recv(self, size: int, /) -> bytes:
        """What it prints, once it has what it waits for; that may go wrong too."""
        if not self._shown and not self.ended and self._program.fed:
            self._shown = True
            fault = self.script.ask(self.transport.host, f"output of {self._program.name}", False)
            self.transport.stumble(fault, self._program.name, Deadline.after(self.seconds or 0, self.world.clock))
            if fault in (Fault.LOST, Fault.LOST_AFTER):
                raise self.transport.lose("the connection broke")
            self.out += self._program.end()
            self._errors, self._code, self.ended = self._program.errors, self._program.code, True
            if fault:
                self.out.clear()
                self._refuse()
        return super().recv(size)

    def stderr_tail(self) -> str:
        """What docker prints of a failure, and the program."""
        return self._errors

    def exit_code(self) -> int | None:
        """How it ended; None where the lease's end killed docker."""
        return self._code if self._shown else None

    def hang_up(self) -> None:
        # Its input ends with the link, and it ends a moment later.
        if not self.ended:
            self.transport.machine.late.append((1, self._program.end))


class _JobStream(_ProgramStream):
    """A program that is asked more than once, of batches or of a cache, until its input ends."""

    def take(self, data: bytes) -> None:
        super().take(data)
        if self._shown and not self.ended:
            self.out += self._program.end()

    def recv(self, size: int, /) -> bytes:
        """Its first answer may go wrong; it waits for more after it."""
        before, data = self._shown, super().recv(size)
        self.ended = self.ended and (before or self._code != 0)
        return data

    def shutdown_write(self) -> None:
        """Its input has ended."""
        self.ended = True


class _CarryStream(_ProgramStream):
    """The program that moves blobs: the first host of its plan serves them, another gets them."""

    def take(self, data: bytes) -> None:
        plan = json.loads(data)
        if "hosts" not in plan:
            self.out += b'{"folder": "/vcluster"}\n'
            return
        source, me = plan["hosts"][0]["name"], plan["me"]
        rows: list[dict[str, object]] = [{"serving": True}]
        if me != source:
            self.world.blobs[me] = self.world.blobs[source]
            rows += [{"bytes": 1}, {"whole": True}]
        self.out += "".join(json.dumps(row) + "\n" for row in rows).encode()

    def recv(self, size: int, /) -> bytes:
        """What it answers; its input ends it."""
        return _Stream.recv(self, size)

    def shutdown_write(self) -> None:
        """Its input has ended."""
        self._program.end()
        self._shown = self.ended = True


class EngineStream(_Stream):
    """`docker system dial-stdio`: HTTP in, HTTP out."""

    def __init__(self, transport: FakeTransport, world: World, *, ended: bool) -> None:
        super().__init__(transport, world)
        self.ended = ended
        self.killed = False
        self._engine = FakeEngine(world, transport.machine)
        self._input = bytearray()

    def take(self, data: bytes) -> None:
        self._input += data
        head, separator, rest = bytes(self._input).partition(b"\r\n\r\n")
        if not separator:
            return
        first, *lines = head.decode().split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if "chunked" in headers.get("transfer-encoding", ""):
            raise AssertionError("a chunked request")
        length = int(headers.get("content-length", 0))
        if len(rest) < length:
            return
        del self._input[: len(head) + 4 + length]
        method, url, _ = first.split(" ")
        parts = urlsplit(url)
        path = "/" + unquote(parts.path).split("/", 2)[2]  # without the version
        answer = self.ask(Request(method, path, dict(parse_qsl(parts.query)), rest[:length]))
        if answer:
            self._send(answer)

    def ask(self, request: Request) -> Answer | None:
        """One request, with the fault that it gets; no answer where the link or the process is gone, or silent."""
        transport, machine = self.transport, self.transport.machine
        if not machine.reachable:
            raise transport.lose("the host does not answer")
        fault = self.script.ask(transport.host, request.what, request.changes)
        if self.killed:  # while the request was on its way
            raise BrokenPipeError("the command has ended")
        if request.changes:
            transport.judge(request.what)
        if fault is Fault.KILLED_LATE and request.path.endswith(SLOW):
            due = 1 + len(self.script.calls) % 7
            machine.late.append((due, lambda: FakeEngine(self.world, machine).answer(request)))
        self.world.arrive(machine)
        answer = self._engine.answer(request) if fault is None or fault.happens else None
        if fault in (Fault.ERROR, Fault.ERROR_AFTER):
            return reply({"message": "something broke inside dockerd"}, 500)
        if fault is Fault.REFUSED:
            self.ended = True
        elif fault in (Fault.LOST, Fault.LOST_AFTER):
            transport.lose("the connection broke")
        elif fault and fault not in (Fault.SILENT, Fault.SILENT_AFTER):
            transport.stumble(fault, request.what, Deadline.after(0, self.world.clock))
        return answer if fault is None else None

    def _send(self, answer: Answer) -> None:
        now = self.world.host_time(self.transport.machine)
        headers = {"Api-Version": "1.47", "Date": formatdate(now, usegmt=True), **answer.headers}
        if answer.chunks is not None:
            headers["Transfer-Encoding"] = "chunked"
            body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in answer.chunks) + b"0\r\n\r\n"
        else:
            body = answer.body
            if not answer.raw:
                headers["Content-Length"] = str(len(body))
        lines = [f"HTTP/1.1 {answer.status} OK", *(f"{key}: {value}" for key, value in headers.items())]
        self.out += "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self.ended = self.ended or answer.raw
