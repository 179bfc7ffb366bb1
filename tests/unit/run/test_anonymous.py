"""Whose machines they are is not told, and one thing keeps one name."""

from __future__ import annotations

import pytest

from vllm_cluster.run.anonymous import anonymizer


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("gpu1 at 10.0.0.1:6379, gpu10 at 10.0.0.2", "name-1 at address-1:6379, name-2 at address-2"),
        ("tcp://10.0.0.1:29501 [10.0.0.1] node_gpu1", "tcp://address-1:29501 [address-1] node_name-1"),
        ("fd00::1 and fd00:0::1", "address-1 and address-1"),
        ("[::ffff:10.0.0.1]:5", "[::ffff:address-1]:5"),
        ("127.0.0.1 0.0.0.0 ::1 ::", "127.0.0.1 0.0.0.0 ::1 ::"),
        ("at 02:39:20 vLLM 0.32.0 of 1.2.3", "at 02:39:20 vLLM 0.32.0 of 1.2.3"),
        ("link/ether 02:42:ac:13:00:0b", "link/ether mac"),
        ("gpu12 is no host of ours", "gpu12 is no host of ours"),
    ],
)
def test_names_and_addresses_are_replaced(text: str, shown: str) -> None:
    assert anonymizer(["gpu1", "gpu10", ""])(text) == shown


def test_without_names_addresses_still_go() -> None:
    assert anonymizer([])("host at 10.1.2.3") == "host at address-1"
