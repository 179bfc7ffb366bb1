"""Where the files of this checkout are."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
SANDBOX = ROOT / ".cache" / "sandbox"
VCLUSTER = Path(sys.executable).with_name("vcluster")
