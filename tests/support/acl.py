"""Rights in a folder that its mode does not show."""

from __future__ import annotations

import os
import struct
from pathlib import Path

# A user that no test is, and the number of an entry that has none.
OTHER, NO_ID = 65534, 0xFFFFFFFF


def allow_writing(folder: Path, mask: int) -> None:
    """Give another user all rights there by an ACL, of which the mask leaves some (POSIX 1003.1e, draft 17)."""
    entries = ((0x1, 7, NO_ID), (0x2, 7, OTHER), (0x4, 7, NO_ID), (0x10, mask, NO_ID), (0x20, 5, NO_ID))
    packed = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr(folder, "system.posix_acl_access", packed)
