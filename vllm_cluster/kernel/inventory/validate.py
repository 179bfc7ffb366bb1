"""A document against the model: pydantic's findings in plain words, each at its line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from vllm_cluster.kernel.inventory.document import Document
from vllm_cluster.kernel.inventory.model import SECTIONS, Inventory, Section
from vllm_cluster.kernel.inventory.problems import MAX_PROBLEMS, Loc, key_of
from vllm_cluster.kernel.inventory.words import nearest, quote_value

# Keys that people bring from elsewhere, and the keys of this file for them.
_SSH_USER = "who logs in is set under ssh: `ssh: {user: ubuntu}`"
_INSTEAD = {
    ("heads",): "a cluster has one head: `head: NAME`",
    ("hosts", "*", "head"): "the head is set once, at the top of the file: `head: NAME`",
    ("hosts", "*", "role"): "the head is set once, at the top of the file: `head: NAME`; all others are workers",
    **dict.fromkeys((("ssh_user",), ("hosts", "*", "ssh_user"), ("hosts", "*", "user")), _SSH_USER),
    ("hosts", "*", "name"): "a host's name is its key under hosts",
}
_PASSWORDS = {"passwd", "password", "passphrase", "ssh_password", "ansible_password", "sudo_password"}
_SHAPES = {
    "dict_type": "must be a mapping (`key: value` lines below it)",
    "model_type": "must be a mapping (`key: value` lines below it)",
    "tuple_type": "must be a list (`- item` lines below it)",
    "string_type": "must be text",
    "path_type": "must be the path of a file",
    "int_type": "must be an integer",
    "bool_type": "must be true or false",
}
_FOR_PLACE = {
    ("head",): "must be the name of one host: a cluster has one head",
    ("hosts",): "must be a mapping: each host's name, and its keys below it",
    ("hosts", "*"): "must be a mapping: the host's `address: …` and other keys below it",
}
# Words of a file that are compared with the keys that are known.
_MAX_COMPARED = 5 * MAX_PROBLEMS
# Of what has another shape than people write: lines to copy.
_HOSTS = ("hosts:", "  gpu1: {address: 10.0.0.11}", "  gpu2: {address: 10.0.0.12}")
_EXAMPLES = {
    ("hosts",): _HOSTS,
    ("hosts", "*"): _HOSTS,
    ("hosts", "*", "ssh"): ("    ssh:", "      user: ubuntu", "      port: 2222"),
    ("hosts", "*", "hcas"): ("    hcas:", "      - mlx5_0", "      - mlx5_1"),
    ("ssh",): ("ssh:", "  user: ubuntu", "  identity: ~/.ssh/id_ed25519"),
    ("ports",): ("ports:", "  api: 8000", "  gcs: 6379"),
    ("environment",): ("environment:", "  NCCL_DEBUG: INFO", '  HF_HUB_OFFLINE: "1"'),
    ("secrets",): ("secrets:", "  WANDB_API_KEY: env:WANDB_API_KEY", "  OTHER: file:~/.other"),
    ("volumes",): ("volumes:", "  - /srv/models:/models:ro", "  - /srv/data:/data"),
}


def validate(document: Document) -> Inventory | None:
    """The inventory of a document; None when there are problems, which the document then holds."""
    if document.data is None and not document.problems:
        document.add_problem((), "the file is empty; `vcluster init` writes an inventory")
    if document.data is None:
        return None
    known = {problem.loc for problem in document.problems}
    for loc, text in _hidden_keys(document.data):
        document.add_problem(loc, text)
    try:
        inventory = Inventory.model_validate(document.data)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
        # In the order in which they are shown: an alias repeats a thousand keys for each host, and of the later ones
        # only the number is.
        details.sort(key=lambda detail: document.line(_loc(detail)))
        meant = _Meant()
        # What could not be read as YAML would only be blamed again as a value.
        known |= _misspelt(details, meant)
        new = [(loc, detail) for detail in details if (loc := _loc(detail)) not in known]
        for loc, detail in new[:MAX_PROBLEMS]:
            document.add_problem(loc, _text(detail, loc, document.data, meant), example=_example(detail, loc))
        for loc, detail in new[MAX_PROBLEMS:]:
            document.add_problem(loc, detail["msg"])
        return None
    return None if document.problems else inventory


class _Meant(dict[tuple[tuple[str, ...], str], str | None]):
    """The known key that one of a file was probably meant to be, by its section; each is looked for once."""

    def at(self, loc: Loc) -> str | None:
        place, word = _pattern(loc)[:-1], str(loc[-1])
        if (place, word) not in self and len(self) < _MAX_COMPARED:
            section = SECTIONS.get(place)
            self[place, word] = nearest(word, section.written_keys()) if section else None
        return self.get((place, word))


def _misspelt(details: Iterable[ErrorDetails], known: _Meant) -> set[Loc]:
    """Keys that are missing only because their name is misspelt, which is reported already."""
    unknown = [detail["loc"] for detail in details if detail["type"] == "extra_forbidden"]
    meant = {(*loc[:-1], known.at(loc) or "") for loc in unknown}
    return {detail["loc"] for detail in details if detail["type"] == "missing" and detail["loc"] in meant}


def _loc(detail: ErrorDetails) -> Loc:
    loc = detail["loc"]
    # pydantic's sign for "the key itself is wrong"; a file may also hold a key of that name.
    of_key = detail["type"] == "value_error" and len(loc) > 2 and loc[-1] == "[key]"
    return loc[:-1] if of_key else loc


def _text(detail: ErrorDetails, loc: Loc, data: object, meant: _Meant) -> str:
    kind, context = detail["type"], detail.get("ctx", {})
    if kind == "missing" and loc == ("version",):
        return "is missing: write `version: 1`"
    if kind == "missing":
        return f"is missing: {_description(loc)}"
    if kind == "extra_forbidden":
        return _unknown(loc, meant)
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return _choice(loc, str(context["expected"]), _value(data, loc))
    if kind in {"greater_than_equal", "less_than_equal"}:
        bound = "at least" if kind == "greater_than_equal" else "at most"
        return f"must be {bound} {context['ge' if bound == 'at least' else 'le']}"
    shape = _FOR_PLACE.get(_pattern(loc)) or _SHAPES.get(kind)
    if shape is None:
        return detail["msg"]
    return f"{shape}, got {_kind(_value(data, loc), shape)}"


def _example(detail: ErrorDetails, loc: Loc) -> tuple[str, ...]:
    """Lines with the right shape, where a value has another one or a section is missing."""
    shaped = detail["type"] in _SHAPES or detail["type"] == "missing"
    return _EXAMPLES.get(_pattern(loc), ()) if shaped else ()


def _kind(value: object, wanted: str) -> str:
    if value is None:
        return "nothing: write a value or remove the line"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        return "text"
    kind = "true or false" if isinstance(value, bool) else "a number"
    # Not quoted back: numbers under environment may be secrets too.
    return f'{kind}: put it in quotes ("…")' if wanted == _SHAPES["string_type"] else kind


def _choice(loc: Loc, expected: str, value: object) -> str:
    if loc == ("version",):
        quoted = f", and a number, not text: write `version: {expected}`" if str(value) == expected else ""
        return f"must be {expected}, the format that this vcluster reads{quoted}"
    words = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    meant = nearest(value, words) if isinstance(value, str) else None
    return f"must be {' or '.join(words)}, not {quote_value(value)}" + (f"; did you mean {meant}?" if meant else "")


def _unknown(loc: Loc, known: _Meant) -> str:
    pattern, word = _pattern(loc), str(loc[-1])
    if pattern in _INSTEAD:
        return _INSTEAD[pattern]
    if word.lower() in _PASSWORDS:
        return "passwords are not allowed: use a key (`ssh: {identity: FILE}`) or an agent"
    section = SECTIONS.get(pattern[:-1])
    if section is None:
        return "unknown key"
    if meant := known.at(loc):
        return f"unknown key, did you mean {meant}?"
    elsewhere = [place for place, other in SECTIONS.items() if word in other.written_keys()]
    if elsewhere:
        # A host's own section is nearer to a host's key than the cluster's.
        place = max(elsewhere, key=lambda place: place[:1] == pattern[:1])
        return f"unknown key here; it belongs under {_named(place)}"
    return f"unknown key; known here: {', '.join(section.written_keys())}"


def _named(place: tuple[str, ...]) -> str:
    return key_of(tuple("NAME" if part == "*" else part for part in place)) or "the top of the file"


def _pattern(loc: Loc) -> tuple[str, ...]:
    """The place with `*` for a host's name, as the tables have it."""
    parts = tuple(str(part) for part in loc)
    return (parts[0], "*", *parts[2:]) if parts[:1] == ("hosts",) and len(parts) > 1 else parts


def _description(loc: Loc) -> str:
    section = SECTIONS.get(_pattern(loc)[:-1])
    field = section.model_fields.get(str(loc[-1])) if section else None
    return (field.description if field else None) or "required"


def _value(data: object, loc: Loc) -> object:
    for part in loc:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            data = data[part]
        else:
            return None
    return data


def _hidden_keys(data: object) -> Iterator[tuple[Loc, str]]:
    """Fields of the model that the loader fills, written in the file all the same."""
    for loc, section in _sections(data):
        here = _value(data, loc)
        for key, field in section.model_fields.items():
            if field.exclude and isinstance(here, Mapping) and key in here:
                yield (*loc, key), _unknown((*loc, key), _Meant())


def _sections(data: object) -> Iterator[tuple[Loc, Section]]:
    hosts = _value(data, ("hosts",))
    for place, section in SECTIONS.items():
        if "*" not in place:
            yield place, section
        elif isinstance(hosts, Mapping):
            for name in hosts:
                yield tuple(name if part == "*" else part for part in place), section
