"""Every event that the code writes has a form in the schema, so that programs can rely on its keys."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.modules import MODULES, nodes
from tests.support.paths import ROOT
from tools.json_schemas import schemas

OF_ALL = {"v", "time", "event", "message"}


def written() -> Iterator[tuple[str, frozenset[str], str]]:
    """The kind, the keys and the place of each event; one whose keys are not written out there is left to others."""
    for path in MODULES:
        for node in nodes(path):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Event"):
                continue
            named = {one.arg: one.value for one in node.keywords}
            data = node.args[3] if len(node.args) > 3 else named.get("data", ast.Dict(keys=[], values=[]))
            kind = node.args[0]
            if isinstance(kind, ast.Constant) and isinstance(data, ast.Dict):
                keys = [one.value if isinstance(one, ast.Constant) else None for one in data.keys]
                if None not in keys:
                    yield str(kind.value), frozenset(map(str, keys)), f"{path.relative_to(ROOT)}:{node.lineno}"


def test_every_event_of_the_code_has_a_form() -> None:
    forms = {
        (form["properties"]["event"]["const"], frozenset(form["required"]) - OF_ALL)
        for form in schemas()["events"]["anyOf"]
    }
    found = list(written())
    assert len(found) > 60
    assert [one for one in found if one[:2] not in forms] == []
