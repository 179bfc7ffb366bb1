"""Which fields a request may have, by the schema that the server has of itself."""

from __future__ import annotations

from typing import Any

import pytest

from vllm_cluster.serving.api.answer import fields_of


def schema(request: Any, **schemas: Any) -> dict[str, Any]:
    content = {"application/json": {"schema": request}}
    return {
        "paths": {"/v1/completions": {"post": {"requestBody": {"content": content}}}},
        "components": {"schemas": schemas},
    }


def test_the_fields_of_a_request_are_those_of_all_its_forms() -> None:
    chat = {"properties": {"messages": {}}, "allOf": [{"$ref": "#/components/schemas/Both"}]}
    found = schema(
        {"anyOf": [{"$ref": "#/components/schemas/Chat"}, {"properties": {"prompt": {}}}]},
        Chat=chat,
        Both={"properties": {"seed": {}}, "anyOf": [{"$ref": "#/components/schemas/Chat"}]},
    )
    assert fields_of(found, "/v1/completions") == {"messages", "prompt", "seed"}
    assert fields_of(found, "/v1/other") == frozenset()


# fault: serving/api/answer.py: {name for name in found if name.isidentifier()} → found.keys()
def test_a_field_is_a_name() -> None:
    """The one that is alike is in a remedy, without quotes."""
    found = schema({"properties": {"seed": {}, "seed;touch RAN": {}, "--seed": {}, "": {}}})
    assert fields_of(found, "/v1/completions") == {"seed"}


@pytest.mark.parametrize("odd", [None, 7, [], {"$ref": 7}, {"$ref": "#/paths"}, {"properties": []}, {"anyOf": 3}])
def test_an_odd_schema_has_no_fields(odd: Any) -> None:
    assert fields_of(schema(odd), "/v1/completions") == frozenset()
