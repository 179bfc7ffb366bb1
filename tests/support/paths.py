"""Where the files of this checkout are."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Tests of one feature are in its folder, and go with it.
TEST_FOLDERS = (ROOT / "tests", *sorted((ROOT / "vllm_cluster" / "features").glob("*/tests")))
FIXTURES = ROOT / "tests" / "fixtures"
SANDBOX = ROOT / ".cache" / "sandbox"
VCLUSTER = Path(sys.executable).with_name("vcluster")
