"""Value types that several keys of the inventory share, with their JSON Schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StrictInt, WithJsonSchema

from vllm_cluster.inventory import grammar

LocalPath = Annotated[Path, AfterValidator(grammar.local_path)]
User = Annotated[str, AfterValidator(grammar.ssh_user)]
Jump = Annotated[str, AfterValidator(grammar.ssh_jump)]
SshPort = Annotated[StrictInt, Field(ge=1, le=65535)]
Port = Annotated[StrictInt, Field(ge=1024, le=65535)]
ContainerUser = Annotated[
    str,
    BeforeValidator(grammar.container_user),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": grammar.USER_PATTERN}]}),
]
Gpus = Annotated[
    int | tuple[int | str, ...],
    PlainValidator(grammar.gpus),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": grammar.MAX_GPUS},
                {
                    "type": "array",
                    "items": {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^GPU-"}]},
                    "minItems": 1,
                    "maxItems": grammar.MAX_GPUS,
                },
            ]
        }
    ),
]
Size = Annotated[
    StrictInt,
    Field(ge=1 << 20, le=1 << 50),
    BeforeValidator(grammar.size),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": grammar.SIZE_PATTERN}]}),
]
