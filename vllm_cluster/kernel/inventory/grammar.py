"""The valid values of the inventory; invalid ones raise ValueError with a message for the user."""

from __future__ import annotations

import ipaddress
import re
import shlex
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StrictInt, WithJsonSchema

from vllm_cluster.kernel.inventory.words import quote_value
from vllm_cluster.kernel.versions import VLLM_IMAGE

CLUSTER_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$"
ID_PATTERN = r"^[0-9a-f]{16}$"
HOST_PATTERN = r"^[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
SECRET_PATTERN = r"^(env|file|cmd):.+$"  # noqa: S105 - the grammar of a reference, not a secret
SIZE_PATTERN = r"^[0-9]+(\.[0-9]+)? ?([kKmMgGtT]([iI]?[bB])?|[bB])?$"
VOLUME_PATTERN = r"^/[^:]*:/[^:]*(:(ro|rw))?$"
MAX_GPUS = 64
USER_PATTERN = r"^[0-9]{1,9}(:[0-9]{1,9})?$"

_LABEL = r"(?:[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?)"
# Without a dot or a port the first part is a folder of Docker Hub; Docker takes one with capitals for a registry.
_REGISTRY = rf"(?:(?=localhost/|[^/]*[.:])(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9a-fA-F:]+\])(?::[0-9]+)?)"
_PART = r"(?:[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)"
_IMAGE = re.compile(
    rf"(?:{_REGISTRY}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
    r"(?:@[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,})?"
)
_DEVICE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
_GPU = re.compile(r"GPU-[0-9a-fA-F]{8}(-[0-9a-fA-F]{4,12}){0,4}")
_INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,14}")
_RELEASE = re.compile(r"[0-9]+(\.[0-9]+){1,3}((a|b|rc|\.post|\.dev)[0-9]+)?")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
# The characters that OpenSSH itself refuses in a host name from the command line.
_SSH_FORBIDDEN = frozenset("'`\"$\\;&<>|(){},")


def cluster_name(text: str) -> str:
    """The cluster's name: it becomes part of container names."""
    if not re.fullmatch(CLUSTER_PATTERN[1:-1], text):
        raise ValueError(
            f"invalid cluster name {quote_value(text)}: use a-z, 0-9 and -, at most 32 characters, no - at the ends"
        )
    return text


def cluster_id(text: str) -> str:
    """The id that a cluster got at its first `up`."""
    if not re.fullmatch(ID_PATTERN[1:-1], text):
        raise ValueError(f"{quote_value(text)} is not an id: `vcluster status` shows the 16 hexadecimal digits of one")
    return text


def host_name(text: str) -> str:
    """A host's name in the inventory: it becomes part of labels and messages."""
    if not re.fullmatch(HOST_PATTERN[1:-1], text):
        raise ValueError(
            "invalid host name: use letters, digits, . _ and -, at most 63 characters, the first a letter or digit"
        )
    return text


def address(text: str) -> str:
    """An IP address that other hosts of the cluster can reach, in its canonical form."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(_no_address(text)) from None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {quote_value(text)}: write {found.ipv4_mapped}")
    if found.is_loopback or found.is_unspecified or found.is_multicast or text == "255.255.255.255":
        raise ValueError(f"{text} reaches no other host: write the address on the network between the hosts")
    if isinstance(found, ipaddress.IPv6Address) and (found.is_link_local or found.scope_id):
        raise ValueError("a link-local IPv6 address is valid on one interface only: write a routable address")
    return str(found)


def _no_address(text: str) -> str:
    bare = text.split("/", 1)[0]
    try:
        ipaddress.ip_address(bare)
    except ValueError:
        return f"{quote_value(text)} is not an IP address: a name goes under ssh, the address is written in numbers"
    return f"{quote_value(text)} is a network: write the address alone, {bare}"


def image_reference(text: str) -> str:
    """An image reference that Docker understands, and cannot take for an option."""
    if len(text) > 512 or not _IMAGE.fullmatch(text):
        hint = "; names are lower case" if _IMAGE.fullmatch(text.lower()) else ""
        raise ValueError(f"invalid image reference {quote_value(text)} (example: {VLLM_IMAGE}){hint}")
    return text


def format_version(value: object) -> object:
    """The number 1 itself: 1.0 and true are equal to it, and mean something else."""
    if type(value) is not int:
        quoted = ": a number, not text (`version: 1`)" if value == "1" else ""
        raise ValueError(f"must be 1, the format that this vcluster reads{quoted}")
    return value


def local_path(path: Path) -> Path:
    """A path on this machine."""
    text = str(path)
    if text in {"", "."} or text.startswith("-") or not text.isprintable():
        raise ValueError(f"invalid file path {quote_value(text)}")
    return path


def interface_name(text: str) -> str:
    """A network interface by its exact name, in no NCCL syntax."""
    if text[:1] in {"=", "^"} or "," in text:
        raise ValueError("write the interface's name alone (eth0): vcluster adds what NCCL and Gloo each want")
    if not _INTERFACE.fullmatch(text):
        raise ValueError(
            f"invalid interface name {quote_value(text)} (example: eth0; at most 15 letters, digits, . _ -)"
        )
    return text


def device(text: str) -> str:
    """An InfiniBand or RoCE device by its exact name, in no NCCL syntax."""
    if not _DEVICE.fullmatch(text):
        raise ValueError(
            f"invalid device name {quote_value(text)}: write it as `ls /sys/class/infiniband` does (mlx5_0)"
        )
    return text


def gpu_choice(value: object) -> int | tuple[int | str, ...]:
    """How many GPUs, or which: their indices or UUIDs as nvidia-smi shows them."""
    if isinstance(value, list | tuple):
        return _named_gpus(list(value))
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be an integer, or a list of indices or UUIDs: [0, 2, 5, 7]")
    if not 1 <= value <= MAX_GPUS:
        raise ValueError("must be at least 1" if value < 1 else f"must be at most {MAX_GPUS}")
    return value


def _named_gpus(names: list[object]) -> tuple[int | str, ...]:
    found: list[int | str] = []
    for name in names:
        if isinstance(name, str) and name.startswith("MIG-"):
            raise ValueError("names a MIG slice, and ranks cannot join slices: name whole GPUs")
        index = isinstance(name, int) and not isinstance(name, bool) and 0 <= name < MAX_GPUS
        if not index and not (isinstance(name, str) and _GPU.fullmatch(name)):
            raise ValueError(
                f"{quote_value(str(name))} is neither an index (0) nor a UUID (GPU-…): see `nvidia-smi -L`"
            )
        if name in found:
            raise ValueError(f"names GPU {name} twice")
        found.append(name)  # type: ignore[arg-type]
    if not 1 <= len(found) <= MAX_GPUS:
        raise ValueError(f"must name 1 to {MAX_GPUS} GPUs; without the key all are used")
    return tuple(found)


def container_user(value: object) -> object:
    """Who a container's processes are on the host: UID or UID:GID, in numbers, since names differ between images."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not re.fullmatch(USER_PATTERN[1:-1], text):
        raise ValueError(
            'must be numbers, UID or "UID:GID" ("1000:1000"), as `id` on a host shows; a login is `ssh: {user: ubuntu}`'
        )
    return text


def variable_name(text: str) -> str:
    """The name of an environment variable."""
    if not re.fullmatch(VARIABLE_PATTERN[1:-1], text):
        raise ValueError("invalid variable name: use letters, digits and _, the first not a digit")
    return text


def variable_value(text: str) -> str:
    """The value of an environment variable: any text that a process can receive."""
    if "\0" in text:
        raise ValueError("holds a NUL character, which is invalid in an environment variable")
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise ValueError("holds a lone surrogate, which is invalid in an environment variable")
    return text


def release(text: str) -> str:
    """An exact version of a Python package."""
    if not _RELEASE.fullmatch(text):
        raise ValueError(f"invalid version {quote_value(text)} (example: 2.56.1)")
    return text


def byte_size(value: object) -> object:
    """Bytes from a number or from text as Docker writes it: 16g is 16 GiB."""
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value)
    if match is None:
        raise ValueError(f"invalid size {quote_value(value)}: write a number with k, m, g or t (16g)")
    return int(float(match[1]) * 1024 ** _POWERS[(match[2] or "").lower()])


def ssh_user(text: str) -> str:
    """A user name that ssh cannot take for an option; never quoted back, it may hold a password."""
    if ":" in text:
        raise ValueError("holds a colon: an ssh target carries no password; use a key or an agent")
    # Of root@@gpu1 the user would be "root@", and of no machine.
    if (
        not text
        or text.startswith("-")
        or text[0] == "@"
        or text[-1] == "@"
        or not text.isprintable()
        or set(text) & set("'`\";&<>|(){} ")
    ):
        raise ValueError("invalid user name: ssh does not accept it")
    return text


def ssh_host(text: str) -> str:
    """A host name, address or ssh_config alias that ssh cannot take for an option."""
    bad = not text or text.startswith("-") or not text.isprintable()
    if bad or " " in text or "@" in text or "/" in text or set(text) & _SSH_FORBIDDEN:
        raise ValueError("invalid host name: ssh does not accept it")
    return text


def ssh_jump(text: str) -> str:
    """Jump hosts as ProxyJump writes them: [user@]host[:port], several with commas."""
    for hop in text.split(","):
        parts = destination(hop)
        ssh_host(str(parts["host"]))
        if "user" in parts:
            ssh_user(str(parts["user"]))
    return text


def destination(text: str) -> dict[str, object]:
    """The parts of [user@]host[:port]; an IPv6 address with a port is written in brackets."""
    if "://" in text:
        raise ValueError("write user@host:port, without ssh://")
    user, at, rest = text.rpartition("@")
    parts: dict[str, object] = {"user": user} if at else {}
    bracketed = re.fullmatch(r"\[([0-9a-fA-F:.]+)\](?::([0-9]{1,9}))?", rest)
    if bracketed:
        host, port = bracketed[1], bracketed[2]
    elif rest.count(":") > 1:
        host, port = rest, None
    else:
        host, colon, port = rest.partition(":")
        if colon and not re.fullmatch("[0-9]{1,9}", port):
            raise ValueError("invalid port after the last colon: write user@host:port")
    parts["host"] = host
    if port:
        number = int(port)
        if not 1 <= number <= 65535:
            raise ValueError(f"port must be 1 to 65535, got {number}")
        parts["port"] = number
    return parts


def secret(text: str) -> dict[str, object]:
    """The parts of a reference to a secret; the text is never quoted back, it may be the secret itself."""
    kind, colon, value = text.partition(":")
    if not colon or kind not in {"env", "file", "cmd"}:
        raise ValueError("looks like a secret; write a reference: env:NAME, file:PATH or cmd:COMMAND (value not shown)")
    return {"kind": kind, "value": value.strip()}


def secret_value(kind: str, value: str) -> None:
    """Check the part of a reference after its kind, without quoting it."""
    if kind == "env" and not re.fullmatch(VARIABLE_PATTERN[1:-1], value):
        raise ValueError("after env: comes the name of a variable of your shell, like env:HF_TOKEN")
    if kind == "cmd":
        command(value, kind)
    elif not value or not value.isprintable():
        raise ValueError(f"nothing readable after {kind}:")


def command(text: str, kind: str) -> None:
    """Check a command that follows `kind` and a colon, without quoting it."""
    if not text.strip() or not text.isprintable():
        raise ValueError(f"nothing readable after {kind}:")
    try:
        words = shlex.split(text)
    except ValueError:
        raise ValueError(f"the command after {kind}: has a quote that does not end") from None
    if not words or not words[0]:
        raise ValueError(f"empty command after {kind}:")


def mounted_folder(text: str) -> dict[str, object]:
    """The parts of source:target[:ro|rw]."""
    parts = text.split(":")
    if len(parts) not in {2, 3} or (len(parts) == 3 and parts[2] not in {"ro", "rw"}):
        raise ValueError(f"invalid volume {quote_value(text)}: write /folder/on/host:/folder/in/container[:ro]")
    return {"source": parts[0], "target": parts[1], "read_only": parts[2:] == ["ro"]}


# Value types that several keys share, with their JSON Schema.
LocalPath = Annotated[Path, AfterValidator(local_path)]
User = Annotated[str, AfterValidator(ssh_user)]
Jump = Annotated[str, AfterValidator(ssh_jump)]
SshPort = Annotated[StrictInt, Field(ge=1, le=65535)]
Port = Annotated[StrictInt, Field(ge=1024, le=65535)]
ContainerUser = Annotated[
    str,
    BeforeValidator(container_user),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": USER_PATTERN}]}),
]
Gpus = Annotated[
    int | tuple[int | str, ...],
    PlainValidator(gpu_choice),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_GPUS},
                {
                    "type": "array",
                    "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^GPU-"}]},
                    "minItems": 1,
                    "maxItems": MAX_GPUS,
                },
            ]
        }
    ),
]
Size = Annotated[
    StrictInt,
    Field(ge=1 << 20, le=1 << 50),
    BeforeValidator(byte_size),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": SIZE_PATTERN}]}),
]
