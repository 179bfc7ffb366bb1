"""The inventory as frozen data; each key is described once, here, for the schema, the docs and `init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    StrictBool,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue, SkipJsonSchema
from pydantic_core import CoreSchema

from vllm_cluster.kernel.inventory import container, grammar
from vllm_cluster.kernel.inventory.grammar import ContainerUser, Gpus, Jump, LocalPath, Port, Size, SshPort, User
from vllm_cluster.kernel.versions import RAY, VLLM_IMAGE
from vllm_cluster.wire.backends import BackendName

MAX_HOSTS = 256


class _Section(BaseModel):
    # hide_input_in_errors: pydantic's own text would quote a token that was written in the wrong place.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def written_keys(cls) -> list[str]:
        """The keys that the file may hold, in order."""
        return [key for key, field in cls.model_fields.items() if not field.exclude]


class SshSettings(_Section):
    """SSH settings of all hosts; those of a host override them."""

    config: LocalPath | None = Field(
        None, description="ssh_config file to read instead of your own and the system's.", examples=["./ssh_config"]
    )
    user: User | None = Field(None, description="User on the hosts.", examples=["ubuntu"])
    port: SshPort | None = Field(None, description="Port of sshd.", examples=["22"])
    identity: LocalPath | None = Field(None, description="Private key file.", examples=["~/.ssh/id_ed25519"])
    jump: Jump | None = Field(
        None, description="Jump hosts as ProxyJump writes them, several with commas.", examples=["me@bastion:22"]
    )
    transport: Literal["fabric", "openssh"] = Field(
        "fabric",
        description="fabric speaks SSH itself; openssh runs your ssh, for FIDO keys, certificates and Kerberos.",
        examples=["openssh"],
    )
    host_keys: Literal["strict", "accept-new"] = Field(
        "strict",
        description="strict refuses hosts that known_hosts does not hold; accept-new stores them. "
        "A changed key is always refused.",
        examples=["accept-new"],
    )


class HostSsh(_Section):
    """How one host is reached: text like user@host:port, a mapping, or `local` for this machine."""

    host: Annotated[str, AfterValidator(grammar.ssh_host)] | None = Field(
        None, description="Host name, address or ssh_config alias; `local` is this machine.", examples=["gpu1.lab"]
    )
    user: User | None = Field(None, description="User on this host.", examples=["ubuntu"])
    port: SshPort | None = Field(None, description="Port of this host's sshd.", examples=["2222"])
    identity: LocalPath | None = Field(None, description="Private key file for this host.", examples=["~/.ssh/lab"])
    jump: Jump | None = Field(None, description="Jump hosts for this host.", examples=["me@bastion"])

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return grammar.destination(value) if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        mapping = handler.resolve_ref_schema(handler(core))
        text = {"type": "string", "description": "[user@]host[:port], an ssh_config alias, or local."}
        return {"anyOf": [text, mapping], "description": mapping.get("description", "")}


class Host(_Section):
    """One machine of the cluster."""

    name: SkipJsonSchema[str] = Field("", exclude=True)  # the key that holds it
    line: SkipJsonSchema[int | None] = Field(None, exclude=True)  # its file and line, for later errors about it
    ssh: HostSsh = Field(
        HostSsh(),
        description="How to reach it: [user@]host[:port], an ssh_config alias, `local`, or a mapping. "
        "Without it the host's name is the alias.",
        examples=["ubuntu@gpu1.lab:22"],
    )
    address: Annotated[str, AfterValidator(grammar.address)] = Field(
        "",  # until the host was asked: no action sees it
        description="IP address on the network between the hosts: Ray, vLLM and NCCL meet there; "
        "absent: the host's only private one.",
        examples=["10.0.0.11"],
        json_schema_extra={"anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    )
    gpus: Gpus | None = Field(
        None,
        description="How many GPUs it gives, or which: indices or UUIDs; absent: all that are found.",
        examples=["8"],
    )
    interface: Annotated[str, AfterValidator(grammar.interface_name)] | None = Field(
        None, description="Interface for NCCL and Gloo; absent: the one that holds `address`.", examples=["eth0"]
    )
    hcas: tuple[Annotated[str, AfterValidator(grammar.device)], ...] | None = Field(
        None,
        description="InfiniBand or RoCE devices; absent: the active ones of the highest rate near the GPUs; "
        "[] uses none.",
        examples=["[mlx5_0]"],
    )

    @property
    def gpu_number(self) -> int | None:
        """How many GPUs the inventory declares, by number or by name; None if it does not."""
        return len(self.gpus) if isinstance(self.gpus, tuple) else self.gpus

    @property
    def destination(self) -> str:
        """What ssh is asked for: the given host, else the host's own name."""
        return self.ssh.host or self.name


class Ports(_Section):
    """The ports on the hosts; all differ, and none lies in the workers' range."""

    api: Port = Field(8000, description="The endpoint, on the head.")
    gcs: Port = Field(6379, description="Ray's GCS, on the head.")
    node_manager: Port = Field(6380, description="Ray's node manager.")
    object_manager: Port = Field(6381, description="Ray's object manager.")
    dashboard: Port = Field(8265, description="Ray's dashboard, on the head's loopback.")
    dashboard_agent: Port = Field(6382, description="Ray's dashboard agent, HTTP.")
    runtime_env_agent: Port = Field(6383, description="Ray's runtime environment agent.")
    pull: Port = Field(6384, description="Models and images from host to host, while one is pulled or pushed.")
    nodes: Port = Field(6386, description="The list of the nodes that have joined, on the head.")
    master: Port = Field(29501, description="Where vLLM's processes of several hosts meet without Ray, on the head.")
    data_parallel: Port = Field(29550, description="Where the engines of --dp meet, on the head.")
    replicas: Port = Field(8100, description="First port of replicas that other hosts than the head lead.")
    dashboard_agent_grpc: Port = Field(6385, description="Ray's dashboard agent, gRPC.")
    client_server: Port = Field(10001, description="Ray's client server, on the head.")
    worker_min: Port = Field(10002, description="First port of Ray's workers.")
    worker_max: Port = Field(19999, description="Last port of Ray's workers.")


class SecretRef(_Section):
    """Where a secret is found; never the secret itself."""

    kind: Literal["env", "file", "cmd"]
    value: str

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return grammar.secret(value) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _checked(self) -> SecretRef:
        grammar.secret_value(self.kind, self.value)
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": grammar.SECRET_PATTERN}

    def __str__(self) -> str:
        return f"{self.kind}:{self.value}"

    def __repr__(self) -> str:
        return f"SecretRef({str(self)!r})"


class Volume(_Section):
    """A folder of the host that the container sees too: /on/host:/in/container[:ro|rw]."""

    source: Annotated[str, AfterValidator(container.absolute_folder)]
    target: Annotated[str, AfterValidator(container.mount_target)]
    read_only: StrictBool = False

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return grammar.mounted_folder(value) if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"type": "string", "pattern": grammar.VOLUME_PATTERN}


class Inventory(_Section):
    """The hosts of one cluster and what runs on them."""

    version: Annotated[Literal[1], BeforeValidator(grammar.format_version)] = Field(
        description="Version of this format.", examples=["1"]
    )
    cluster: Annotated[str, AfterValidator(grammar.cluster_name)] = Field(
        description="Name of the cluster; containers are called vcluster-NAME.",
        examples=["lab"],
        json_schema_extra={"pattern": grammar.CLUSTER_PATTERN},
    )
    id: Annotated[str, AfterValidator(grammar.cluster_id)] | None = Field(
        None,
        description="The cluster's id, as `vcluster status` shows it; only needed where its head was lost or replaced.",
        examples=["0123456789abcdef"],
        json_schema_extra={"pattern": grammar.ID_PATTERN},
    )
    head: str | None = Field(
        None, description="Host that runs Ray's head and the endpoint; absent: the first host.", examples=["gpu1"]
    )
    image: Annotated[str, AfterValidator(grammar.image_reference)] = Field(
        description="Image with vLLM for every host.", examples=[VLLM_IMAGE]
    )
    accelerator: Literal["nvidia", "cpu"] = Field(
        "nvidia", description="nvidia takes GPUs; cpu runs vLLM's CPU engine, for rehearsals.", examples=["cpu"]
    )
    model_cache: Annotated[str, AfterValidator(container.mount_target)] = Field(
        description="Folder on the hosts for models: HF_HOME, at the same path in the container.",
        examples=["/data/huggingface"],
        json_schema_extra={"pattern": "^/"},
    )
    shm_size: Size = Field(16 << 30, description="Shared memory of a container.", examples=["16g"])
    environment: dict[
        Annotated[str, AfterValidator(grammar.variable_name), AfterValidator(container.refuse_set_variable)],
        Annotated[str, AfterValidator(grammar.variable_value)],
    ] = Field(
        {},
        description="Environment variables for every container; values in quotes.",
        examples=['{NCCL_DEBUG: "WARN"}'],
        json_schema_extra={"propertyNames": {"pattern": grammar.VARIABLE_PATTERN}},
    )
    volumes: tuple[Volume, ...] = Field(
        (), description="More folders for every container: /on/host:/in/container[:ro].", examples=["[/data:/data:ro]"]
    )
    hf_token: SecretRef | None = Field(
        None,
        description="Where the Hugging Face token is: env:NAME, file:PATH or cmd:COMMAND.",
        examples=["env:HF_TOKEN"],
    )
    api_key: SecretRef | None = Field(
        None,
        description="Where the endpoint's key is, in the same form; absent: one is made.",
        examples=["env:VLLM_API_KEY"],
    )
    secrets: dict[
        Annotated[str, AfterValidator(grammar.variable_name), AfterValidator(container.refuse_secret)], SecretRef
    ] = Field(
        {},
        description="Environment variables of vLLM that are secrets, each with where its value is, in the same form.",
        examples=["{AWS_SECRET_ACCESS_KEY: env:AWS_SECRET_ACCESS_KEY}"],
        json_schema_extra={"propertyNames": {"pattern": grammar.VARIABLE_PATTERN}},
    )
    ports: Ports = Field(Ports(), description="Ports on the hosts.")
    ssh: SshSettings = Field(SshSettings(), description="SSH settings of all hosts; those of a host override them.")
    user: ContainerUser | None = Field(
        None,
        description="UID or UID:GID of the containers, for a cache that root may not write (NFS); absent: root.",
        examples=['"1000:1000"'],
    )
    privileged: StrictBool = Field(
        False, description="Run containers with --privileged. No known use needs it.", examples=["false"]
    )
    ray: Annotated[str, AfterValidator(grammar.release)] = Field(
        RAY, description="Version of Ray put into images that come without.", examples=[RAY]
    )
    backend: BackendName = Field(
        "ray",
        description="What joins the hosts: ray, or mp, vLLM's own processes, without Ray. Default for one host: mp.",
        examples=["mp"],
    )
    hosts_from: str | None = Field(
        None,
        description="In place of hosts: slurm:JOB takes the nodes of a job of Slurm and the indices of its GPUs, "
        "command:COMMAND the JSON that a command prints, as hosts has it.",
        examples=["slurm:4711"],
    )
    hosts: dict[Annotated[str, AfterValidator(grammar.host_name)], Host] = Field(
        description="The machines, by name.",
        json_schema_extra={
            "propertyNames": {"pattern": grammar.HOST_PATTERN},
            "minProperties": 1,
            "maxProperties": MAX_HOSTS,
        },
    )
    path: SkipJsonSchema[Path | None] = Field(None, exclude=True)  # the file it came from
    found: SkipJsonSchema[bool] = Field(False, exclude=True)  # and not named by a person
    lines: SkipJsonSchema[dict[str, int]] = Field({}, exclude=True)  # of the keys that refer to a secret
    lent_until: SkipJsonSchema[float | None] = Field(None, exclude=True)  # seconds since 1970, of hosts_from
    # The host that is the head now, by a person's word; empty where none is.
    keep: SkipJsonSchema[str | None] = Field(None, exclude=True)

    @model_validator(mode="before")
    @classmethod
    def _joined(cls, value: object) -> object:
        """Take Ray for one host only where the file names it: there is nothing to join."""
        if isinstance(value, dict) and isinstance(hosts := value.get("hosts"), dict) and len(hosts) == 1:
            return {"backend": "mp", **value}
        return value

    @field_validator("hosts", mode="after")
    @classmethod
    def _named(cls, hosts: dict[str, Host]) -> dict[str, Host]:
        if not 1 <= len(hosts) <= MAX_HOSTS:
            raise ValueError(f"holds {len(hosts)} hosts; a cluster has 1 to {MAX_HOSTS}")
        return {name: host.model_copy(update={"name": name}) for name, host in hosts.items()}

    @property
    def head_name(self) -> str:
        """The host that runs Ray's head: the named one, else the first."""
        return self.head or next(iter(self.hosts))


Section = type[_Section]
# Where each kind of mapping is; `*` is any host's name.
SECTIONS: dict[tuple[str, ...], Section] = {
    (): Inventory,
    ("ssh",): SshSettings,
    ("ports",): Ports,
    ("hosts", "*"): Host,
    ("hosts", "*", "ssh"): HostSsh,
}
