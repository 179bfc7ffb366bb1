"""How much there is to learn: the options of all verbs."""

from __future__ import annotations

import typer

from tools.reference import every_verb
from vllm_cluster.cli.app import app
from vllm_cluster.kernel.terminal.help import COMMON

# A new option has to be worth one that goes.
MAX_OPTIONS = 150


def test_the_options_of_all_verbs_are_few() -> None:
    """Each option of each verb counts as one; those of every verb, such as --json, do not."""
    own = [
        f"{path} {max(one.opts, key=len)}"
        for path, _, params in every_verb(typer.main.get_command(app))
        for one in params
        if one.param_type_name == "option" and not one.hidden and one.name not in COMMON
    ]
    assert 100 < len(own) <= MAX_OPTIONS, "\n".join(own)
