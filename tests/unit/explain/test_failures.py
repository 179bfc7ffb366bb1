"""Each failure is diagnosed from the log that it really leaves, and from what users reported."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.corpus import CORPUS
from tests.support.logs import FOLDER, HEALTHY, PRODUCED, explained, failure_of, reported
from vllm_cluster.kernel.explain.catalogue import FAILURES, HARMLESS
from vllm_cluster.kernel.explain.failure import SignKind


@pytest.mark.parametrize("path", PRODUCED, ids=lambda path: path.stem)
def test_what_was_broken_is_diagnosed(path: Path) -> None:
    found = explained(path.read_bytes())
    named = found.named
    assert named, found.error_lines
    assert (named.failure.slug, found.result) == (
        failure_of(path),
        "symptom" if named.failure.kind == "symptom" else "explained",
    )
    assert named.failure.fix


# fault: kernel/explain/failures.toml: "error: unrecognized arguments: → "error: unrecognised arguments:
# fault: kernel/explain/failures.toml: "is greater than the → "is larger than the
@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("vllm: error: unrecognized arguments: --max-model-ln 1024", "flag-unknown"),
        (
            "ValueError: User-specified max_model_len (100000) is greater than the derived max_model_len "
            "(max_position_embeddings=2048 or model_max_length=None in model's config.json).",
            "context-above-model",
        ),
    ],
)
def test_the_commonest_mistakes_are_diagnosed_by_one_line(line: str, slug: str) -> None:
    """The line alone, as people pipe it into `vcluster explain -`."""
    found = explained(f"{line}\n")
    assert found.cause and found.cause.failure.slug == slug


@pytest.mark.parametrize(("slug", "source", "text"), reported(), ids=lambda value: value[:60].replace("\n", " "))
def test_what_was_reported_is_diagnosed(slug: str, source: str, text: str) -> None:
    found = explained(text)
    if slug.startswith("note-"):
        assert found.result in ("nothing", "unfinished"), source
        assert found.notes[0].failure.slug == slug.removeprefix("note-"), source
    else:
        named = found.named
        assert named, (source, found.error_lines)
        assert named.failure.slug == slug, source


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_a_healthy_log_holds_no_failure(path: Path) -> None:
    found = explained(path.read_bytes())
    assert found.result in ("healthy", "nothing")
    assert (found.cause, found.symptom, found.error_lines) == (None, None, ())


def test_every_failure_is_shown_by_a_log_or_gives_the_reason() -> None:
    shown = {failure_of(path) for path in PRODUCED} | {slug.removeprefix("note-") for slug, _, _ in reported()}
    for slug, failure in FAILURES.items():
        assert bool(failure.signs) != bool(failure.silent), slug
    shown |= {slug for case in CORPUS for slug in case.failures}
    # It is in the log of rank-killed.worker-killed-after-a-stop, which names another.
    assert {slug for slug, failure in FAILURES.items() if failure.signs} - shown == {"model-name-unknown"}


def test_a_symptom_has_no_sign_of_a_cause_and_a_cause_none_of_a_symptom() -> None:
    """Else a line that many causes share would be taken for one of them."""
    of_symptoms = (SignKind.DECISIVE, SignKind.SYMPTOM, SignKind.CONSEQUENCE)
    for slug, failure in FAILURES.items():
        for sign in failure.signs:
            assert sign.kind is SignKind.NOTE or (sign.kind in of_symptoms) == (failure.kind == "symptom"), slug


def test_each_old_number_names_one_failure() -> None:
    numbers = [failure.number for failure in FAILURES.values() if failure.number]
    assert sorted(numbers, key=lambda number: (int(str(number).rstrip("a")), str(number))) == [
        *range(1, 45),
        "44a",
        *range(45, 106),
    ]


def test_a_slug_that_names_another_failure_names_one_that_exists() -> None:
    named = {slug for failure in FAILURES.values() for sign in failure.signs for slug in sign.explains}
    assert named | {like["else"] for like in HARMLESS if "else" in like} <= set(FAILURES)
    assert all(re.fullmatch(r"[a-z][a-z-]+", slug) for slug in FAILURES)


def test_lines_of_nccl_about_ethernet_do_not_count_for_adapters() -> None:
    """Two H200s joined by TCP: NCCL calls GPU Direct disabled for eth0 too."""
    found = explained((FOLDER.parent / "gpu" / "h200-x2-nccl-socket.log").read_bytes())
    assert (found.result, [one.failure.slug for one in found.notes]) == ("nothing", ["nccl-over-tcp"])
    assert len(found.harmless) == 1


XID = "[ 812.4] NVRM: Xid (PCI:0000:1b:00): "


# fault: kernel/explain/failures.toml: '^(?!ray\.)(?:[\w.] → '^(?:[\w.]
# fault: kernel/explain/failures.toml: |(?:14[4-9]|150), .{0,80}\bFatal\b)' → )'
# fault: kernel/explain/failures.toml: (?<!adapter_)config|params → config|params
# fault: kernel/explain/failures.toml: (?:startup|kv cache allocation) → (?:startup)
# fault: kernel/explain/failures.toml: needle = "caused by previous Xid" → needle = "caused by another Xid"
# fault: kernel/explain/failures.toml: to \S+ \((?!None)' → to \S+ \((?!None|GPU)'
@pytest.mark.parametrize(
    ("line", "slug", "result"),
    [
        # Whose memory is full is in the class, however the message is cut.
        ("ray.exceptions.OutOfMemoryError: 3 workers were ended as this host", "host-memory-full", "explained"),
        ("OutOfMemoryError: 3 GiB more do not fit", "gpu-memory-full", "explained"),
        # A program's channel ends of what happened before; errors of NVLink are often corrected.
        (f"{XID}45, pid=31, name=python3, Ch 00000003 caused by previous Xid 147", "gpu-broken", "explained"),
        (f"{XID}45, pid=31, name=python3, Ch 00000003 caused by previous Xid 13", "gpu-lost-or-kernel", "symptom"),
        (f"{XID}146, TLW_RX Fatal XC0 i0 Link 03 (0x0 0x0)", "gpu-broken", "explained"),
        (f"{XID}146, TLW_RX Nonfatal XC0 i0 Link 03 (0x0 0x0)", "gpu-lost-or-kernel", "symptom"),
        (
            f"{XID}154, GPU recovery action changed from 0x0 (None) to 0x2 (GPU Reset Required)",
            "gpu-broken",
            "explained",
        ),
        (
            f"{XID}154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)",
            "gpu-lost-or-kernel",
            "symptom",
        ),
        # The file that is not there shows what was looked for.
        ("FileNotFoundError: [Errno 2] No such file or directory: '/a/adapter_config.json'", "lora-unfit", "explained"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: '/models/a/config.json'",
            "model-not-found",
            "explained",
        ),
        # A CPU's memory, as the container has it.
        *(
            (
                f"ValueError: Available memory on node 0 (0.4/1.1 GiB) on {when} is less than …",
                "host-memory-full",
                "explained",
            )
            for when in ("startup", "kv cache allocation")
        ),
        # CUDA does not start, and gives no reason.
        ("RuntimeError: CUDA unknown error - look at the driver", "gpu-lost-or-kernel", "symptom"),
        ("RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 3: no init", "gpu-lost-or-kernel", "symptom"),
        # Compilers of kernels.
        ("LLVM ERROR: no such conversion", "kernel-build-failed", "symptom"),
        ("torch._inductor.exc.InductorError: RuntimeError: PassManager::run failed", "kernel-build-failed", "symptom"),
        # The call of a kernel is refused, whichever library checks it.
        (
            "RuntimeError: Check failed: (err == cudaSuccess) is false: Frob failed with invalid argument",
            "kernel-refused",
            "symptom",
        ),
        (
            "RuntimeError: Check failed: (err == cudaSuccess) is false: CUDA out of memory",
            "gpu-memory-full",
            "explained",
        ),
        # A transfer between engines that fails for any reason.
        (
            "(Worker pid=7) ERROR 05-02 09:11:10 [w.py:1] NIXL transfer failure: frob | Context: x",
            "kv-transfer-failed",
            "symptom",
        ),
        # What was compiled for another PyTorch.
        (
            "RuntimeError: Tried to instantiate class 'F', but it does not exist! Ensure that it is registered",
            "packages-mismatch",
            "explained",
        ),
        (
            "WARNING 05-02 09:11:10 [c.py:1] Failed to import from vllm._core_C with ImportError('libtorch.so')",
            "packages-mismatch",
            "explained",
        ),
    ],
)
def test_kinds_of_failure_are_known_in_any_words(line: str, slug: str, result: str) -> None:
    found = explained(f"{line}\n")
    assert found.named
    assert (found.named.failure.slug, found.result) == (slug, result)


# fault: kernel/explain/failures.toml: (?:RmInitAdapter failed!| → (?:RmInitAdaptor failed!|
# fault: kernel/explain/failures.toml: Permission denied \((?:publickey → Permission denied \((?:pubkey
@pytest.mark.parametrize(
    ("line", "slug"),
    [
        ("May 27 16:50:10 gpu1 kernel: NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)", "gpu-broken"),
        ("May 27 16:50:10 gpu1 kernel: NVRM: osInitNvMapping: *** Cannot attach gpu", "gpu-broken"),
        ("frob@gpu1: Permission denied (publickey,password).", "ssh-denied"),
        ("open /frob: Permission denied (os error 13)", ""),
        ("gpu1: Host key verification failed.", "ssh-host-key"),
        ("kex_exchange_identification: read: Connection reset by peer", "ssh-cut-off"),
    ],
)
def test_what_ssh_and_the_driver_refuse_is_named_without_an_error_level(line: str, slug: str) -> None:
    found = explained(f"{line}\n", together=False)
    assert (found.cause.failure.slug if found.cause else "") == slug
