"""What joins the nodes, from inside one."""

# The one that there is: what asks it names it no further.
from vllm_cluster.serving.node.backends import ray as backend

__all__ = ["backend"]
