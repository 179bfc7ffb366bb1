"""Text from elsewhere becomes a number, or JSON, only where that cannot end this program.

Python refuses to read more than 4300 digits, by a ValueError: in a flag, a key or an answer that was an internal error.
`number_of` of kernel/text has a limit. A group of an expression has one where no expression of its file takes digits
without end. All else is in a try that takes a ValueError, or here, with what bounds it.

JSON becomes up to twenty times its bytes: what is not this program's own is `bounded` before it is parsed, or counted.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.support.modules import MODULES, PACKAGE

READS = {"int", "float", "json.loads", "json.load"}
CATCHES = {"ValueError", "Exception", "BaseException"}
# What runs on a host gets what this program made, and ends alone where that is wrong.
ON_HOSTS = {"on_host", "on_head", "node"}
ENDLESS = re.compile(r"(?:\\d|\[[0-9]-9\])(?:[+*]|\{\d*,\})")
# By reason: the files, and how many reads of each have it.
BOUNDED = {
    "a number already, or true or false": {
        "features/explain/bundle.py": 1,
        "features/pull/follow.py": 1,
        "kernel/docker/streams.py": 1,
        "kernel/models/listed.py": 1,
        "kernel/plan/node_status.py": 1,
        "kernel/transport/fabric/keepalive.py": 1,
        "serving/cluster/up.py": 2,
        "serving/status/load.py": 2,
        "serving/status/status.py": 2,
        "serving/translate/node.py": 1,
    },
    "an expression or a type bounds its digits": {
        "features/logs/rank_names.py": 3,
        "features/slurm/jobs.py": 3,
        "features/slurm/sbatch.py": 2,
        "kernel/checks/docker.py": 2,
        "kernel/checks/network.py": 1,
        "kernel/docker/client.py": 2,
        "kernel/facts/nvidia_smi.py": 3,
        "kernel/facts/parse.py": 2,
        "kernel/images/contents.py": 1,
        "kernel/images/for_docker.py": 6,
        "kernel/images/wheels.py": 1,
        "kernel/inventory/grammar.py": 2,
        "kernel/known_secrets.py": 1,
        "kernel/plan/gpus.py": 1,
        "kernel/plan/spec.py": 2,
        "kernel/terminal/values.py": 2,
        "serving/fit/request.py": 1,
        "serving/serve/serve.py": 1,
    },
    "a part of a line that is as long as that": {
        "features/logs/lines.py": 2,
        "kernel/docker/log_frames.py": 3,
        "kernel/explain/log_line.py": 6,
    },
    "its digits are counted beside it": {
        "kernel/docker/archive.py": 1,
        "kernel/spread/spread_wire.py": 2,
        "kernel/text.py": 1,
        "wire/reading.py": 2,
    },
    "digits and a point, of which a float takes any number": {"kernel/plan/adapters.py": 1},
    "its caller takes a ValueError": {"kernel/checks/links.py": 2},
    "an order of this program": {"kernel/spread/carry_image.py": 1, "kernel/spread/feed.py": 1},
    "ssh has read it as a number": {"kernel/transport/ssh_config.py": 2},
}
# By reason: the files, and how many texts of each are parsed without `bounded`.
UNBOUNDED = {
    "an order of this program to its own on a host: a message, an argument or a variable": {
        "features/batch/on_host/batch_job.py": 1,
        "features/bench/on_host/bench.py": 2,
        "features/check/on_host/allreduce.py": 1,
        "features/logs/on_host/log_tail.py": 1,
        "features/pull/on_host/hub_listing.py": 1,
        "kernel/hosts/on_host/bounded.py": 1,
        "kernel/images/for_docker.py": 1,
        "kernel/images/on_host/pack_image.py": 1,
        "kernel/links/on_host/link_test.py": 2,
        "kernel/models/on_host/model_cache.py": 2,
        "kernel/models/on_host/remove_model.py": 1,
        "kernel/node/on_host/append_line.py": 1,
        "kernel/spread/carry_image.py": 1,
        "kernel/spread/feed.py": 1,
        "serving/node/process.py": 1,
        "serving/node/supervisor.py": 2,
    },
    "a file or a copy that this program wrote on the same host": {
        "features/batch/on_head/client.py": 1,
        "features/batch/on_head/runner.py": 1,
        "features/batch/on_host/batch_job.py": 1,
        "kernel/spread/feed.py": 1,
        "serving/node/supervisor.py": 1,
        "serving/status/on_host/sample.py": 1,
    },
    "of an order that was read with its bounds": {"serving/node/kept_order.py": 2, "serving/node/replicas.py": 1},
    "one text, or one number": {
        "features/batch/on_head/large.py": 2,
        "kernel/explain/prefix.py": 1,
        "serving/node/front_body.py": 1,
    },
    "its values are counted beside it": {
        "features/batch/on_head/client.py": 1,
        "kernel/docker/client.py": 1,
        "kernel/facts/values.py": 1,
        "kernel/images/for_docker.py": 1,
    },
    "bounded by who calls it": {"wire/reading.py": 1},
    "a batch of a person, of 16 MiB a line, on their own head": {
        "features/batch/on_head/large.py": 2,
        "features/batch/on_head/lines.py": 1,
    },
    "a row for each request of the person's own measurement, which vLLM wrote": {"features/bench/on_host/bench.py": 1},
    "of the Docker of the host itself, 4 MiB at most": {"kernel/images/on_host/split_image.py": 1},
}


def reads(node: ast.AST, *, endless: bool) -> Iterator[str]:
    """Each read of text that a ValueError may leave, as it is written."""
    inside = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Try) and any(CATCHES & _names(one.type) for one in node.handlers):
        inside = [*node.handlers, *node.orelse, *node.finalbody]
    elif isinstance(node, ast.With) and any(
        "suppress" in ast.unparse(one) and CATCHES & _names(one.context_expr) for one in node.items
    ):
        return
    elif isinstance(node, ast.Call) and node.args:
        first, name = node.args[0], _name(node.func)
        number = isinstance(first, ast.Constant | ast.BinOp | ast.Compare)
        if (name in READS and not number and (endless or not _is_group(first))) or (
            name == "map" and _name(first) in READS
        ):
            yield ast.unparse(node)
    for one in inside:
        yield from reads(one, endless=endless)


def _names(node: ast.AST | None) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} if node else CATCHES


def _name(node: ast.expr) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _is_group(node: ast.expr) -> bool:
    """Whether it is a group of a match: found[1], found["year"], found[1] or 0."""
    node = node.values[0] if isinstance(node, ast.BoolOp) else node
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and isinstance(node.slice, ast.Constant)


def found_in(text: str) -> list[str]:
    """The reads of a module."""
    return [*reads(ast.parse(text), endless=bool(ENDLESS.search(text)))]


# fault: features/slurm/action.py: Workload(number_of(last_value( → Workload(int(last_value(
def test_no_text_of_any_length_becomes_a_number() -> None:
    """A new one gets `number_of`, a limit in its expression, or a try with what to do."""
    listed = Counter({file: number for files in BOUNDED.values() for file, number in files.items()})
    own = [path for path in MODULES if path.is_relative_to(PACKAGE) and not ON_HOSTS & {*path.parts}]
    found = {str(path.relative_to(PACKAGE)): found_in(path.read_text()) for path in own}
    wrong = {file: lines for file, lines in found.items() if len(lines) != listed[file]}
    assert wrong == {}
    assert {*listed} <= {*found}


def unbounded(text: str) -> list[str]:
    """The calls of a module that parse JSON which is not `bounded`."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module == "json":
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Call) and _name(node.func) in ("json.loads", "json.load"):
            given = node.args[0] if node.args else node
            found += [] if isinstance(given, ast.Call) and _name(given.func) == "bounded" else [ast.unparse(node)]
    return found


# fault: kernel/docker/calls.py: json.loads(bounded(line, MAX_LINE + PIECE, LINE_VALUES)) → json.loads(line)
# fault: serving/fit/hub/model.py: json.loads(bounded(data, limit)) if → json.loads(data) if
# fault: serving/api/client.py: error_message(json.loads(bounded(raw))) → error_message(json.loads(raw))
def test_json_of_others_is_bounded_before_it_is_parsed() -> None:
    """A new one goes through `bounded`, `read` or `document` of wire/reading; what is our own has its reason here."""
    listed = Counter[str]()
    for files in UNBOUNDED.values():
        listed.update(files)
    found = {str(path.relative_to(PACKAGE)): unbounded(path.read_text()) for path in MODULES if PACKAGE in path.parents}
    assert {file: lines for file, lines in found.items() if len(lines) != listed[file]} == {}
    assert {*listed} <= {*found}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("json.loads(word)", 1),
        ("json.load(file)", 1),
        ("json.loads(bounded(word), parse_constant=no)", 0),
        ("json.loads(len(bounded(word)))", 1),
        ("json.loads(s=word)", 1),
        ("from json import loads", 1),
    ],
)
def test_a_parse_without_a_bound_is_found(text: str, number: int) -> None:
    assert len(unbounded(text)) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("int(word)", 1),
        ("list(map(int, words))", 1),
        ("json.loads(word)", 1),
        ("found = re.match(r'(\\d+)', word)\nint(found[1])", 1),
        ("found = re.match(r'(\\d{1,9})', word)\nint(found[1])", 0),
        ("int(2 * number)", 0),
        ("try: int(word)\nexcept ValueError: pass", 0),
        ("try: int(word)\nexcept json.JSONDecodeError: pass", 1),
        ("try: pass\nexcept ValueError: int(word)", 1),
        ("with suppress(OSError, ValueError): int(word)", 0),
    ],
)
def test_a_read_is_found(text: str, number: int) -> None:
    assert len(found_in(text)) == number
