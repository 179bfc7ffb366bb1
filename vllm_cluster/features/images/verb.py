"""`vcluster image`."""

from __future__ import annotations

from typing import Annotated

import typer

from vllm_cluster.kernel.terminal.completion import complete_hosts
from vllm_cluster.kernel.terminal.exits import LEASE, READ
from vllm_cluster.kernel.terminal.options import InventoryPath, Json, Yes
from vllm_cluster.kernel.terminal.program import group
from vllm_cluster.kernel.terminal.session import Session
from vllm_cluster.kernel.terminal.verb import Verb

IMAGE = {
    "ls": Verb(
        "Verbs",
        "features.images.verb:image_ls",
        "Show the images that the cluster uses or used.",
        "The state is in-use, desired (the inventory names it), previous (kept, to return to) or unused.",
        ("vcluster image ls", "vcluster image ls --json"),
        {1: "a host's Docker does not answer", **READ},
    ),
    "prune": Verb(
        "Verbs",
        "features.images.verb:prune",
        "Remove the cluster's images that nothing needs.",
        "These are shown as unused by vcluster image ls. Images of others stay.",
        ("vcluster image prune", "vcluster image prune --yes"),
        {1: "failed, or the answer was no", **LEASE},
    ),
    "push": Verb(
        "Verbs",
        "features.images.verb:push",
        "Bring an image to hosts that lack it, without a registry.",
        "Sends only the layers that a host lacks, to all hosts at once, and from host to host where they reach each "
        "other. What runs continues: vcluster up takes the image.",
        (
            "vcluster image push",
            "vcluster image push my-vllm:2 --from local",
            "vcluster image push my-vllm:2 gpu3 gpu4 --from gpu1",
        ),
        {1: "a host did not get it", 3: "the image is not there, or a host cannot take it", **READ},
    ),
}

app = group(IMAGE, "List, remove and send the images of the hosts.")


def push(
    image: Annotated[
        str | None, typer.Argument(metavar="IMAGE", help="Its name, tag or id on the source. Default: the inventory's.")
    ] = None,
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="HOST", help="Hosts that get it. Default: all.", autocompletion=complete_hosts),
    ] = None,
    source: Annotated[
        str, typer.Option("--from", metavar="HOST|local", help="The host that has it; local is this machine's Docker.")
    ] = "",
    inventory: InventoryPath = None,
    as_json: Json = False,
) -> None:
    """Bring an image to hosts that lack it, without a registry."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.features.images.push import push_image

        push_image(loaded, session.emit, image=image or "", source=source, hosts=hosts or ())


def image_ls(inventory: InventoryPath = None, as_json: Json = False) -> None:
    """Show the images that the cluster uses or used."""
    with Session(inventory, as_json=as_json) as session:
        loaded = session.load()
        from vllm_cluster.features.images.action import images as images_action
        from vllm_cluster.features.images.render import images_document, show_images
        from vllm_cluster.kernel.errors import combine

        found = images_action(loaded, session.progress)
        session.show(lambda: images_document(found), lambda: show_images(found))
        if found.failures:
            raise combine(dict(found.failures)).with_hosts(loaded.hosts)


def prune(inventory: InventoryPath = None, as_json: Json = False, yes: Yes = False) -> None:
    """Remove the cluster's images that nothing needs."""
    with Session(inventory, as_json=as_json, changes=True) as session:
        loaded = session.load()
        from vllm_cluster.features.images.action import prune_images

        prune_images(loaded, session.emit, confirm=session.confirm(yes))
