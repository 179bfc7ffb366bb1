"""A socket under paramiko that notices a dead peer, and the paramiko connection that asks it for signs of life."""

from __future__ import annotations

import contextlib
import errno
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Protocol

import paramiko
from paramiko.common import (
    MSG_CHANNEL_DATA,
    MSG_CHANNEL_EXTENDED_DATA,
    cMSG_CHANNEL_CLOSE,
    cMSG_CHANNEL_DATA,
    cMSG_CHANNEL_EOF,
    cMSG_CHANNEL_REQUEST,
    cMSG_GLOBAL_REQUEST,
    cMSG_SERVICE_REQUEST,
)
from paramiko.ssh_exception import IncompatiblePeer

from vllm_cluster.kernel.clock import SYSTEM_CLOCK, was_stopped
from vllm_cluster.kernel.transport.fabric.dial import SILENCE_SECONDS

KEEPALIVE_SECONDS = 5.0
MAX_REASON = 200
# How long paramiko lets a socket wait, at most.
STEP_SECONDS = 0.5
# For one packet of paramiko's, which has 35 kB at most, to leave.
PACKET_SECONDS = 30.0
# paramiko waits for as much as a packet announces, up to 4 GB, before it knows the host. OpenSSH sends 256 KiB at most.
MAX_PACKET = 1 << 20
# While new keys are agreed on, a close of each stream and a request for a sign of life come.
MAX_ANSWERS = 1024
# Of a host's key, and of what it signs with it: RSA of 16,384 bits, the most that OpenSSL takes, has 2 KB.
MAX_HOST_KEY = 16 << 10
# Bytes of one that has no name and no value.
MIN_EXTENSION = 8
# Messages without output that a host may send at once, in each second, and for each that it got.
UNASKED_AT_ONCE, UNASKED_A_SECOND, FOR_EACH_SENT = 20_000, 1_000, 4
# One counts once more for each so many bytes.
LARGE_MESSAGE = 1000
AUTHENTICATED = "-gcm@openssh.com"
# What ssh_config calls each of paramiko's lists.
LISTS = {
    "ciphers": "Ciphers",
    "macs": "MACs",
    "kex": "KexAlgorithms",
    "keys": "HostKeyAlgorithms",
    "pubkeys": "PubkeyAcceptedAlgorithms",
}
# The older name of the same (RFC 8731), and the only one that paramiko knows.
OLDER_NAME = "@libssh.org"
_OF_A_CHANNEL = (cMSG_CHANNEL_DATA, cMSG_CHANNEL_EOF, cMSG_CHANNEL_REQUEST)
# What paramiko raises when a connection breaks.
BROKEN = (OSError, EOFError, paramiko.SSHException)


class Socket(Protocol):
    """The socket interface that paramiko needs: of a socket, or of a channel of a jump host."""

    def recv(self, size: int, /) -> bytes: ...
    def send(self, data: bytes, /) -> int: ...
    def settimeout(self, seconds: float | None, /) -> None: ...
    def close(self) -> None: ...


class KeepaliveSocket:
    """A socket that asks a silent peer for an answer, and breaks when none comes.

    paramiko's own keepalive never gives up, and TCP's time-out sees neither beyond a jump host nor a stopped sshd.
    """

    def __init__(self, sock: Socket) -> None:
        self._sock = sock
        self._received_at = time.monotonic()
        self._doubt: float | None = None
        self._closed = False  # paramiko reads this name
        # Since when what paramiko gave last has not been taken whole.
        self._sending: float | None = None
        self.received = 0
        self.failure = ""
        self.ask: Callable[[], bool] = lambda: False

    def recv(self, size: int) -> bytes:
        """Bytes from the peer; called again and again by paramiko's thread, so silence is measured here."""
        if size > MAX_PACKET:
            # What paramiko asks for is what is left of a packet.
            self.failure = f"it announces a packet of {size} bytes, more than SSH allows"
            raise IncompatiblePeer(self.failure)
        began = SYSTEM_CLOCK.monotonic()
        try:
            data = self._sock.recv(size)
        except TimeoutError as error:
            self._forgive(began)
            self._judge(error)
            if self._doubt is None and time.monotonic() - self._received_at > KEEPALIVE_SECONDS and self.ask():
                self._doubt = time.monotonic()
            raise
        except OSError as error:
            self.failure = self.failure or error.strerror or str(error)
            raise
        if not data:
            self.failure = self.failure or "the other side closed it"
        self._received_at, self._doubt = time.monotonic(), None
        self.received += len(data)
        return data

    def send(self, data: bytes) -> int:
        """Send some of the bytes; a peer that takes none, or a packet a little at a time, counts as silent."""
        began = SYSTEM_CLOCK.monotonic()
        self._sending = time.monotonic() if self._sending is None else self._sending
        try:
            sent = self._sock.send(data)
        except TimeoutError as error:
            self._forgive(began)
            self._judge(error)
            if self._doubt is None:
                self._doubt = time.monotonic()
            self._require_pace()
            raise
        self._forgive(began)
        if sent == len(data):
            self._sending = None
        else:
            self._require_pace()
        return sent

    def _require_pace(self) -> None:
        # A jump host may grant a byte now and then, and send on itself: whoever sends would wait for it without end.
        if self._sending is not None and time.monotonic() - self._sending > PACKET_SECONDS:
            self.failure = f"it did not take a packet within {PACKET_SECONDS:.0f} s"
            raise ConnectionAbortedError(errno.ECONNABORTED, self.failure)

    def settimeout(self, seconds: float | None) -> None:
        """As a socket's."""
        self._sock.settimeout(seconds)

    def close(self) -> None:
        """As a socket's; paramiko's thread calls it too, when a jump host's connection may be gone before."""
        self._closed = True
        with contextlib.suppress(*BROKEN):
            self._sock.close()

    def _forgive(self, began: float) -> None:
        # A peer is not silent while this process is stopped, as by Ctrl-Z: its answer is there, and not read yet.
        if was_stopped(began, STEP_SECONDS):
            now = time.monotonic()
            self._doubt, self._sending = self._doubt and now, self._sending and now

    def _judge(self, error: TimeoutError) -> None:
        if error.errno == errno.ETIMEDOUT:
            self.failure = "no answer from the network"
        elif self._doubt is not None and time.monotonic() - self._doubt > SILENCE_SECONDS:
            self.failure = f"no keepalive reply for {SILENCE_SECONDS:.0f} s"
        else:
            return
        # Not ETIMEDOUT: Python makes a TimeoutError of it, which paramiko takes for "nothing yet, try again".
        raise ConnectionAbortedError(errno.ECONNABORTED, self.failure) from None


class _ChannelSender:
    """What one channel has for its connection: a message that it sends is known to be its own.

    paramiko sends what a thread has ready also after its other thread has closed the channel, and OpenSSH ends the
    whole connection for it, or gives it to the next channel: that gets the number of the closed one, so a number alone
    does not show whose message it is.
    """

    def __init__(self, transport: paramiko.Transport, *, closed: bool) -> None:
        self._transport, self._closed = transport, closed

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def _send_user_message(self, message: paramiko.Message) -> None:
        message.sender = self  # type: ignore[attr-defined]
        self._transport._send_user_message(message)  # type: ignore[attr-defined]

    def is_late(self, kind: bytes) -> bool:
        """Whether a message of this kind comes after the end of its channel."""
        if kind == cMSG_CHANNEL_CLOSE:
            self._closed = True
            return False
        return self._closed and kind in _OF_A_CHANNEL


class Unasked:
    """How many messages without output may still come: a flood of them took a core for as long as any command may."""

    def __init__(self) -> None:
        self._left, self._at = float(UNASKED_AT_ONCE), time.monotonic()
        self._lock = threading.Lock()

    def add(self, messages: float) -> bool:
        """Whether these may come too; below zero, what allows more."""
        now = time.monotonic()
        with self._lock:  # whoever sends allows more, while paramiko's thread takes what comes
            since, self._at = now - self._at, now
            self._left = min(self._left + since * UNASKED_A_SECOND - messages, UNASKED_AT_ONCE)
            return self._left >= 0


def _weight(message: paramiko.Message) -> int:
    return 1 + len(message.asbytes()) // LARGE_MESSAGE


def _within_window(
    feed: Callable[[paramiko.Channel, paramiko.Message], None], head: int, kind: bytes
) -> Callable[..., None]:
    """As `feed`, for a host that sends no more than it may: paramiko grants a window and keeps what comes beyond it.

    `head` bytes are before the output, and end with `kind` and a length.
    """

    def checked(channel: paramiko.Channel, message: paramiko.Message) -> None:
        unread = len(channel.in_buffer) + len(channel.in_stderr_buffer)
        if unread > channel.in_window_size:
            socket: KeepaliveSocket = channel.transport.sock  # type: ignore[union-attr,assignment]
            socket.failure = f"it sends more than the window of {channel.in_window_size} bytes"
            raise paramiko.SSHException(socket.failure)
        given = message.asbytes()
        if len(given) > head and given[: head - 4].endswith(kind):
            channel.transport.unasked.add(-_weight(message))  # type: ignore[union-attr]
        feed(channel, message)

    return checked


class KeepaliveTransport(paramiko.Transport):
    """A paramiko connection that never waits without a limit, and keeps no more than it asked for."""

    _channel_handler_table: ClassVar = {
        **paramiko.Transport._channel_handler_table,  # type: ignore[attr-defined]
        MSG_CHANNEL_DATA: _within_window(paramiko.Channel._feed, 8, b""),  # type: ignore[attr-defined]
        MSG_CHANNEL_EXTENDED_DATA: _within_window(paramiko.Channel._feed_extended, 12, b"\0\0\0\1"),  # type: ignore[attr-defined]
    }

    def __init__(
        self,
        sock: KeepaliveSocket,
        *,
        key_types: tuple[str, ...] = (),
        allowed: Mapping[str, str] = MappingProxyType({}),
        **options: object,
    ) -> None:
        super().__init__(sock, **options)  # type: ignore[arg-type]
        self._allowed = {kind: allowed[word].split(",") for kind, word in LISTS.items() if word in allowed}
        offered = self.get_security_options()
        # paramiko offers AES-GCM last, and with any other cipher makes and compares a digest of each packet in Python.
        offered.ciphers = tuple(sorted(offered.ciphers, key=lambda name: not name.endswith(AUTHENTICATED)))
        # Not those with a prime, whose numbers the host sends: one below zero kept a core busy without end, and new
        # keys take half a second for 2 kB, as often as a host asks. Every sshd since 2011 has curves.
        offered.kex = tuple(name for name in offered.kex if not name.startswith("diffie-hellman"))
        if key_types:
            offered.key_types = key_types
        self._socket = sock
        sock.ask = self.send_keepalive
        self._login_begun = False
        self.unasked = Unasked()
        read = self.packetizer.read_message
        self.packetizer.read_message = lambda: self._judged(*read())  # type: ignore[method-assign]
        # What is sent once there are new keys.
        self._answers: list[paramiko.Message] = []

    def without_any(self) -> str | None:
        """The first word of ssh_config that allows nothing which is known here."""
        return next((word for kind, word in LISTS.items() if not self._filter_algorithm(kind)), None)

    def _filter_algorithm(self, kind: str) -> tuple[str, ...]:
        # Every list that paramiko offers, or agrees by, comes through here.
        return self._only_allowed(kind, super()._filter_algorithm(kind))  # type: ignore[misc]

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """As paramiko's, which adds the certificates of each type."""
        return self._only_allowed("keys", super().preferred_keys)

    def _only_allowed(self, kind: str, names: Iterable[str]) -> tuple[str, ...]:
        allowed = self._allowed.get(kind)
        return tuple(
            name for name in names if allowed is None or name in allowed or name.removesuffix(OLDER_NAME) in allowed
        )

    def open_channel(self, *args: object, **options: object) -> paramiko.Channel:
        """As paramiko's; what is sent through it is known to be of this channel."""
        channel = super().open_channel(*args, **options)  # type: ignore[arg-type]
        with channel.lock:
            channel.transport = _ChannelSender(self, closed=channel.closed)  # type: ignore[assignment]
        return channel

    def _judged(self, kind: int, message: paramiko.Message) -> tuple[int, paramiko.Message]:
        """A message that came, as it is."""
        if not self.unasked.add(_weight(message)):
            self._socket.failure = "it sends messages without end that bring nothing"
            raise paramiko.SSHException(self._socket.failure)
        return kind, message

    def _send_message(self, data: paramiko.Message) -> None:
        # Called under paramiko's lock, so this sees the order in which messages leave.
        sender: _ChannelSender | None = getattr(data, "sender", None)
        if sender and sender.is_late(data.asbytes()[:1]):
            return
        # paramiko asks for the login again with each key; servers made with Go or asyncssh hang up at the second time.
        if data.asbytes().startswith(cMSG_SERVICE_REQUEST):
            if self._login_begun:
                accepted = paramiko.Message()
                accepted.add_string("ssh-userauth")
                accepted.rewind()
                self.auth_handler._parse_service_accept(accepted)  # type: ignore[union-attr]
                return
            self._login_begun = True
        # What this thread sends are answers.
        if threading.current_thread() is not self:
            self.unasked.add(-FOR_EACH_SENT)
        super()._send_message(data)  # type: ignore[misc]

    def _send_user_message(self, data: paramiko.Message) -> None:
        if threading.current_thread() is not self or self.clear_to_send.is_set():
            super()._send_user_message(data)  # type: ignore[misc]
            return
        # Only this thread can finish the key exchange that paramiko would wait for here, as it answers a close.
        if len(self._answers) >= MAX_ANSWERS:
            # A host that does not answer for new keys may ask on: with a thread for each, 5,000 took 110 MB.
            self._socket.failure = f"it sends more than {MAX_ANSWERS} requests before it agrees on new keys"
            raise paramiko.SSHException(self._socket.failure)
        self._answers.append(data)

    def _parse_newkeys(self, message: paramiko.Message) -> None:
        super()._parse_newkeys(message)  # type: ignore[misc]
        answers, self._answers = self._answers, []
        for one in answers:
            self._send_user_message(one)

    def _verify_key(self, host_key: bytes, sig: bytes) -> None:
        # paramiko makes numbers of them in quadratic time, for anyone on the way: one of 256 kB took 7 s.
        if max(len(host_key), len(sig)) > MAX_HOST_KEY:
            self._socket.failure = f"its host key or signature has more than {MAX_HOST_KEY} bytes"
            raise paramiko.SSHException(self._socket.failure)
        judged = self.host_key
        super()._verify_key(host_key, sig)  # type: ignore[misc]
        # known_hosts is asked once, at the login; new keys may be agreed on at any time.
        if judged is not None and judged != self.host_key:
            self._socket.failure = "its host key changed within the connection"
            raise paramiko.SSHException(self._socket.failure)

    def _parse_ext_info(self, message: paramiko.Message) -> None:
        # paramiko reads as many as are announced, also behind the end: 9 bytes kept a core busy for an hour and more.
        if message.get_int() * MIN_EXTENSION > len(message.asbytes()):
            raise paramiko.SSHException("it announces more extensions than it sends")
        message.rewind()
        super()._parse_ext_info(message)  # type: ignore[misc]

    def _parse_debug(self, message: paramiko.Message) -> None:
        """Nothing: paramiko makes it printable in quadratic time, for a log that is not kept; 30 kB took 18 ms."""

    def _parse_disconnect(self, message: paramiko.Message) -> None:
        # paramiko reads the reason and keeps it to itself.
        message.get_int()
        self._socket.failure = self._socket.failure or f"sshd ended it: {message.get_text()[:MAX_REASON]}"

    def send_keepalive(self) -> bool:
        """Send a request that every server answers; False when it cannot be sent now."""
        if not self.is_authenticated() or not self.clear_to_send.is_set():
            return False
        message = paramiko.Message()
        message.add_byte(cMSG_GLOBAL_REQUEST)
        message.add_string("keepalive@openssh.com")
        message.add_boolean(True)
        # Runs on the thread that reads: it must never wait for a writer that waits for the peer.
        if not self.clear_to_send_lock.acquire(blocking=False):
            return False
        try:
            self._send_message(message)
        finally:
            self.clear_to_send_lock.release()
        return True

    def begin(self, channel: paramiko.Channel, command: bytes) -> None:
        """Start a command on a channel without waiting for the answer, for which paramiko sets no limit."""
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(command)
        channel.event.clear()
        channel.transport._send_user_message(message)  # type: ignore[union-attr]
