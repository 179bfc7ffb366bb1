"""Any content of the file: an inventory, or an InventoryError whose every line has a place; never a secret."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.strategies import DataObject, SearchStrategy

from vllm_cluster.kernel.errors import InventoryError
from vllm_cluster.kernel.inventory.load import load_text
from vllm_cluster.kernel.inventory.model import SECTIONS, Inventory
from vllm_cluster.kernel.inventory.template import HostSeed, render

# A busy machine is not a failure.
patient = settings(deadline=None)
FOLDER = Path("/srv/repo")
TOKEN = "hf_" + "aB3dE5gH7jK9mN1pQ2sT"
GOOD: dict[str, Any] = {
    "version": 1,
    "cluster": "lab",
    "head": "gpu1",
    "image": "vllm/vllm-openai:v0.19.0",
    "model_cache": "/srv/models",
    "shm_size": "16g",
    "environment": {"NCCL_DEBUG": "WARN"},
    "volumes": ["/data:/data:ro"],
    "hf_token": "env:HF_TOKEN",
    "ports": {"api": 8080, "worker_min": 20000, "worker_max": 25000},
    "ssh": {"config": "./ssh_config", "user": "me", "transport": "openssh"},
    "hosts": {
        "gpu1": {"ssh": "me@gpu1:22", "address": "10.0.0.1", "gpus": 8, "hcas": ["mlx5_0"]},
        "gpu2": {"ssh": {"host": "gpu2", "port": 22}, "address": "10.0.0.2", "interface": "eth0"},
    },
}
KEYS = sorted({key for section in SECTIONS.values() for key in section.model_fields} | {"gpu1", "<<", "*"})

scalars: SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["", "local", "10.0.0.1", "me@x:22", "-x", "/a:/b", "env:A", "cmd:", "~/x", "~no/x", "16g", "a\0b"]
    ),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(KEYS), st.text(max_size=6)), inner, max_size=6),
    ),
    max_leaves=12,
)


def _load(raw: str | bytes) -> Inventory | None:
    """The inventory, or None after checking how it was refused."""
    data = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
    try:
        inventory = load_text(data, path=FOLDER / "inventory.yaml", cwd=FOLDER)
    except InventoryError as error:
        lines = error.message.split("\n")
        problems = [line for line in lines if re.match(r"inventory\.yaml:[1-9][0-9]*: \S", line)]
        assert 1 <= len(problems) <= 21
        assert len(problems) == 1 or re.fullmatch(r"inventory\.yaml: [1-9][0-9]* problems", lines[0]), lines[0]
        for line in lines:
            # Their number, an example of what would be right, or a problem.
            assert line in (*problems, lines[0]) or line.startswith("    "), line
            assert line.isprintable(), ascii(line)
        return None
    # An address that is not named is not valid: the defaults stay out.
    assert Inventory.model_validate(inventory.model_dump(exclude_defaults=True)).model_dump() == inventory.model_dump()
    return inventory


def _places(value: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place, *(deeper for key, item in inner for deeper in _places(item, (*place, key)))]


def _replaced(document: dict[str, Any], place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = copy.deepcopy(document)
    around: Any = changed
    for part in place[:-1]:
        around = around[part]
    around[place[-1]] = value
    return changed


@patient
@given(st.binary(max_size=200))
def test_any_bytes(raw: bytes) -> None:
    _load(raw)


@patient
@given(st.text(alphabet=st.sampled_from(list("abgpu1:-?[]{}&*!|>'\"%@`#,.<~ \t\n\r\0\x85é☃\ufeff\ud800")), max_size=60))
def test_any_text_of_yamls_own_signs(text: str) -> None:
    _load(text)


@patient
@given(values)
def test_any_document(value: Any) -> None:
    _load(json.dumps(value))


def test_the_good_one_loads() -> None:
    assert _load(json.dumps(GOOD)) is not None


@patient
@given(st.data())
def test_a_good_document_with_one_value_changed(data: DataObject) -> None:
    place = data.draw(st.sampled_from(_places(GOOD)))
    _load(json.dumps(_replaced(GOOD, place, data.draw(values))))


@patient
@given(st.data())
def test_a_good_text_with_a_few_characters_changed(data: DataObject) -> None:
    text = render(
        "lab", [HostSeed("gpu1", "me@gpu1:22", "10.0.0.1"), HostSeed("gpu2", None, "10.0.0.2")], "x/y", "/srv"
    )
    text = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#")) + "\n"
    for _ in range(data.draw(st.integers(1, 4))):
        at, gone = data.draw(st.integers(0, len(text))), data.draw(st.integers(0, 8))
        text = text[:at] + data.draw(st.text(max_size=4)) + text[at + gone :]
    _load(text)


@patient
@given(st.data())
def test_a_token_anywhere_is_never_printed(data: DataObject) -> None:
    place = data.draw(st.sampled_from(_places(GOOD)))
    token = data.draw(st.sampled_from([TOKEN, f"{TOKEN} ", f"x:{TOKEN}@y", f"env:{TOKEN}!", f"Bearer {TOKEN}"]))
    wrong = _replaced(GOOD, place, data.draw(st.sampled_from([token, [token], {token: token}])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", "/home/me")
        try:
            load_text(json.dumps(wrong).encode(), path=FOLDER / "inventory.yaml", cwd=FOLDER)
        except InventoryError as error:
            assert TOKEN not in error.message


ANY_TEXT = st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@patient
@given(st.dictionaries(st.from_regex(r"\AX_[A-Za-z0-9_]{0,20}\Z"), ANY_TEXT, max_size=4))
def test_environment_values_arrive_as_meant(environment: dict[str, str]) -> None:
    # ruamel reads \ud83d\ude00 as two halves, so what JSON would escape in halves is written as it is.
    text = "".join(f"  {name}: {_quoted(value)}\n" for name, value in environment.items())
    rest = json.dumps({key: value for key, value in GOOD.items() if key != "environment"})[1:-1].replace("\n", "")
    inventory = _load("{" + rest + ", environment: {" + text.replace("\n", ",\n") + "}}")
    assert inventory is not None
    assert inventory.environment == environment


def _quoted(value: str) -> str:
    return '"' + "".join(c if c.isalnum() and c.isascii() else f"\\U{ord(c):08x}" for c in value) + '"'


@patient
@given(st.sampled_from(["image", "cluster", "head", "ray", "model_cache"]), ANY_TEXT)
def test_nothing_that_begins_like_an_option_is_taken(key: str, text: str) -> None:
    assert _load(json.dumps({**GOOD, key: f"-{text}"})) is None


# fault: kernel/inventory/grammar.py: text or text.startswith("-") or not → text or not
@patient
@given(ANY_TEXT.filter(lambda text: "@" not in text))  # in me@-@0 the user is me@-, and that is not an option
def test_no_ssh_target_is_taken_for_an_option(text: str) -> None:
    for ssh in (
        f"-{text}",
        f"-{text}@host",
        f"me@-{text}",
        {"jump": f"-{text}"},
        {"user": f"-{text}"},
        {"host": f"-{text}"},
    ):
        assert _load(json.dumps(_replaced(GOOD, ("hosts", "gpu1", "ssh"), ssh))) is None


names = st.from_regex(r"\A[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}\Z").filter(lambda name: name.lower() != "local")


@patient
@given(
    st.lists(names, min_size=1, max_size=5, unique_by=lambda name: name.lower().rstrip(".")),
    st.sampled_from(["lab", "1", "no"]),
)
def test_what_init_writes_is_what_was_asked(hosts: list[str], cluster: str) -> None:
    seeds = [HostSeed(name, None, f"10.0.0.{n + 1}") for n, name in enumerate(hosts)]
    inventory = _load(render(cluster, seeds, "vllm/vllm-openai:latest", "/srv/models"))
    assert inventory is not None
    assert inventory.cluster == cluster
    assert [(host.name, host.address) for host in inventory.hosts.values()] == [(s.name, s.address) for s in seeds]
