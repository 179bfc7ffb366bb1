"""The JSON schema of every `--json` document: `make generate` writes them to docs/reference/json/.

A schema lists every key and allows no other, so that the review of a change shows each key that it changes for
programs. Parts that are fields of a type are taken from the type; the tests hold real output against the files.
"""

from __future__ import annotations

import json
from typing import Any, get_args

from jsonschema import Draft202012Validator
from pydantic import TypeAdapter

from tests.support.json_schemas import DOCUMENTS
from vllm_cluster.features.batch.jobs import BatchOnHead
from vllm_cluster.features.batch.on_head.files import BatchResult
from vllm_cluster.features.bench.measured import BenchRun, ComparedFigure, HostHardware, Point
from vllm_cluster.features.check import measure as allreduce
from vllm_cluster.features.images.use import ClusterImage
from vllm_cluster.features.pull.models import RunningPull
from vllm_cluster.features.slurm.jobs import JobEnd, JobReady
from vllm_cluster.kernel.checks.finding import Finding
from vllm_cluster.kernel.checks.registry import NotChecked
from vllm_cluster.kernel.explain.diagnosis import BenignMatch
from vllm_cluster.kernel.explain.evidence import LogPosition, Raised
from vllm_cluster.kernel.facts.host_facts import OF_THIS_MACHINE, HostFacts
from vllm_cluster.kernel.models.listed import CachedModel
from vllm_cluster.kernel.node.history import AuditEntry
from vllm_cluster.kernel.plan import plan
from vllm_cluster.kernel.plan.history import Entry
from vllm_cluster.serving.api.answer import Answer, TokenLogprob
from vllm_cluster.serving.fit.layouts import GpuPool, Layout
from vllm_cluster.serving.status.counters import ModelLoad
from vllm_cluster.serving.status.load import HostLoad
from vllm_cluster.serving.status.status import HostStatus
from vllm_cluster.serving.translate.options import TranslatedWord
from vllm_cluster.wire.status import FailedRequest, ServeStatus

Schema = dict[str, Any]
TEXT, NUMBER, COUNT, YES = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"type": "boolean"}
VERSION = {"const": 1}
OPERATIONS = get_args(plan.Operation)


def rows(item: Schema) -> Schema:
    """A list."""
    return {"type": "array", "items": item}


def by_name(value: Schema) -> Schema:
    """An object with keys that differ: hosts, files."""
    return {"type": "object", "additionalProperties": value}


def maybe(value: Schema) -> Schema:
    """A value, or null where there is none."""
    return {"anyOf": [value, {"type": "null"}]}


def keys(required: Schema, optional: Schema | None = None) -> Schema:
    """An object with these keys and no other."""
    properties = {**required, **(optional or {})}
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def fields(kind: Any, *, without: tuple[str, ...] = (), **more: Schema) -> Schema:
    """What `asdict` makes of a type, with some keys more or less; the types in it are written out."""
    schema = TypeAdapter(kind).json_schema(mode="serialization")
    schema = _written_out(schema, schema.get("$defs", {}))
    properties = {key: value for key, value in schema["properties"].items() if key not in without}
    return keys({**properties, **more})


def _written_out(value: Any, types: Schema) -> Any:
    """Without references, titles and defaults, and with every key required: `asdict` leaves none out."""
    if isinstance(value, list):
        return [_written_out(entry, types) for entry in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return _written_out(types[value["$ref"].rsplit("/", 1)[1]], types)
    if isinstance(value.get("properties"), dict):
        return keys({key: _written_out(entry, types) for key, entry in value["properties"].items()})
    dropped = ("title", "default", "description", "$defs")
    return {key: _written_out(entry, types) for key, entry in value.items() if key not in dropped}


def schemas() -> dict[str, Schema]:
    """The schemas by name."""
    return {
        "plan": keys({"v": VERSION, **_plan()["properties"], "stops": maybe(TEXT)}),
        "status": keys(_status()),
        "watch": keys(
            {
                **_status(),
                "time": NUMBER,
                "loads": by_name(fields(HostLoad)),
                "model": maybe(fields(ModelLoad)),
                "replica_loads": by_name(fields(ModelLoad)),
                "metrics_error": TEXT,
            }
        ),
        "check": keys(
            {
                "v": VERSION,
                "ok": YES,
                "findings": rows(fields(Finding, why=TEXT, failures=rows(TEXT))),
                "not_checked": rows(fields(NotChecked)),
                "hosts": rows(TEXT),
                "seconds": NUMBER,
                "allreduce": maybe(fields(allreduce.AllReduceReport, without=("findings", "words"))),
            }
        ),
        "facts": keys({"v": VERSION, "hosts": by_name(fields(HostFacts, without=OF_THIS_MACHINE))}),
        "models": keys(
            {
                "v": VERSION,
                "hosts": by_name(rows(fields(CachedModel))),
                "pulls": by_name(fields(RunningPull)),
                "unreachable": by_name(TEXT),
            }
        ),
        "image": keys({"v": VERSION, "hosts": by_name(rows(fields(ClusterImage))), "unreachable": by_name(TEXT)}),
        "fit": _fit(),
        "explain": _explain(),
        "failure": _failure(),
        "bundle": keys({"v": VERSION, "file": TEXT, "packed": by_name(COUNT), "unreachable": by_name(TEXT)}),
        "history": keys({"v": VERSION, "cluster": TEXT, "entries": rows(fields(Entry))}),
        "complete": _answer(),
        "chat": _answer(),
        "endpoint": keys(
            {
                "v": VERSION,
                **dict.fromkeys(("base_url", "model"), TEXT),
                "key": {**TEXT, "description": "The command that prints the key, which is in no document."},
                "models": rows(TEXT),
                "tunnel": maybe(keys({"pid": COUNT, "port": COUNT})),
            }
        ),
        "key": keys({"v": VERSION, "key": TEXT}),
        "batch": keys(
            {
                "v": VERSION,
                "host": TEXT,
                "batches": rows(fields(BatchOnHead)),
            }
        ),
        "slurm": {"anyOf": [keys({"v": VERSION, name: TEXT}) for name in ("script", "job")]},
        "slurm-status": keys(
            {
                **{"v": VERSION, "attempts": COUNT, "ready": maybe(fields(JobReady)), "ends": rows(fields(JobEnd))},
                **dict.fromkeys(("job", "phase", "reason", "folder"), TEXT),
            }
        ),
        "slurm-logs": keys({"v": VERSION, "start": COUNT, "rank": COUNT, "lines": rows(TEXT)}),
        "slurm-endpoint": keys({"v": VERSION, **dict.fromkeys(("base_url", "model", "key"), TEXT)}),
        "slurm-explain": keys(
            {
                **{"v": VERSION, "start": maybe(COUNT), "explained": maybe(_explain())},
                **dict.fromkeys(("job", "phase", "reason"), TEXT),
            }
        ),
        "bench": {"anyOf": [_bench(), _compared()]},
        "events": {"anyOf": [*_events(), _error(), _endpoint()]},
    }


def _status() -> Schema:
    return {
        "v": VERSION,
        "cluster": TEXT,
        "id": maybe(TEXT),
        "up": YES,
        "ready": YES,
        "hosts": rows(fields(HostStatus)),
        "serving": maybe(fields(ServeStatus)),
        "replicas": rows(fields(ServeStatus)),
        "served": maybe(YES),
        "now": maybe(NUMBER),
        "changed": maybe(fields(AuditEntry)),
        "unreachable": rows(TEXT),
    }


def _plan() -> Schema:
    operations = []
    for kind in OPERATIONS:
        more: Schema = {"operation": {"const": kind.verb}, "message": TEXT}
        operations.append(fields(kind, **more))
    barriers = [fields(kind, type={"const": kind.type}, message=TEXT) for kind in get_args(plan.Barrier)]
    stage = keys({"title": TEXT, "operations": rows({"anyOf": operations}), "barriers": rows({"anyOf": barriers})})
    return keys(
        {
            "cluster": TEXT,
            "id": TEXT,
            "empty": YES,
            "gpus": by_name(COUNT),
            "stages": rows(stage),
            "lost": by_name(TEXT),
        }
    )


def _fit() -> Schema:
    weights = keys({"stored_bytes": by_name(COUNT), "loaded_bytes": COUNT, "unused_bytes": COUNT, "estimated": YES})
    kv_cache = keys({"dtype": TEXT, "bytes_per_token": maybe(COUNT), "bytes_per_request": maybe(COUNT)})
    layout = fields(Layout)
    return keys(
        {
            "v": VERSION,
            "model": TEXT,
            "architecture": maybe(TEXT),
            "supports_pp": maybe(YES),
            "layers": maybe(COUNT),
            "weights": weights,
            "context": maybe(COUNT),
            "concurrency": COUNT,
            "kv_cache": kv_cache,
            "rule_of_thumb_bytes": NUMBER,
            "gpus": maybe(fields(GpuPool)),
            "min_gpus": maybe(COUNT),
            "layouts": rows(layout),
            "fits": maybe(YES),
            "recommended": maybe(layout),
            "suggestions": rows(TEXT),
            "notes": rows(TEXT),
        }
    )


def _about() -> Schema:
    return {
        "id": TEXT,
        "kind": {"enum": ["cause", "symptom"]},
        "seen": TEXT,
        **dict.fromkeys(("cause", "meaning", "fix", "look", "found_by"), maybe(TEXT)),
    }


def _failure() -> Schema:
    more = {**dict.fromkeys(("checks", "signs"), rows(TEXT)), **dict.fromkeys(("prevented", "silent"), maybe(TEXT))}
    return keys({"v": VERSION, "name": TEXT, "why": maybe(TEXT), "failures": rows(keys({**_about(), **more}))})


def _explain() -> Schema:
    place = fields(LogPosition)
    finding = keys({**_about(), "count": COUNT, "lines": rows(place), "more": rows(TEXT)})
    return keys(
        {
            "v": VERSION,
            "result": {
                "enum": ["explained", "symptom", "exception", "unknown", "healed", "healthy", "unfinished", "nothing"]
            },
            "request": maybe(fields(FailedRequest)),
            "restarts": rows(fields(Entry)),
            "cause": maybe(finding),
            "symptom": maybe(finding),
            **dict.fromkeys(("other_causes", "notes", "recovered"), rows(finding)),
            **dict.fromkeys(("consequences", "error_lines", "unknown_lines"), rows(place)),
            "last_line": maybe(place),
            "ranks": rows(TEXT),
            "exception": maybe(fields(Raised)),
            "harmless": rows(fields(BenignMatch)),
            "previous_attempts": by_name(COUNT),
            "read": keys(dict.fromkeys(("logs", "lines", "bytes"), COUNT)),
            "unreachable": by_name(TEXT),
        }
    )


def _answer() -> Schema:
    token = fields(TokenLogprob)
    return keys(
        {
            "v": VERSION,
            "model": TEXT,
            "answers": rows(fields(Answer)),
            "prompt_logprobs": rows(token),
            **dict.fromkeys(("prompt_tokens", "completion_tokens"), maybe(COUNT)),
            "seconds": NUMBER,
            **dict.fromkeys(("seconds_to_first", "tokens_per_second"), maybe(NUMBER)),
        }
    )


def _bench() -> Schema:
    run = fields(BenchRun)
    return keys(
        {
            "v": VERSION,
            "complete": YES,
            **dict.fromkeys(("started", "preset", "cluster", "model", "name", "image"), TEXT),
            "flags": rows(TEXT),
            "versions": keys(dict.fromkeys(("vcluster", "vllm"), TEXT)),
            "hosts": rows(fields(HostHardware)),
            "points": rows(keys({"point": fields(Point), "runs": rows(run)})),
        }
    )


def _compared() -> Schema:
    return keys({"v": VERSION, "before": TEXT, "after": TEXT, "rows": rows(fields(ComparedFigure))})


def _events() -> list[Schema]:
    """One schema for each kind and each form of its data."""
    pair = {"type": "array", "items": NUMBER, "minItems": 2, "maxItems": 2}
    operation: Schema = {"operation": TEXT}
    passed = {"type": "array", "prefixItems": [TEXT, NUMBER], "minItems": 2, "maxItems": 2}
    start: Schema = {"phase": TEXT, "detail": TEXT, "progress": maybe(pair), "attempt": COUNT}
    start |= {"phases": rows(passed), "last_line": TEXT, "replica": COUNT}
    batch: Schema = {**dict.fromkeys(("total", "answered", "failed", "concurrency"), COUNT)}
    batch |= {"tokens_per_second": NUMBER, "seconds_left": maybe(NUMBER)}
    moved: Schema = dict.fromkeys(("bytes", "total_bytes", "bytes_per_second"), COUNT)
    part: Schema = {**moved, "phase": TEXT, "error": TEXT}
    # The kind, the verbs that write it where these are some alone, and the keys.
    forms: list[tuple[str, str, Schema]] = [
        *((kind, "pull, serve", part) for kind in ("progress", "done", "failed")),
        ("progress", "pull, serve", moved),
        ("progress", "pull of a folder, pull --verify", {"bytes": COUNT, "total_bytes": COUNT}),
        ("note", "pull, serve", {"commit": TEXT, "size_bytes": COUNT}),
        ("warning", "pull --verify", {"code": TEXT, "path": TEXT}),
        ("warning", "pull of a folder", {"code": TEXT, "paths": rows(TEXT)}),
        ("warning", "image push", {"code": TEXT, "id": TEXT}),
        *((kind, "", {}) for kind in ("phase", "note", "failed", "warning", "progress", "start", "result")),
        ("plan", "up", {"plan": _plan()}),
        ("start", "up", operation),
        ("start", "serve, rollback", {"phase": TEXT, "seconds": NUMBER}),
        ("start", "image push", {"layers": COUNT, "bytes": COUNT}),
        ("done", "", {}),
        ("done", "up", operation),
        ("done", "down", {"removed": COUNT}),
        ("warning", "", {"code": TEXT}),
        ("warning", "serve, rollback", {"rollback_to": TEXT}),
        ("note", "", {"code": TEXT}),
        ("note", "serve --from", {"code": TEXT, "command": TEXT, "words": rows(fields(TranslatedWord))}),
        ("progress", "up", {"gpus": pair}),
        ("progress", "serve, rollback, status --wait", start),
        ("progress", "explain", {"bytes": COUNT}),
        ("progress", "check --deep", {"bytes": COUNT, "seconds": NUMBER, "bus_gb_per_s": NUMBER}),
        ("progress", "batch", batch),
        ("progress", "check", {"links": COUNT}),
        ("progress", "check", {"links": COUNT, "seconds": NUMBER}),
        ("result", "up", {"gpus": COUNT, "hosts": COUNT, "operations": COUNT, "round_trips": by_name(COUNT)}),
        ("result", "pull", {"model": TEXT, "changed": YES}),
        ("result", "stop", {"stopped": YES}),
        ("result", "slurm stop", {"job": TEXT}),
        ("result", "endpoint --close", {"closed": YES}),
        ("result", "down, image prune, sandbox down", {"removed": {"type": ["integer", "boolean"]}}),
        ("result", "image push", {"image": TEXT, "id": TEXT, "source": TEXT, "sent": rows(TEXT)}),
        ("result", "models rm", {"model": TEXT, "hosts": rows(TEXT), "removed_bytes": COUNT}),
        ("result", "endpoint --tunnel, dashboard", {"url": TEXT, "port": COUNT}),
        ("result", "sandbox up", {"inventory": TEXT}),
        ("result", "status --wait", {"seconds": NUMBER}),
        ("result", "dashboard --prometheus", {"folder": TEXT, "target": TEXT}),
        ("result", "batch", fields(BatchResult)["properties"]),
        ("log", "", {"source": TEXT, "rank": maybe(COUNT), "replica": maybe(COUNT)}),
    ]
    base: Schema = {"v": VERSION, "time": NUMBER, "message": TEXT}
    return [
        {**keys({**base, "event": {"const": kind}, **data}, {"host": TEXT}), **({"description": who} if who else {})}
        for kind, who, data in forms
    ]


def _error() -> Schema:
    words: Schema = {"code": TEXT, "message": TEXT, "fix": rows(TEXT), "exit_code": COUNT}
    done, failed = keys({"state": {"const": "ok"}}), keys({"state": {"const": "failed"}, **words}, {"host": TEXT})
    more = {"host": TEXT, "hosts": by_name({"anyOf": [done, failed]})}
    return keys({"v": VERSION, "time": NUMBER, "event": {"const": "error"}, **words}, more)


def _endpoint() -> Schema:
    texts = ("model", "url", "head", "curl", "key")
    return keys(
        {"v": VERSION, "time": NUMBER, "event": {"const": "endpoint"}, **dict.fromkeys(texts, TEXT), "exposed": YES}
    )


def texts() -> dict[str, str]:
    """The content of each file."""
    titles = {name: command for command, name in DOCUMENTS.items()}
    dialect = {"$schema": Draft202012Validator.META_SCHEMA["$id"]}
    return {
        f"{name}.schema.json": json.dumps(
            {**dialect, "title": f"vcluster {titles.get(name, name)} --json", **schema}, indent=1
        )
        + "\n"
        for name, schema in schemas().items()
    }
