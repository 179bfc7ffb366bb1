"""One host of a torrent, for the comparison: `python -m tests.bench.torrent TORRENT FOLDER ADDRESS PEER...`.

The first host has the files. Prints a line when all are here, and ends with its input.
"""

from __future__ import annotations

import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

# An extra of its own, so that mypy and the tests need it nowhere.
lt: Any = import_module("libtorrent")
PORT = 6881
OFF = ("enable_dht", "enable_lsd", "enable_upnp", "enable_natpmp", "enable_outgoing_utp", "enable_incoming_utp")


def make(folder: Path, torrent: Path) -> None:
    """Write the torrent of a folder: version 2 alone, pieces of 128 KiB."""
    storage = lt.file_storage()
    lt.add_files(storage, str(folder))
    created = lt.create_torrent(storage, 128 << 10, lt.create_torrent.v2_only)
    lt.set_piece_hashes(created, str(folder.parent))
    # Not generate_buf: it raises UnicodeDecodeError in 2.1.1.
    torrent.write_bytes(lt.bencode(created.generate()))


def main() -> None:
    """Take part until the input ends."""
    torrent, folder, address, *peers = sys.argv[1:]
    settings = dict.fromkeys(OFF, False) | {
        "listen_interfaces": f"{address}:{PORT}",
        "unchoke_slots_limit": -1,
        "max_out_request_queue": 500,
        "request_queue_time": 1,
    }
    session = lt.session(settings)
    added = lt.add_torrent_params()
    added.ti, added.save_path = lt.torrent_info(torrent), str(Path(folder).parent)
    handle = session.add_torrent(added)
    threading.Thread(target=sys.stdin.read, daemon=True).start()
    while not handle.status().is_seeding:
        if len(handle.get_peer_info()) < len(peers):
            for peer in peers:
                handle.connect_peer((peer, PORT))
        time.sleep(0.2)
    handle.flush_cache()
    print("whole", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
