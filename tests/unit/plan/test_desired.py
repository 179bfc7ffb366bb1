"""Each node gets its own interface, adapters and GPUs."""

from __future__ import annotations

from tests.support import world
from vllm_cluster.kernel.facts.heads import KnownHeads, Led
from vllm_cluster.kernel.facts.host_facts import DockerFacts, Hca, Nic
from vllm_cluster.kernel.plan.desired import SECRETS_FOLDER, STATE_FOLDER, desired
from vllm_cluster.kernel.plan.identity import is_volume_name
from vllm_cluster.kernel.plan.kept import kept_secrets
from vllm_cluster.kernel.plan.spec import CLUSTER, HEAD_ADDRESS, ID, SECRET, GpuRequest, secrets_volume

ACTIVE = Hca("mlx5_0", 1, "4: ACTIVE", "InfiniBand", "400 Gb/sec", ("/dev/infiniband/uverbs0",))
DOWN = Hca("mlx5_1", 1, "1: DOWN", "InfiniBand", "10 Gb/sec", ("/dev/infiniband/uverbs1",))


# fault: kernel/plan/desired.py: "NCCL_SOCKET_IFNAME": f"={nic}" → "NCCL_SOCKET_IFNAME": nic
def test_interfaces_are_each_hosts_own() -> None:
    facts = world.hosts(gpu2={"nics": (Nic("enp3s0", ("10.0.0.2/24",), 1500, "UP"),)})
    head, worker = (dict(spec.environment) for spec in desired(world.inventory(), facts, world.INPUTS))
    assert (head["NCCL_SOCKET_IFNAME"], head["GLOO_SOCKET_IFNAME"]) == ("=eth1", "eth1")
    assert (worker["NCCL_SOCKET_IFNAME"], worker["GLOO_SOCKET_IFNAME"]) == ("=enp3s0", "enp3s0")
    assert (head["VLLM_HOST_IP"], worker["VLLM_HOST_IP"]) == ("10.0.0.1", "10.0.0.2")


def test_only_active_adapters_bring_their_devices_and_rights() -> None:
    facts = world.hosts(gpu1={"hcas": (ACTIVE, DOWN)}, gpu2={"hcas": (DOWN,)})
    head, worker = desired(world.inventory(), facts, world.INPUTS)
    assert dict(head.environment)["NCCL_IB_HCA"] == "=mlx5_0:1"
    assert head.devices == ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")
    assert (head.capabilities, head.unlimited_memlock) == (("IPC_LOCK",), True)
    assert "NCCL_IB_HCA" not in dict(worker.environment)
    assert (worker.devices, worker.capabilities, worker.unlimited_memlock) == ((), (), False)


# fault: kernel/plan/desired.py: folder = f"{STATE_FOLDER}/compiled/{key}" → folder = f"/tmp/compiled/{key}"
def test_compiled_code_is_kept_by_image_in_the_volume_of_each_host() -> None:
    words = world.inventory()
    first, worker = (dict(spec.environment) for spec in desired(words, world.hosts(), world.INPUTS))
    other = dict(desired(words.model_copy(update={"image": "org/other:1"}), world.hosts(), world.INPUTS)[0].environment)
    names = ("VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    for name in (*names, "FLASHINFER_WORKSPACE_BASE"):
        assert first[name].startswith(f"{STATE_FOLDER}/compiled/{first['VCLUSTER_COMPILED']}/")
        assert first[name] == worker[name] != other[name]
    assert len({first[name] for name in names}) == len(names)


def test_an_empty_list_of_adapters_uses_none() -> None:
    facts = world.hosts(gpu1={"hcas": (ACTIVE,)})
    head = desired(world.inventory(entries={"gpu1": {"hcas": []}}), facts, world.INPUTS)[0]
    assert (head.devices, head.unlimited_memlock) == ((), False)


def test_gpus_come_by_cdi_where_the_engine_has_it() -> None:
    engine = DockerFacts(version="28.2.0", api_version="1.50", cdi_enabled=True, cdi_specs=("nvidia.com/gpu",))
    facts = world.hosts(gpu1={"docker": engine})
    head, worker = desired(world.inventory(entries={"gpu2": {"gpus": 1}}), facts, world.INPUTS)
    assert head.gpus == GpuRequest(("nvidia.com/gpu=all",), "cdi")
    assert worker.gpus == GpuRequest(("0",), "request")


# fault: kernel/plan/desired.py: if role == "head" or name != "api-key"} → if role}
def test_the_api_key_is_on_the_head_alone() -> None:
    head, worker = desired(world.inventory(), world.hosts(), world.INPUTS)
    assert dict(head.secrets).keys() == {"ray-token", "api-key"}
    assert dict(worker.secrets).keys() == {"ray-token"}


def test_secrets_are_kept_from_a_head_that_has_started() -> None:
    words = world.inventory()
    specs, facts = world.converged(words)
    assert kept_secrets(words, facts) == {"ray-token": "11", "api-key": "22"}
    # Its secrets were written before its container was made.
    never_started = world.hosts(gpu1={"containers": (world.running(specs[0], state="created"),)})
    assert kept_secrets(words, never_started) == {"ray-token": "11", "api-key": "22"}


# fault: kernel/plan/kept.py: yield Holder(host, secret_ids(labels), volume, has_node=False) → continue
def test_secrets_are_kept_where_volumes_are_all_that_is_left() -> None:
    words = world.inventory()
    state = {CLUSTER: "lab", ID: "1d", HEAD_ADDRESS: "10.0.0.1"}
    labels = {**state, f"{SECRET}ray-token": "11", f"{SECRET}api-key": "22"}
    volumes = {"vcluster-lab-state": state, secrets_volume("lab", {"x": "y"}): labels}
    was_head = {"volumes": volumes, "known_heads": KnownHeads(Led("10.0.0.2", "1d"))}
    for facts in (world.hosts(gpu1={"volumes": volumes}), world.hosts(gpu2=was_head)):
        assert kept_secrets(words, facts) == {"ray-token": "11", "api-key": "22"}
    assert kept_secrets(words, world.hosts(gpu2={"volumes": volumes})) == {}
    other = {"vcluster-lab-state": {**state, ID: "2e"}}
    facts = world.hosts(gpu1={"volumes": other}, gpu2={"volumes": volumes})
    assert kept_secrets(words, facts) == {}


def test_a_volume_of_secrets_is_named_by_what_it_holds() -> None:
    names = [secrets_volume("lab", ids) for ids in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1"}, {"a": "2"})]
    assert names[0] == names[1]
    assert len(set(names)) == 3
    assert all(is_volume_name("lab", name) for name in names)
    head, worker = desired(words := world.inventory(), world.hosts(), world.INPUTS)
    for spec in (head, worker):
        mounted = next(mount for mount in spec.mounts if mount.target == SECRETS_FOLDER)
        assert mounted.source == spec.secrets_volume == secrets_volume(words.cluster, dict(spec.secrets))
        assert mounted.read_only
