"""Models as the hub and folders hold them, and everything that is not one."""

from __future__ import annotations

import json
import os
import struct
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.models import checkpoints, configs
from tests.support.models.hub import Hub, hub
from vllm_cluster.kernel.clock import Deadline
from vllm_cluster.kernel.errors import Unreachable, UsageError, VclusterError
from vllm_cluster.serving.fit.hub import files as hub_files
from vllm_cluster.serving.fit.hub import model as reading
from vllm_cluster.serving.fit.hub.model import read
from vllm_cluster.wire.safetensors import MAX_HEADER, files_of, tensors

NAME = "meta-llama/Llama-3.1-8B"
STORED = 16_060_522_496
EXPERTS = json.dumps({**configs.LLAMA_8B, "num_experts_per_tok": 2}).encode()


def repository(shards: int = 1) -> dict[str, bytes]:
    """Llama 3.1 8B."""
    return checkpoints.files(configs.LLAMA_8B, checkpoints.llama(configs.LLAMA_8B), shards)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with Llama 3.1 8B in 40 files."""
    with hub(repositories={NAME: repository(40)}) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url + "/")
        yield made


# fault: serving/fit/hub/model.py: 17 → 40
@pytest.mark.parametrize("shards", [1, 40])
@pytest.mark.parametrize("ranges", [True, False])
def test_only_the_headers_are_read(here: Hub, shards: int, ranges: bool) -> None:
    here.repositories[NAME], here.ranges = repository(shards), ranges
    shape, weights = read(NAME, None)
    assert (len(shape.layers), weights.stored, weights.estimated) == (32, {"BF16": STORED}, False)
    asked = [headers["Range"].removeprefix("bytes=") for path, headers in here.asked if path.endswith(".safetensors")]
    assert max(int(end) - int(begin) for begin, _, end in (text.partition("-") for text in asked)) < 1 << 20


@pytest.mark.parametrize("ranges", [True, False])
def test_a_long_header_is_read_to_its_end(here: Hub, ranges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FIRST_BYTES", 1000)
    here.ranges = ranges
    assert read(NAME, None)[1].stored == {"BF16": STORED}


def test_a_folder_needs_no_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    for name, content in repository(3).items():
        (tmp_path / name).write_bytes(content)
    assert read(str(tmp_path), None)[1].loaded == STORED


# fault: serving/fit/hub/files.py: urlsplit(request.url or "")[:2] == urlsplit(self._endpoint)[:2] → True
def test_the_token_goes_to_the_hub_alone(here: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not to where the hub sends us for the files; and a .netrc entry does not take its place."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password wrong\n")
    monkeypatch.setenv("NETRC", str(netrc))
    here.gated.add(NAME)
    with hub(repositories=here.repositories) as store:
        here.elsewhere = store.url.replace("127.0.0.1", "localhost")
        assert read(NAME, here.token)[1].loaded == STORED
        assert store.asked
        assert not any("hf_right" in str(headers) for _, headers in store.asked)


# fault: serving/fit/hub/files.py: if code in (401, 403): → if code == 402:
@pytest.mark.parametrize(("token", "code"), [(None, 401), ("hf_wrong", 403)])
def test_a_gated_model(here: Hub, token: str | None, code: int) -> None:
    here.gated.add(NAME)
    with pytest.raises(VclusterError, match=f"gated, private or not there: the hub answers {code}") as caught:
        read(NAME, token)
    assert caught.value.exit_code == 1
    assert "HF_TOKEN" in str(caught.value.hint)
    assert "hf_wrong" not in f"{caught.value}{caught.value.hint}"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("meta-llama/Llama-9", UsageError),
        ("/no/such/folder", UsageError),
        ("a/b/c", UsageError),
        ("", UsageError),
        ("-x", UsageError),
        ("a b", UsageError),
        ("https://hub/model", UsageError),
    ],
)
def test_names_of_nothing(here: Hub, name: str, kind: type[VclusterError], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/proc")
    with pytest.raises(kind):
        read(name or " ", None)


# fault: serving/fit/hub/files.py: if token and not (token.isascii() and token.isprintable()): → if False:
@pytest.mark.parametrize("token", ["hf_a\nb", "hf_é€", "hf_\x1b"])
def test_a_token_that_no_header_can_have_is_named_and_not_shown(token: str) -> None:
    """It was taken for an address that is none, and before that ended in an internal error."""
    with pytest.raises(UsageError, match="no HTTP header can have") as error:
        hub_files.Hub("org/m", token, Deadline.after(1))
    assert token not in f"{error.value}{error.value.hint}"


def test_a_hub_that_sends_in_a_circle_is_left(here: Hub) -> None:
    """What comes with each redirect is not read: it may have no end."""
    here.repositories[NAME], here.elsewhere = repository(), here.url
    with pytest.raises(Unreachable, match="TooManyRedirects"):
        read(NAME, None)


# fault: serving/fit/hub/files.py: at {Url(self._endpoint)}/ → at {self._endpoint}/
@pytest.mark.parametrize("broken", [0, 401, 404, 500])
def test_no_login_of_the_hubs_address_is_shown(here: Hub, monkeypatch: pytest.MonkeyPatch, broken: int) -> None:
    monkeypatch.setenv("HF_ENDPOINT", here.url.replace("://", "://bob:geheim@"))
    here.broken = broken
    if not broken:
        here.gated.add(NAME)
    with pytest.raises(VclusterError) as refused:
        read(NAME, None)
    assert "geheim" not in f"{refused.value} {refused.value.hint}"


@pytest.mark.parametrize("code", [500, 503, 429])
def test_a_hub_in_trouble(here: Hub, code: int) -> None:
    here.broken = code
    with pytest.raises(Unreachable, match=f"the hub answers {code}"):
        read(NAME, None)


@pytest.mark.parametrize(
    ("endpoint", "said"),
    [
        ("http://127.0.0.1:1", "refused"),
        ("http://no.such.invalid", "cannot connect to the hub"),
        ("ftp://x", "cannot connect to the hub"),
    ],
)
def test_a_hub_that_is_not_there(monkeypatch: pytest.MonkeyPatch, endpoint: str, said: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(Unreachable, match=said) as caught:
        read(NAME, None)
    assert "0x" not in str(caught.value)


# fault: serving/fit/hub/files.py: if not self._deadline.left(): → if self._deadline.left() < 0:
def test_a_hub_that_drips_is_left(here: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "READ_SECONDS", 0.5)
    here.drips = True
    began = time.monotonic()
    with pytest.raises(Unreachable, match="in time"):
        read(NAME, None)
    assert time.monotonic() - began < 5


def test_without_one_header_the_index_gives_the_sum(here: Hub) -> None:
    here.refused = "model-00007"
    weights = read(NAME, None)[1]
    assert weights.estimated
    assert weights.loaded == pytest.approx(STORED, rel=0.001)


HALF = json.dumps(configs.LLAMA_8B).encode()[:200]
INDEX = "model.safetensors.index.json"


# fault: serving/fit/hub/files.py: if path.is_absolute() or ".." in path.parts or → if
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config.json": HALF}, "is not complete JSON"),
        ({"config.json": b""}, "is not complete JSON"),
        ({"config.json": b"[]"}, "not what it should be"),
        ({"config.json": b"\xff\x00"}, "is not complete JSON"),
        ({"config.json": b"[" * 200_000}, "is not complete JSON"),
        ({"config.json": b" " * (2 << 20)}, "not what it should be"),
        ({"config.json": b'{"model_type": "zebra"}'}, "config.json is incomplete: it has no num_hidden_layers"),
        ({"config.json": None}, "has no config.json"),
        # Of experts the config does not have enough to count them.
        ({"model.safetensors": None, "config.json": EXPERTS}, "has no model.safetensors"),
        ({"model.safetensors": b"version https://git-lfs.github.com/spec/v1\noid"}, "not a safetensors file"),
        ({"model.safetensors": b"abc"}, "not a safetensors file"),
        ({"model.safetensors": b"\xff" * 64}, "not a safetensors file"),
        ({"model.safetensors": repository()["model.safetensors"][:3000]}, "header is not JSON"),
        ({INDEX: b'{"weight_map": {"a": "../../../etc/passwd"}}'}, "outside of itself"),
        ({INDEX: b'{"weight_map": {"a": "/etc/passwd"}}'}, "outside of itself"),
        (
            {INDEX: json.dumps({"weight_map": {str(n): f"{n}" for n in range(5000)}}).encode()},
            "names more than 4096 files",
        ),
        ({INDEX: b'{"weight_map": {"a": "gone.safetensors"}}'}, "has no gone.safetensors"),
        ({INDEX: b"{"}, "is not JSON"),
        ({INDEX: b'{"weight_map": [' + b"[]," * 99}, "is not JSON"),
        ({INDEX: b" " * (17 << 20)}, "its index has more than"),
    ],
)
@pytest.mark.parametrize("where", ["hub", "folder"])
def test_what_has_no_model_is_refused(
    here: Hub, tmp_path: Path, where: str, changes: dict[str, Any], said: str
) -> None:
    content = {name: data for name, data in {**repository(), **changes}.items() if data is not None}
    for name, data in content.items():
        (tmp_path / name).write_bytes(data)
    here.repositories["org/odd"] = content
    with pytest.raises(VclusterError, match=said) as caught:
        read("org/odd" if where == "hub" else str(tmp_path), None)
    assert caught.value.exit_code == 1
    assert len(str(caught.value)) < 1000


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(VclusterError, match=r"no config\.json"):
        read(str(tmp_path), None)


# fault: serving/fit/hub/model.py: self._left -= length → self._left -= 0
@pytest.mark.parametrize(
    ("count", "length", "said"),
    [(4096, 81_000_000, "its header has 81.0 MB; at most"), (4096, 1 << 20, "those of all files 67.1 MB are read")],
)
def test_the_headers_of_all_files_have_one_budget(tmp_path: Path, count: int, length: int, said: str) -> None:
    """4,096 headers of 81 MB took gigabytes. The files are sparse here, and no header is read but those that fit."""
    header = struct.pack("<Q", length) + b"{}"
    (tmp_path / "config.json").write_text(EXPERTS.decode())
    names = [f"{number}.safetensors" for number in range(count)]
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {name: name for name in names}}))
    for name in names[:80]:
        (tmp_path / name).write_bytes(header)
        os.truncate(tmp_path / name, length + 8)
    for name in names[80:]:
        (tmp_path / name).hardlink_to(tmp_path / names[0])
    tracemalloc.start()
    try:
        with pytest.raises(VclusterError, match=said):
            read(str(tmp_path), None)
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


def test_a_header_of_the_largest_size_takes_no_multiple_of_it() -> None:
    row = b'"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},'
    header = b"{" + row * ((1 << 20) // len(row)) + b'"__metadata__":{"x":"' + b"x" * 1000 + b'"}}'
    header += b" " * (MAX_HEADER - len(header))
    tracemalloc.start()
    try:
        assert sum(size for _, _, size in tensors(header)) == (1 << 20) // len(row)
        assert tracemalloc.get_traced_memory()[1] < 2 * MAX_HEADER
    finally:
        tracemalloc.stop()


class Counted(str):
    """A text that counts what is copied of it."""

    copied = 0

    def __getitem__(self, part: Any) -> str:
        found = super().__getitem__(part)
        Counted.copied += len(found)
        return found


# fault: wire/safetensors.py: sorted({min(_MAX_ROW, most), most}) → (most,)
@pytest.mark.parametrize("key", ["", "__metadata__"])
def test_many_short_entries_are_read_without_a_large_copy_for_each(key: str) -> None:
    """Of 1 MB of `"":1,` as an index the copies took 4 s, of the 16 MB that an index may have minutes."""
    entries, Counted.copied = 20_000, 0
    text = Counted("{" + f'"{key}":1,' * entries + f'"{key}":1}}')
    given: Any = SimpleNamespace(decode=lambda _: text)
    if key:
        assert list(tensors(given)) == []
    else:
        assert files_of(given) == ([], 0)
    assert Counted.copied <= 2 * 4096 * (entries + 1)
