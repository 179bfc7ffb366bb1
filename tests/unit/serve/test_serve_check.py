"""What is shown of a request before anything is stopped: hosts that agree are one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support import world
from tests.support.models import configs
from tests.support.serve_requests import placed
from tests.support.sim import make
from vllm_cluster.kernel.errors import PreflightFailed, UsageError
from vllm_cluster.kernel.events import Event
from vllm_cluster.serving.fit.request import Files, Judged
from vllm_cluster.serving.serve import check as serve_check
from vllm_cluster.serving.serve.serve import serve_model
from vllm_cluster.wire.order import Deployment, Placement
from vllm_cluster.wire.programs import CheckQuestion


def wanted(*flags: str, **more: Any) -> Placement:
    """A model over two hosts with two GPUs each."""
    return placed({"gpu1": 2, "gpu2": 2}, 2, 2, name="org/model", model="org/model", flags=flags, **more)


def answering(judged: Judged, **files: Files) -> Any:
    """A fleet whose nodes answer so."""
    return SimpleNamespace(all=lambda _, hosts: {host: (files[host], judged) for host in hosts})


def check(files: Files, judged: Judged) -> list[Event]:
    """The events of a check in which both hosts answer so."""
    events: list[Event] = []
    fleet = answering(judged, gpu1=files, gpu2=files)
    serve_check.check_request(fleet, make.inventory(2), world.hosts(), (wanted(by_default=False),), events.append)
    return events


@pytest.mark.parametrize(
    ("extra", "revision"),
    [
        ([], "main"),
        (["--revision", "a"], "a"),
        (["--revision=a"], "a"),
        (["--revision", "a", "--revision=b"], "b"),
        (["--revision=a", "--revision", "b"], "b"),
        (["--revision"], ""),
    ],
)
def test_the_last_revision_is_looked_for_as_vllm_does(
    monkeypatch: pytest.MonkeyPatch, extra: list[str], revision: str
) -> None:
    questions: list[CheckQuestion] = []

    def ask(_fleet: object, _inventory: object, question: CheckQuestion, _hosts: object) -> Any:
        questions.append(question)
        return {"gpu1": Files("cache"), "gpu2": Files("cache")}, Judged(flags="accepted")

    monkeypatch.setattr(serve_check, "ask_nodes", ask)
    fleet: Any = None
    events: list[Event] = []
    serve_check.check_request(fleet, make.inventory(2), world.hosts(), (wanted(*extra),), events.append)
    (question,) = questions
    assert question.revision == revision
    assert question.argv[len(question.argv) - question.own :] == wanted().replica.leader.argv[3:]


def test_a_model_that_no_host_has_is_one_line_with_the_hosts() -> None:
    absent = Files("nowhere", "it is not in the model cache, and HF_HUB_OFFLINE is set")
    with pytest.raises(PreflightFailed) as refused:
        check(absent, Judged(flags="accepted"))
    assert refused.value.message == f"gpu1, gpu2: org/model: {absent.problem}"
    assert (refused.value.hint or "").startswith("vcluster pull org/model\nor remove HF_HUB_OFFLINE from environment")


# fault: serving/serve/check.py: dp, ep, may_group, reads) → dp, ep, may_group)
def test_of_several_replicas_every_host_that_lacks_the_model_is_named() -> None:
    absent = Files("nowhere", "it is not in the model cache, and HF_HUB_OFFLINE is set")
    one = {host: placed({host: 2}, 2, 1, backend="mp") for host in ("gpu1", "gpu2", "gpu3")}
    with pytest.raises(PreflightFailed) as refused:
        serve_check.check_request(
            answering(Judged(flags="accepted"), **dict.fromkeys(one, absent)),
            *(make.inventory(3), world.hosts(3), tuple(one.values()), print),
        )
    assert refused.value.message.startswith("gpu1, gpu2, gpu3: ")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("", "skipped the check of the flags and the model's config: vLLM checks them itself"),
        ("accepted", "skipped the check of the model's config: vLLM checks them itself"),
    ],
)
def test_what_could_not_be_checked_is_a_sentence(flags: str, text: str) -> None:
    events = check(Files("cache"), Judged(flags=flags, unchecked="vLLM checks them itself"))
    assert text in [event.text for event in events]


def test_the_help_of_vllm_is_refused_as_a_request() -> None:
    """Before any host is connected: vLLM would print its help and end."""
    asked = Deployment("", "org/model", ("--help=all",))
    with pytest.raises(UsageError, match="prints vLLM's help and serves nothing") as refused:
        serve_model(make.inventory(2), lambda _: None, asked, confirm=lambda _: None)
    assert refused.value.hint == "vcluster exec --head -- vllm serve --help=all"


# fault: serving/serve/serve.py:     _ensure_readable(found) → pass
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            {"flags": ("--seed=1", "--chat-template=" + "é" * 70_000)},
            r"the flags for vLLM have 420 kB, more than 33 kB$",
        ),
        ({"flags": ("--chat-template=\udcff",)}, r"serve: flags\.0 cannot be a word of .* is not UTF-8, .*=\\udcff"),
        ({"flags": ("--chat-template=\0",)}, r"serve: flags\.0 cannot be a word of a command: it has a NUL, .*=\\x00"),
        ({"flags": ("--seed=1",) * 200_000}, "the flags for vLLM have 2400 kB, more than 33 kB$"),
        ({"name": "n" * 5000}, "serve: name must have from 1 to 4096 characters: nnn"),
        ({"name": "m", "model": "m" * 5000}, "serve: model must have from 1 to 4096 characters: mmm"),
        ({"tp": 1 << 20}, "serve: tp must be from 1 to 65536: 1048576"),
    ],
    ids=["long", "not UTF-8", "NUL", "many", "name", "model", "degree"],
)
def test_what_the_head_would_not_read_is_refused_before_any_host_is_connected(words: dict[str, Any], text: str) -> None:
    asked = Deployment(**{"name": "", "model": "org/model", **words})
    with pytest.raises(UsageError, match=f"^{text}") as refused:
        serve_model(make.inventory(2), lambda _: None, asked, confirm=lambda _: None)
    assert len(refused.value.message) < 300


@pytest.mark.parametrize(
    ("judged", "flags"),
    [
        ({"values": {"safetensors_load_strategy": None}}, ("--safetensors-load-strategy=prefetch",)),
        ({"values": {"safetensors_load_strategy": None}, "theirs": {"load_format": "auto"}}, ()),
        ({"values": {"safetensors_load_strategy": "lazy"}, "given": ("safetensors_load_strategy",)}, ()),
        ({"values": {}}, ()),
    ],
    ids=["chosen", "they chose a format", "they chose a strategy", "an older vLLM"],
)
def test_how_weights_are_read_is_chosen_only_where_no_flag_sets_it(
    judged: dict[str, Any], flags: tuple[str, ...]
) -> None:
    files = Files("cache", weights=10**9, carrier="ceph", memory=10**10)
    fleet = answering(Judged(flags="accepted", **judged), gpu1=files, gpu2=files)
    events: list[Event] = []
    found = serve_check.check_request(
        fleet, make.inventory(2), world.hosts(), (wanted(by_default=False),), events.append
    )
    assert found.loading == flags
    assert any("weights over the network (gpu1, gpu2: ceph)" in event.text for event in events) == bool(flags)


@pytest.mark.parametrize(("accelerator", "notes"), [("nvidia", 1), ("cpu", 0)])
def test_what_else_holds_a_model_is_known_of_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, accelerator: str, notes: int
) -> None:
    """A CPU's ranks share its memory, and vLLM takes no share of it for the KV cache but a fixed size."""
    files = Files("cache", config=configs.LLAMA_8B, weights=16 * 10**9)
    fleet = answering(Judged(flags="accepted", max_model_len=8192, supports_pp=True), gpu1=files, gpu2=files)
    monkeypatch.setattr(serve_check, "gpu_memory", lambda *_: 80 * 10**9)
    monkeypatch.setattr(serve_check, "hcas", lambda *_: True)
    inventory = make.inventory(2, accelerator=accelerator)
    facts = world.hosts()
    events: list[Event] = []
    serve_check.check_request(fleet, inventory, facts, (wanted(),), events.append)
    assert sum("it also fits on 1 of the 4 GPUs" in event.text for event in events) == notes


# fault: serving/serve/check.py: tuple(ranks), beside, dp, ep, may_group, reads) → tuple(ranks), beside)
@pytest.mark.parametrize(("dp", "ep", "problem"), [(1, True, "it has no experts: leave out --ep"), (4, False, "DP=4")])
def test_the_engines_of_a_request_are_checked(monkeypatch: pytest.MonkeyPatch, dp: int, ep: bool, problem: str) -> None:
    files = Files("cache", config=configs.LLAMA_8B, weights=16 * 10**9)
    fleet = answering(Judged(flags="accepted", max_model_len=8192, supports_pp=True), gpu1=files, gpu2=files)
    monkeypatch.setattr(serve_check, "gpu_memory", lambda *_: 12 * 10**9)
    monkeypatch.setattr(serve_check, "hcas", lambda *_: True)
    tp, pp = (2, 2) if dp == 1 else (1, 1)
    several = placed({"gpu1": 2, "gpu2": 2}, tp, pp, name="m", model="org/model", dp=dp, expert_parallel=ep)
    with pytest.raises(PreflightFailed, match=problem) as refused:
        serve_check.check_request(fleet, make.inventory(2), world.hosts(), (several,), lambda _: None)
    assert dp == 1 or (refused.value.hint or "").startswith("vcluster fit org/model --dp 4 shows what fits")


def answer(files: dict[str, Files], extra: tuple[str, ...] = ()) -> tuple[bool, list[Event]]:
    """Whether the model is served offline where the hosts answer so, and what is shown of it."""
    events: list[Event] = []
    fleet = answering(Judged(flags="accepted"), **files)
    found = serve_check.check_request(fleet, make.inventory(2), world.hosts(), (wanted(*extra),), events.append)
    return found.offline, events


PROVED, COMPLETE = Files("cache", proved="d"), Files("cache")


@pytest.mark.parametrize(
    ("other", "extra", "offline"),
    [
        (PROVED, (), True),
        (PROVED, ("--max-model-len", "100"), True),
        # Complete without a manifest: as ever, the hub may be asked.
        (COMPLETE, (), False),
        (Files("cache", proved="e"), (), False),
        (Files("hub", weights=1), (), False),
        # These may name another repository.
        (PROVED, ("--tokenizer", "org/other"), False),
        (PROVED, ("--speculative-config.model=org/small",), False),
    ],
)
def test_what_is_as_it_was_pulled_everywhere_is_served_offline(
    other: Files, extra: tuple[str, ...], offline: bool
) -> None:
    assert answer({"gpu1": PROVED, "gpu2": other}, extra)[0] is offline


def test_a_file_that_changed_since_the_pull_is_reported() -> None:
    offline, events = answer({"gpu1": PROVED, "gpu2": Files("cache", changed="model.safetensors")})
    (warning,) = [event for event in events if event.kind == "warning"]
    assert not offline and warning.host == "gpu2"
    assert "model.safetensors has changed since it was pulled; vcluster pull org/model --verify" in warning.text


# fault: serving/serve/check.py: return _files(answer["files"]), convert( → return convert(Files, answer["files"], "files"), convert(
def test_files_that_cannot_be_leave_the_answer_on_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = {"flags": "refused", "problem": "unrecognized arguments: --nope"}
    row = {"v": 1, "files": {"where": "hub", "missing": 10**300}, "vllm": refused}
    node = SimpleNamespace(run=lambda *_: SimpleNamespace(messages=[row]))
    monkeypatch.setattr(serve_check, "NodeHandle", lambda *_: node)
    files, judged = serve_check._ask(cast(Any, None), "lab", {})
    assert (files.where, judged.problem) == ("unknown", refused["problem"])
    assert files.problem == "the node's answer: missing must be a number of at most 64 bits"
