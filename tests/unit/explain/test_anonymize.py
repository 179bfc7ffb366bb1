"""Whose machines they are is not shown, and one object keeps one name."""

from __future__ import annotations

from pathlib import Path

import pytest

from vllm_cluster.explain.anonymize import anonymizer
from vllm_cluster.inventory.model import Inventory
from vllm_cluster.run.private_names import private_names


# fault: explain/anonymize.py: text = _ADDRESS.sub(address, text) →
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


SSH_CONFIG = """
Host gpu1
  HostName node17.secret-lab.example.org
  User jdoe_login
  ProxyCommand nc -X connect -x proxy.secret-lab.example.org:3128 --token proxycanary99 %h %p
Host gpu2
  HostName node18.secret-lab.example.org
  ProxyJump keeper@bastion.secret-lab.example.org:2222
"""


@pytest.mark.promise("P13")
def test_names_from_ssh_config_images_and_paths_are_replaced_too(tmp_path: Path) -> None:
    config = tmp_path / "ssh_config"
    config.write_text(SSH_CONFIG)
    inventory = Inventory.model_validate(
        {
            "version": 1,
            "cluster": "skunkworks",
            "image": "registry.secret-lab.example.org:5000/team-x/vllm-fork:1.2",
            "model_cache": "/srv/jdoe/models",
            "volumes": ["/data/project-x:/lora-x"],
            "environment": {"NCCL_DEBUG": "WARN", "PROXY": "http://egress.secret-lab.example.org"},
            "ssh": {"config": str(config)},
            "hosts": {"gpu1": {"address": "10.0.0.1"}, "gpu2": {"address": "10.0.0.2"}},
        }
    )
    private = [
        "secret-lab",
        "node17",
        "jdoe",
        "proxycanary99",
        "keeper",
        "bastion",
        "skunkworks",
        "team-x",
        "vllm-fork",
        "project-x",
        "lora-x",
        "egress",
        str(tmp_path),
    ]
    text = f"""{SSH_CONFIG}
        pull {inventory.image}: registry.secret-lab.example.org:5000 refused; as vllm-fork:1.2 of team-x/vllm-fork
        vcluster-skunkworks on gpu1 mounts /srv/jdoe/models, /data/project-x at /lora-x, -F {config}
        cannot connect to jdoe_login@node17.secret-lab.example.org:22 through keeper@bastion.secret-lab.example.org
        nc -X connect -x proxy.secret-lab.example.org:3128 --token proxycanary99 node17.secret-lab.example.org 22
        HTTP proxy http://egress.secret-lab.example.org; NCCL WARN failed to connect
        """
    shown = anonymizer(private_names(inventory, []))(text)
    assert [name for name in private if name in shown] == []
    assert "NCCL WARN failed to connect" in shown
