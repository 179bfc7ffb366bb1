"""What vLLM gets, what it may not get, and how a model is laid over the GPUs."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from vllm_cluster.kernel.backends import ray, switches, vllm
from vllm_cluster.kernel.backends.seam import Degrees
from vllm_cluster.kernel.errors import UsageError
from vllm_cluster.wire.order import Part
from vllm_cluster.wire.parts import Beat, PartOrder
from vllm_cluster.wire.roll import HEAD, MAX_LINE, WORKER, Signed


def argv(*extra: str, model: str = "org/model", name: str = "model") -> list[str]:
    return vllm.serve_argv(
        model, name=name, degrees=Degrees(2, 3), host="127.0.0.1", port=8000, extra=extra, engine=ray.FLAGS
    )


# fault: kernel/backends/vllm.py: f"--middleware={MIDDLEWARE}", →
def test_the_command() -> None:
    assert argv("--max-model-len", "512", "--middleware=mine.Too") == [
        "vllm",
        "serve",
        "org/model",
        "--max-model-len",
        "512",
        "--middleware=mine.Too",
        "--served-model-name=model",
        "--tensor-parallel-size=2",
        "--pipeline-parallel-size=3",
        "--distributed-executor-backend=ray",
        "--host=127.0.0.1",
        "--port=8000",
        "--middleware=vcluster_auth.RequireKey",
    ]


# fault: kernel/backends/vllm.py: "--grpc": "the endpoint speaks HTTP, with the key on every route", →
# fault: kernel/backends/vllm.py: option.startswith(name) → option == name
@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--hf-token=hf_abcdefghijklmnopqrst", "hf_token in the inventory"),
        ("--hf-token", "hf_token in the inventory"),
        ("--hf_tok", "hf_token in the inventory"),
        ("--api-key", "api_key in the inventory"),
        ("--api-key=secret", "api_key in the inventory"),
        ("--api_key=secret", "api_key in the inventory"),
        ("--api-k", "api_key in the inventory"),
        ("--tensor-parallel-size=4", "--tp"),
        ("--tensor_parallel_size", "--tp"),
        ("-tp", "--tp"),
        ("-tp=4", "--tp"),
        ("-t", "--tp"),
        ("-pp", "--pp"),
        ("--pipeline-parallel", "--pp"),
        ("--host", "--expose"),
        ("--po=1", "ports.api"),
        ("--uds=/tmp/x", "ports.api"),
        ("--distributed-executor-backend=mp", "Ray"),
        ("--nnodes=2", "Ray"),
        ("-n", "Ray"),
        ("-n2", "Ray"),
        ("-n\x1f", "Ray"),
        ("-r1", "Ray"),
        ("--node-rank", "Ray"),
        ("--master-addr=x", "Ray"),
        ("--headless", "Ray"),
        ("--data-parallel-size=2", "--tp and --pp"),
        ("-dp", "--tp and --pp"),
        ("--fd=3", "ports.api"),
        ("--grpc", "HTTP"),
        ("--served-model-name=x", "--name"),
        ("--model=x", "before --"),
        ("--ssl-keyfile=x", "tunnel"),
        ("--", "first --"),
        ("--config=/models/flags.yaml", "two words"),
    ],
)
def test_flags_that_vcluster_sets_are_refused_with_what_to_use_instead(flag: str, instead: str) -> None:
    with pytest.raises(UsageError) as error:
        argv("--enforce-eager", flag)
    assert error.value.hint is not None
    assert instead in error.value.hint
    assert "secret" not in str(error.value) and str(error.value).isprintable()


@pytest.mark.parametrize(
    "flag",
    [
        "--max-model-len=1",
        "--model-impl=auto",
        "--api-server-count=2",
        "--hf-overrides",
        "--port-x",
        "-1",
        "-",
        "-O3",
        "--middleware=a.B",
        "--chat-template=/a b/c.jinja",
        "auto",
        "n",
    ],
)
def test_the_rest_goes_to_vllm_untouched(flag: str) -> None:
    assert flag in argv(flag)


@pytest.mark.parametrize("word", ["", "-x", "--trust-remote-code", "a\nb", "a\0b", "a\x1bb"])
def test_what_cannot_be_a_model_or_a_name_is_refused(word: str) -> None:
    with pytest.raises(UsageError):
        argv(model=word)
    with pytest.raises(UsageError):
        argv(name=word)


# fault: kernel/backends/vllm.py: if holds_token(flag): → if holds_token(flag) and not flag:
@pytest.mark.promise("P13")
@pytest.mark.parametrize(
    "flag",
    [
        '--model-loader-extra-config={"token": "hf_abcdefghijklmnopqrst"}',
        "--x=https://me:pass1234@host/y",
        "AKIAABCDEFGHIJKLMNOP",
        "hf_abcdefghijklmnopqrst",
    ],
)
def test_a_secret_in_any_flag_is_refused_and_not_repeated(flag: str) -> None:
    with pytest.raises(UsageError) as caught:
        argv(flag)
    assert "hf_token" in str(caught.value.hint)
    assert not [part for part in ("abcdefghijklm", "pass1234", "ABCDEFGHIJ") if part in caught.value.message]


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "expected"),
    [
        ([1], None, None, (1, 1)),
        ([8], None, None, (8, 1)),
        ([2, 2], None, None, (2, 2)),
        ([8] * 4, None, None, (8, 4)),
        ([4, 2], None, None, (2, 3)),
        ([8, 4, 4], None, None, (4, 4)),
        ([3, 2], None, None, (1, 5)),
        ([2, 2], 4, None, (4, 1)),
        ([2, 2], 1, None, (1, 4)),
        ([2, 2], None, 4, (1, 4)),
        ([2, 2], None, 1, (4, 1)),
        ([2, 2], 1, 2, (1, 2)),
    ],
)
def test_layouts(nodes: list[int], tp: int | None, pp: int | None, expected: tuple[int, int]) -> None:
    found = vllm.choose_parallelism(nodes, tp, pp)
    assert (found.tp, found.pp) == expected
    assert found.reasons


def test_reasons_give_the_drawback_of_a_layout() -> None:
    assert any("spans hosts" in reason for reason in vllm.choose_parallelism([2, 2], 4, None).reasons)
    assert any("spans hosts" in reason for reason in vllm.choose_parallelism([3, 3], 2, None).reasons)
    assert vllm.choose_parallelism([2, 2], None, None).reasons == ("TP=2: GPUs of each host", "PP=2: hosts")
    assert vllm.choose_parallelism([8, 4], None, None).reasons == (
        "TP=4: the largest number that divides the GPUs of each host (8, 4)",
        "PP=3: 12 GPUs in groups of 4",
    )


@pytest.mark.parametrize(
    ("nodes", "tp", "pp", "text"),
    [
        ([2, 2], 3, None, "--tp 3 does not divide the 4 GPUs of the cluster"),
        ([2, 2], None, 3, "--pp 3 does not divide the 4 GPUs of the cluster"),
        ([2, 2], 4, 2, "needs 8 GPUs; the cluster has 4"),
        ([2, 2], 0, None, "--tp 0"),
        ([2, 2], 2, -1, "--pp -1"),
        ([2, 0], None, None, "at least one GPU"),
        ([], None, None, "at least one GPU"),
    ],
)
def test_what_does_not_fit_is_refused(nodes: list[int], tp: int | None, pp: int | None, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        vllm.choose_parallelism(nodes, tp, pp)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=16))
def test_left_to_itself_it_uses_every_gpu_and_no_group_crosses_hosts(nodes: list[int]) -> None:
    found = vllm.choose_parallelism(nodes, None, None)
    assert found.tp * found.pp == sum(nodes)
    assert all(count % found.tp == 0 for count in nodes)


@given(st.lists(st.integers(1, 16), min_size=1, max_size=8), st.integers(1, 16), st.integers(1, 16))
def test_ranks_are_placed_on_gpus_that_are_there(nodes: list[int], tp: int, pp: int) -> None:
    assume(tp * pp <= sum(nodes))
    hosts = {f"gpu{number}": count for number, count in enumerate(nodes)}
    ranks = vllm.place_ranks(hosts, tp, pp)
    assert sum(ranks.values()) == tp * pp
    assert all(0 < count <= hosts[host] for host, count in ranks.items())
    # Where whole TP groups can stay within hosts, they do.
    if sum(count // tp for count in nodes) >= pp:
        assert all(count % tp == 0 for count in ranks.values())


def test_all_flags_that_vcluster_sets_are_refused_at_once() -> None:
    flags = ["--host", "0.0.0.0", "--tensor-parallel-size", "4", "--api-key", "x", "--seed", "1"]
    with pytest.raises(UsageError) as refused:
        vllm.ensure_allowed("org/model", "model", flags)
    named = ("--host", "--tensor-parallel-size", "--api-key")
    assert refused.value.message.splitlines() == [f"{flag} is set by vcluster" for flag in named]
    assert (refused.value.hint or "").splitlines()[1] == "use --tp"


@pytest.mark.parametrize(
    ("flags", "kept", "found"),
    [
        (["-tp", "8", "--seed", "1"], ["--seed", "1"], [("--tensor-parallel-size", "8")]),
        (
            ["--nnodes=2", "-r1", "-pp=2"],
            [],
            [("--nnodes", "2"), ("--node-rank", "1"), ("--pipeline-parallel-size", "2")],
        ),
        (["--api-key", "x", "--headless"], ["--api-key", "x", "--headless"], []),
        (["--port", "--seed", "1", "-tp"], ["--port", "--seed", "1", "-tp"], []),
    ],
)
def test_flags_that_may_repeat_what_vcluster_sets(
    flags: list[str], kept: list[str], found: list[tuple[str, str]]
) -> None:
    assert vllm.comparable(flags) == (kept, found)


# fault: kernel/backends/vllm.py: if own.get(option) != value: → if option not in own:
def test_another_value_than_that_of_vcluster_is_refused_with_both() -> None:
    argv = vllm.serve_argv(
        "org/model", name="m", degrees=Degrees(8, 2), host="127.0.0.1", port=8000, extra=[], engine=[]
    )
    same = {"--tensor-parallel-size": "8", "--port": "8000", "--model": "org/model", "--data-parallel-size": "1"}
    vllm.ensure_same(same.items(), argv)
    with pytest.raises(UsageError) as refused:
        vllm.ensure_same([*same.items(), ("--pipeline-parallel-size", "4"), ("--master-addr", "x")], argv)
    assert refused.value.message.splitlines() == [
        "--pipeline-parallel-size is set by vcluster to 2, got 4",
        "--master-addr is set by vcluster, got x",
    ]


def test_old_switches_are_named_as_vllm_writes_them_today() -> None:
    flags = ["--enable-chunked-prefill=False", "--seed", "1", "--enable-prefix-caching", "True", "-cc.x=True"]
    flags += ["--config-format=true"]
    assert switches.old_spellings(flags) == {
        "--enable-chunked-prefill=False": "--no-enable-chunked-prefill",
        "--enable-prefix-caching True": "--enable-prefix-caching",
    }


# fault: kernel/backends/vllm.py: elif holds_token(flag): → elif flag == "":
def test_all_flags_that_cannot_be_passed_are_named_at_once() -> None:
    token = "hf_" + "a" * 34
    with pytest.raises(UsageError) as refused:
        vllm.ensure_allowed("org/model", "model", ["--port", "1", "--hf-overrides", token, "--host", "x"])
    assert [line.partition(" ")[0] for line in refused.value.message.splitlines()] == [
        "--port",
        "'[redacted]'",
        "--host",
    ]
    assert token not in refused.value.message
    assert len((refused.value.hint or "").splitlines()) == 3


# fault: kernel/backends/vllm.py: MAX_FLAGS = 32 << 10 → MAX_FLAGS = 32 << 12
def test_flags_that_no_node_could_be_sent_are_refused() -> None:
    """They ended the connection of every node that should run a part, and with it each other model there."""
    vllm.ensure_allowed("m", "m", ("--x=" + "y" * 30_000,))
    for long in (("--x=" + "y" * 33_000,), ("--x=" + "\u00e9" * 6_000,), ("--seed", "1") * 3_000):
        with pytest.raises(UsageError, match=r"the flags for vLLM have [0-9]+ kB, more than 33 kB"):
            vllm.ensure_allowed("m", "m", long)
    part = Part("a", "10.0.0.1", 1, ("vllm", "serve", "m", "--x=" + "y" * 30_000))
    orders = tuple(PartOrder("0" * 16, "m", "m", part, index=index) for index in range(8))
    assert len(Signed("00", HEAD, WORKER, ("", "")).line(asdict(Beat(parts=orders)))) < MAX_LINE
