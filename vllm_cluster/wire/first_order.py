"""The first format of an order: a command line, from which the intent is read one last time."""

from __future__ import annotations

from vllm_cluster.wire.reading import RefusedDocument
from vllm_cluster.wire.values import LOOPBACK

_TP, _PP, _NAME = "--tensor-parallel-size=", "--pipeline-parallel-size=", "--served-model-name="


def rows_of(serve: object, sender: str) -> list[dict[str, object]]:
    """Read what format 1 had in place of a deployment, as rows of the later formats.

    Raises:
        RefusedDocument: it is another shape.
    """
    if serve is None:
        return []
    try:
        if not isinstance(serve, dict):
            raise TypeError(serve)
        argv: list[str] = serve["argv"]
        own = [word.startswith(_NAME) for word in argv].index(True)
        tp, pp = (int(_last(argv, option)) for option in (_TP, _PP))
        sizes = {} if serve.get("by_default") else {"tp": tp, "pp": pp}
        # The first release left to Ray which GPUs stay idle, and waited for those of all hosts.
        hosts, ranks, (head, *_) = serve.get("hosts") or [], serve.get("ranks") or serve["nodes"], serve["nodes"]
        loading, env = serve.get("loading", []), serve["env"]
        deployment = {key: serve[key] for key in ("name", "model")} | {"flags": argv[3:own], "hosts": hosts, **sizes}
        deployment |= {"expose": serve["host"] != LOOPBACK, "rollback": serve.get("rollback", True)}
        # A host has no name there: it is called by its address.
        leader = {"host": head, "address": head, "gpus": ranks.get(head, 0), "argv": [*argv, *loading], "env": env}
        others = [{"host": at, "address": at, "gpus": count} for at, count in ranks.items() if at != head]
        replica = {"tp": tp, "pp": pp, "host": serve["host"], "port": serve["port"], "parts": [leader, *others]}
        replica |= {"loading": loading, "offline": env.get("HF_HUB_OFFLINE") == "1"}
        return [{"generation": serve["generation"], "deployment": deployment, "replica": replica}]
    except (LookupError, TypeError, ValueError, AttributeError):
        raise RefusedDocument(sender, "serve", "is not a request of format 1") from None


def _last(argv: list[str], option: str) -> str:
    found = [word.removeprefix(option) for word in argv if word.startswith(option)]
    return found[-1]
