"""What a login node prints of a job is shown in lines of its own, with anything in it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.hostile import hostile
from vllm_cluster.features.slurm.jobs import job_state, texts
from vllm_cluster.features.slurm.render import state_lines
from vllm_cluster.kernel.shell_line import Pasted, command_line
from vllm_cluster.kernel.terminal.printable import clean

PARTS = st.dictionaries(st.sampled_from(["folder", "job", "past", "attempts", "ends"]), hostile)


# fault: features/slurm/jobs.py: printable(seen.get("folder", "").strip()) → seen.get("folder", "").strip()
@given(PARTS)
def test_any_text_gives_a_state_in_lines_of_its_own(parts: dict[str, str]) -> None:
    printed = "".join(f"@@ab {name}\n{text}\n" for name, text in parts.items())
    if found := job_state("7", texts(printed.encode("utf-8", "surrogatepass"), "@@ab"), "login"):
        assert all(clean(line) == line and "\n" not in line for line in state_lines(found, command_line, Pasted))
