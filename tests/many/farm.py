"""Many SSH servers in one process, each a host of its own: `python -m tests.many.farm CONFIG`.

Every byte waits half a round trip on its way in and half on its way out. Prints "ready" once all of them listen.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import resource
import shlex
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncssh

from tests.many.engine import HOSTILE, WELL, Engine, flood

PORT = 2222
BACKLOG = 128
# Read to its end, unlike the other floods, so it is not longer than it must be.
FACTS_BYTES = 20 << 20
FLOODS = ("log", "status", "error")


class Host:
    """One host: its address, its key, what it answers, and whether it falls silent in the middle of that."""

    def __init__(self, words: Mapping[str, Any], common: Mapping[str, Any]) -> None:
        self.address = words["address"]
        self.kind = words["kind"]
        self.facts = words["facts"].encode()
        self.delay = common["round_trip"] / 2
        self.engine = Engine(
            dict(words["containers"]),
            common["images"],
            dict(words["volumes"]),
            {name: text.encode() for name, text in words["files"].items()},
        )
        if self.kind == "name":
            self.engine.containers[HOSTILE] = next(iter(self.engine.containers.values()))
        self.engine.flood = self.kind if self.kind in FLOODS else ""
        self._authorized = asyncssh.import_authorized_keys(common["authorized"])
        self._key = asyncssh.import_private_key(words["key"])
        self._relays: set[asyncio.Task[None]] = set()
        self._silent = asyncio.Event()

    async def listen(self) -> None:
        """Listen until the process ends."""
        await asyncio.start_server(self._accept, self.address, PORT, backlog=BACKLOG)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.kind == "mute":
            await reader.read()
            return
        near, far = socket.socketpair()
        inner, outer = await asyncio.open_connection(sock=near)
        for source, sink in ((reader, outer), (inner, writer)):
            relay = asyncio.create_task(self._relay(source, sink))
            self._relays.add(relay)
            relay.add_done_callback(self._relays.discard)
        with contextlib.suppress(OSError, asyncssh.Error):
            await asyncssh.run_server(
                far,
                server_host_keys=[self._key],
                authorized_client_keys=self._authorized,
                process_factory=self._process,
                encoding=None,
                keepalive_interval=0,
            )

    async def _relay(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Pass bytes on, each after its delay, without letting the delays add up."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            with contextlib.suppress(OSError):
                while (item := await waiting.get())[1]:
                    await asyncio.sleep(item[0] - time.monotonic())
                    if not self._silent.is_set():
                        sink.write(item[1])
                        await sink.drain()
            sink.close()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(deliver())
            data = b"x"
            while data:
                try:
                    data = await source.read(1 << 16)
                except OSError:
                    data = b""
                waiting.put_nowait((time.monotonic() + self.delay, data))

    def _problem(self, _found: re.Match[bytes]) -> bytes:
        return b"\n@@dockerinfo\n" + HOSTILE.encode() * 1000

    async def _container(self, process: asyncssh.SSHServerProcess[bytes], name: str) -> None:
        """What a program in a container prints, by the container's name or its own last word."""
        if "-links-" in name:
            await self._probe(process)
        elif "/batch/" in name:
            await process.stdin.readline()
            process.stdout.write(b'{"batches": []}\n')
            await process.stdin.read()
        else:
            process.stdout.write(json.dumps(WELL).encode() + b"\n")

    async def _probe(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """What the program says that visits the other hosts, where all is well."""
        order = json.loads(await process.stdin.readline())
        ready = {"open": order["ports"], "taken": [], "chosen": [40_000, 40_001], "udp": 40_002}
        process.stdout.write(json.dumps(ready).encode() + b"\n")
        peers = json.loads(await process.stdin.readline()).keys() - {order["me"]}
        for name in peers:
            row = {"to": name, "bad": {}, "seen": None, "ms": 1.0, "mtu": 1500, "passes": 1500, "block": "ok"}
            process.stdout.write(json.dumps(row).encode() + b"\n")
        process.stdout.write(json.dumps({"done": len(peers)}).encode() + b"\n")
        await process.stdin.read()

    async def _process(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        sent = re.sub(rb"\\0([0-7]{3})", lambda byte: bytes([int(byte[1], 8)]), await process.stdin.readline())
        mark, _, script = sent.decode().split("\n", 2)
        for output in (process.stdout, process.stderr):
            output.write(mark.removeprefix("echo ").encode() + b"\n")
        words = shlex.split(script.removeprefix("timeout -k 5 "))
        if words[-3:] == ["docker", "system", "dial-stdio"]:  # as it is, or through the lease's wrapper
            with contextlib.suppress(asyncio.IncompleteReadError):
                async for answer in self.engine.serve(process.stdin):
                    process.stdout.write(answer)
        elif words[-1] == "exec cat > /dev/null":  # how the openssh carrier keeps its shared connection
            await process.stdin.read()
        elif "lease" in words:
            process.stdout.write(b"vcluster-lease held\n")
            while (await process.stdin.readline()) not in (b"end\n", b""):
                process.stdout.write(b".\n")
        elif {"--attach", "batch_job"} & {*words}:
            await self._container(process, words[-1])
        else:
            await process.stdin.read()
            if self.kind == "half":
                process.stdout.write(self.facts[:200])
                await asyncio.sleep(2 * self.delay)
                self._silent.set()
                return
            if self.kind == "facts":
                process.stdout.write(b"\n@@docker\n\n@@dockerinfo\n" + flood()[:FACTS_BYTES])
            elif self.kind == "answer":
                process.stdout.write(re.sub(rb"(?s)(?<=@@docker\n).*(?=\n@@disks)", self._problem, self.facts))
            else:
                process.stdout.write(self.facts)
        process.exit(0)


async def main(config: Path) -> None:
    """Serve every host of the configuration until standard input ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65_536), hard))
    words = json.loads(config.read_text())
    hosts = [Host(host, words) for host in words["hosts"]]
    for host in hosts:
        await host.listen()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
