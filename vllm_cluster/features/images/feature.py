"""The verbs of the feature images, and what its help prints."""

from __future__ import annotations

from vllm_cluster.kernel.terminal.exits import MODELS
from vllm_cluster.kernel.terminal.verb import Verb

VERBS = {
    "image": Verb(MODELS, "features.images.verb:app", "List, remove and send the images of the hosts."),
}
