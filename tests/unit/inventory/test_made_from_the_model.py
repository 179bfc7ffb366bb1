"""What is made from the model of the inventory: schema, example, template."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.support.paths import ROOT
from tests.unit.inventory.texts import read
from tools.inventory import example
from vllm_cluster.kernel.inventory.model import SECTIONS
from vllm_cluster.kernel.inventory.schema import json_schema
from vllm_cluster.kernel.inventory.template import HostSeed, render


def test_the_example_loads() -> None:
    assert list(read(example()).hosts) == ["gpu1", "gpu2"]


def test_inventories_in_the_page_load() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "inventory.md").read_text(encoding="utf-8"), re.DOTALL)
    whole = [block for block in blocks if block.startswith("version: 1")]
    parts = [block for block in blocks if block not in whole]
    assert len(whole) >= 1
    for block in whole:
        read(block)
    top = "version: 1\ncluster: lab\nimage: vllm/vllm-openai:latest\nmodel_cache: /srv/models\n"
    hosts = "hosts:\n  gpu1: {address: 10.0.0.11}\n"
    for block in parts:
        read(top + block + ("" if "hosts:" in block else hosts))


def test_every_key_is_described() -> None:
    for place, section in SECTIONS.items():
        for key in section.written_keys():
            assert section.model_fields[key].description, (place, key)


def test_the_schema_knows_what_the_file_may_hold_and_no_more() -> None:
    schema: dict[str, Any] = json_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == {"version", "cluster", "image", "model_cache"}
    assert schema["oneOf"] == [{"required": ["hosts"]}, {"required": ["hosts_from"]}]
    host = schema["$defs"]["Host"]["properties"]
    assert set(host) == {"ssh", "address", "gpus", "interface", "hcas"}
    assert {"type": "string"}.items() <= schema["$defs"]["HostSsh"]["anyOf"][0].items()
    assert "title" not in json.dumps(schema["$defs"])


def test_a_rendered_inventory_holds_what_was_asked() -> None:
    seeds = [
        HostSeed("gpu1", "me@gpu1.lab:2222", "10.0.0.1"),
        HostSeed("no", "no", "fd00::2"),
        HostSeed("1", "local", "10.0.0.3"),
        HostSeed("0x1f", None, "10.0.0.4"),
    ]
    inventory = read(render("yes", seeds, "registry.lab:5000/vllm:1.2", "/srv/modèles ☃ #1"))
    assert (inventory.cluster, inventory.image) == ("yes", "registry.lab:5000/vllm:1.2")
    assert inventory.model_cache == "/srv/modèles ☃ #1"
    assert [(h.name, h.destination, h.address) for h in inventory.hosts.values()] == [
        ("gpu1", "gpu1.lab", "10.0.0.1"),
        ("no", "no", "fd00::2"),
        ("1", "local", "10.0.0.3"),
        ("0x1f", "0x1f", "10.0.0.4"),
    ]
    assert (inventory.hosts["gpu1"].ssh.user, inventory.hosts["gpu1"].ssh.port) == ("me", 2222)


def test_an_unknown_address_is_left_to_the_facts() -> None:
    text = render("lab", [HostSeed("gpu1"), HostSeed("gpu2", "me@gpu2.lab")], "vllm/vllm-openai:latest", "/srv/models")
    assert [(host.destination, host.address) for host in read(text).hosts.values()] == [("gpu1", ""), ("gpu2.lab", "")]
    assert "    # address: 10.0.0.11\n" in text


def test_every_optional_key_works_as_the_template_has_it() -> None:
    text = render("lab", [HostSeed("gpu1", None, "10.0.0.1")], "vllm/vllm-openai:latest", "/srv/models")
    uncommented = re.sub(r"^( *)# ( *[a-z_]+:(?: |$))", r"\1\2", text, flags=re.MULTILINE)
    # The first line's own `key: value` is for editors.
    inventory = read(uncommented)
    told = {line.strip().split(":")[0] for line in uncommented.splitlines() if ":" in line and not line.startswith("#")}
    # It is in the place of hosts.
    told.add("hosts_from")
    assert {key for section in (SECTIONS[()], SECTIONS[("ports",)]) for key in section.written_keys()} <= told
    assert inventory.ssh.transport == "openssh"
    assert inventory.hosts["gpu1"].hcas == ("mlx5_0",)
