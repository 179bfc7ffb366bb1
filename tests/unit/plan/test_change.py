"""A spec survives its label, and two specs are compared field by field."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import world
from vllm_cluster.kernel.plan.desired import desired
from vllm_cluster.kernel.plan.spec import CHANGED, SPEC, ContainerSpec, compare_specs, stored_spec


def spec(**changes: object) -> ContainerSpec:
    """A head, with some fields of it changed."""
    made = desired(world.inventory(volumes=["/data:/data:ro"]), world.hosts(), world.INPUTS)[0]
    return replace(made, **changes)  # type: ignore[arg-type]


@given(st.from_type(ContainerSpec), st.integers(0, 1 << 53))
def test_the_label_holds_the_spec(made: ContainerSpec, number: int) -> None:
    made = replace(made, gpu_count=number, shm_size=number)
    again = stored_spec({SPEC: made.document})
    assert again == made
    assert compare_specs(made, again or made).fields == ()


@pytest.mark.parametrize(
    "label", ["", "null", "[]", "{}", "no JSON", '{"host": 1}', "[" * 100_000, '{"host":' * 100_000, "\ud800"]
)
def test_a_label_that_cannot_be_read_gives_no_spec(label: str) -> None:
    assert stored_spec({SPEC: label}) is None


# fault: kernel/plan/spec.py: gpu_count: Count → gpu_count: object
@pytest.mark.parametrize(
    ("field", "value"),
    [("gpu_count", 10**400), ("gpu_count", "2"), ("shm_size", -1), ("mounts", [{"source": 1}]), ("gpus", {"ids": [1]}),
     ("environment", [["A"]]), ("privileged", 1), ("role", "king"), ("command", "ray"), ("host", None)],
)  # fmt: skip
def test_a_label_with_a_field_of_another_type_gives_no_spec(field: str, value: object) -> None:
    assert stored_spec({SPEC: json.dumps({**json.loads(spec().document), field: value})}) is None


def test_a_field_of_another_version_changes_nothing() -> None:
    """Of a later one: skipped. Not yet there in an earlier one: its default."""
    data = json.loads(spec().document)
    later = {**data, "colour": "blue", "mounts": [{**row, "colour": "blue"} for row in data["mounts"]]}
    earlier = {key: value for key, value in data.items() if key not in ("privileged", "capabilities")}
    for label in (later, earlier):
        found = stored_spec({SPEC: json.dumps(label)})
        assert found is not None
        assert compare_specs(found, spec()).fields == ()


# fault: kernel/plan/spec.py: secret or →
def test_a_secret_is_only_changed() -> None:
    before = spec(environment=(("API_KEY", "abc"), ("A", "1")), secrets=(("api-key", "11"),))
    after = spec(environment=(("API_KEY", "def"), ("A", "1")), secrets=(("api-key", "22"),))
    found = compare_specs(before, after).fields
    assert [(change.field, change.before, change.after) for change in found] == [
        ("environment.API_KEY", CHANGED, CHANGED),
        ("secrets.api-key", CHANGED, CHANGED),
    ]


def test_the_path_of_a_secret_is_not_shown_beside_it() -> None:
    before, after = (
        desired(world.inventory(), world.hosts(), replace(world.INPUTS, secrets={"ray-token": "1", "api-key": key}))[0]
        for key in ("11", "22")
    )
    assert [change.field for change in compare_specs(before, after).fields] == ["secrets.api-key"]
