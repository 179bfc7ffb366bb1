"""Runs on all hosts at once: answers the others, then visits them; an order line comes in, JSON lines go out.

Needs Python 3.8 alone: where the image is not there yet, the host's own Python runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Mapping

# No wait here is longer; bounded.py ends the program.
LIFE_SECONDS = 180.0
# The kernel asks again after 1 and 3 s: one lost packet is not a closed port.
CONNECT_SECONDS = 4.0
ANSWER_SECONDS = 6.0
BLOCK_SECONDS = 4.0
BLOCK = 128 << 10
AT_ONCE = 512
MAX_LINE = 256
# Large packets of many hosts at one moment overflow a buffer, and are not too large: later rounds begin at random.
UDP_ROUNDS = (0.25, 0.5, 1.0, 2.0)
SMALL = 64
# Sizes of whole packets that ways are known to be cut to: tunnels, clouds, Ethernet, jumbo frames.
PACKET_SIZES = (576, 1280, 1380, 1400, 1420, 1450, 1480, 1500, 4000, 8000, 8900, 9000)
# Linux' numbers; the socket module has no names for them. PROBE sets "don't fragment" and forgets what was learnt.
MTU_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
MTU = {socket.AF_INET: (socket.IPPROTO_IP, 14), socket.AF_INET6: (socket.IPPROTO_IPV6, 24)}
PROBE = 3
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
ASYNC_TIMEOUT = asyncio.TimeoutError  # before Python 3.11 it is not an OSError


def send(row: Mapping[str, object]) -> None:
    """One JSON line; where its reader has gone, this program ends as it does with its input."""
    try:
        sys.stdout.write(json.dumps(row) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        os._exit(0)


class LinkTester:
    """One host's side of every link."""

    def __init__(self, me: str, address: str, run: str) -> None:
        """Only who knows the word `run` is answered."""
        self.me, self.address, self.run = me, address, run
        self.family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.turn = asyncio.Semaphore(AT_ONCE)

    async def open(self, ports: list[int], more: int) -> dict[str, object]:
        """Listen on every port that is free, on `more` that the kernel chooses, and for datagrams."""
        opened: list[int] = []
        taken: list[int] = []
        for port in [*ports, *[0] * more]:
            try:
                server = await asyncio.start_server(
                    self._serve, self.address, port, limit=MAX_LINE, backlog=1024, family=self.family
                )
                opened.append(server.sockets[0].getsockname()[1])
            except OSError as error:
                if error.errno != 98:  # EADDRINUSE: what listens there answers in our place
                    return {"error": f"cannot listen on {self.address}: {error.strerror or error}"}
                taken.append(port)
        udp = self._socket()
        udp.bind((self.address, 0))
        asyncio.get_running_loop().add_reader(udp.fileno(), self._echo, udp)
        chosen = opened[len(opened) - more :]
        return {"open": opened[: len(opened) - more], "taken": taken, "chosen": chosen, "udp": udp.getsockname()[1]}

    def _socket(self) -> socket.socket:
        sock = socket.socket(self.family, socket.SOCK_DGRAM)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        return sock

    def _echo(self, udp: socket.socket) -> None:
        with contextlib.suppress(OSError):
            data, sender = udp.recvfrom(65535)
            if data.startswith(self.run.encode()):
                udp.sendto(f"{self.run} {len(data)}".encode(), sender)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a peer that knows the run's token: this host's name, its address, and when its block has come."""
        with contextlib.suppress(OSError, ValueError, EOFError, ASYNC_TIMEOUT):
            run, size = (await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)).decode().split()
            if run == self.run:
                seen = writer.get_extra_info("peername")[0]
                writer.write(f"{self.run} {self.me} {seen}\n".encode())
                left = min(int(size), BLOCK)
                while left:
                    data = await asyncio.wait_for(reader.read(min(left, 65536)), BLOCK_SECONDS)
                    left = left - len(data) if data else 0
                if int(size):
                    writer.write(b"all\n")
                await writer.drain()
        writer.close()

    async def visit(
        self, name: str, *, address: str, udp: int, open: list[int], taken: list[int], chosen: list[int]
    ) -> None:
        """Try every port of another host, then large packets, and print the result."""
        own = [*chosen, *open]
        ports = [*own, *taken]
        tried = await asyncio.gather(*(self._try(name, address, port, port in own) for port in ports))
        row: dict[str, object] = {"to": name, "bad": {port: word for port, word, _, _ in tried if word != "ok"}}
        row["ms"] = min((ms for _, word, _, ms in tried if word == "ok"), default=None)
        row["seen"] = next((seen for _, word, seen, _ in tried if word == "ok" and seen), None)
        good = next((port for port, word, seen, _ in tried if word == "ok" and seen), None)
        if good is not None:
            block = self._block(address, good)
            row["block"], (row["mtu"], row["passes"]) = await asyncio.gather(block, self._sizes(address, udp))
        send(row)

    async def _try(self, name: str, address: str, port: int, own: bool) -> tuple[int, str, str, float]:
        """One port: what came of it, the address that the peer saw, and the milliseconds till it took the call."""
        async with self.turn:
            began = time.monotonic()
            try:
                reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_SECONDS)
            except (ASYNC_TIMEOUT, TimeoutError):
                return port, "silent", "", 0.0
            except ConnectionRefusedError:
                return port, "refused", "", 0.0
            except OSError:
                return port, "unreachable", "", 0.0
            took = (time.monotonic() - began) * 1000
            try:
                word, seen = await self._greet(reader, writer, name) if own else ("ok", "")
                return port, word, seen, round(took, 3)
            finally:
                writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: str) -> tuple[str, str]:
        reply = b""
        try:
            writer.write(f"{self.run} 0\n".encode())
            reply = await asyncio.wait_for(reader.readline(), ANSWER_SECONDS)
            run, who, seen = reply.decode().split()
        except (OSError, ASYNC_TIMEOUT):
            return "mute", ""
        except ValueError:
            return "foreign" if reply else "mute", ""
        return ("ok", seen) if (run, who) == (self.run, name) else ("foreign", "")

    async def _block(self, address: str, port: int) -> str | None:
        """Whether a large block arrives where a small message did: None when even that did not get through."""
        answered = None
        try:
            reader, writer = await asyncio.wait_for(asyncio.open_connection(address, port), CONNECT_SECONDS)
        except (OSError, ASYNC_TIMEOUT):
            return None
        try:
            writer.write(f"{self.run} {BLOCK}\n".encode())
            if await asyncio.wait_for(reader.readline(), ANSWER_SECONDS):
                answered = "hangs"
                # Only now: a large first packet would take the small message with it.
                writer.write(bytes(BLOCK))
                if await asyncio.wait_for(reader.readline(), BLOCK_SECONDS) == b"all\n":
                    answered = "ok"
        except (OSError, ValueError, ASYNC_TIMEOUT):
            pass
        finally:
            writer.transport.abort()
        return answered

    async def _sizes(self, address: str, port: int) -> tuple[int | None, int | None]:
        """The largest packet that our interface would send, and the largest that arrived unfragmented."""
        loop, headers, arrived = asyncio.get_running_loop(), HEADERS[self.family], {0}
        # What is sent here, by the size that the peer writes of it: no other word of it counts.
        sent = dict[str, int]()
        with self._socket() as udp:
            try:
                udp.setsockopt(*MTU_DISCOVER[self.family], PROBE)
                udp.connect((address, port))
                mtu = min(udp.getsockopt(*MTU[self.family]), 65535)
            except OSError:
                return None, None

            def receive() -> None:
                with contextlib.suppress(OSError, ValueError):
                    run, size = udp.recv(128).decode().split()
                    arrived.add(sent.get(size, 0) if run == self.run else 0)

            loop.add_reader(udp.fileno(), receive)
            try:
                for round_, seconds in enumerate(UDP_ROUNDS):
                    await asyncio.sleep(random.uniform(0, seconds / 2) if round_ else 0)  # noqa: S311
                    for size in (SMALL, *(s for s in PACKET_SIZES if s < mtu and round_), mtu):
                        with contextlib.suppress(OSError):
                            sent[str(udp.send(self.run.encode().ljust(size - headers, b".")))] = size
                    end = time.monotonic() + seconds
                    while mtu not in arrived and time.monotonic() < end:
                        await asyncio.sleep(0.01)
                    if mtu in arrived:
                        break
            finally:
                loop.remove_reader(udp.fileno())
        return mtu, max(arrived) or None


def listen(loop: asyncio.AbstractEventLoop, lines: asyncio.Queue[str]) -> None:
    """Pass on what comes in."""
    for line in sys.stdin:
        loop.call_soon_threadsafe(lines.put_nowait, line)


async def main() -> None:
    """Open, print the ports, read those of the others, visit them, and answer until the input ends (bounded.py)."""
    with contextlib.suppress(OSError, ValueError):
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lines: asyncio.Queue[str] = asyncio.Queue()
    threading.Thread(target=listen, args=(asyncio.get_running_loop(), lines), daemon=True).start()
    order = json.loads(await asyncio.wait_for(lines.get(), LIFE_SECONDS))
    probe = LinkTester(order["me"], order["address"], order["run"])
    send(await probe.open(order["ports"], order["more"]))
    everyone = json.loads(await asyncio.wait_for(lines.get(), LIFE_SECONDS))
    peers = {name: peer for name, peer in everyone.items() if name != probe.me}
    await asyncio.gather(*(probe.visit(name, **peer) for name, peer in peers.items()))
    send({"done": len(peers)})
    await asyncio.sleep(LIFE_SECONDS)


if __name__ == "__main__":
    asyncio.run(main())
