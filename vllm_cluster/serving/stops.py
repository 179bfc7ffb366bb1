"""What a verb would stop or delete, and the words for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from vllm_cluster.kernel.text import age, by_hosts, count, plural


@dataclass(frozen=True)
class Served:
    """What a head serves or loads; the age of its phase and its requests are None where the head does not answer."""

    generation: str
    name: str
    phase: str
    seconds: float | None
    requests: int | None
    # Of each replica, whether it answers, and the addresses of the hosts with its ranks; none where that is unknown.
    replicas: tuple[tuple[bool, frozenset[str]], ...] = ()
    # How many of the replicas that answer have no number of requests that can be.
    silent: int = 0

    @property
    def text(self) -> str:
        """The model as a question names it: `lab/llama (ready for 3 h, 2 requests running)`."""
        parts = [f"all {len(self.replicas)} replicas"] if len(self.replicas) > 1 else []
        parts.append(self.phase if self.seconds is None else f"{self.phase} for {age(self.seconds)}")
        if self.phase == "ready":
            number = "unknown number of requests" if self.requests is None else count(self.requests, "request")
            known = self.requests is None or not self.silent
            parts.append(f"{'' if known else 'at least '}{number} running")
            parts += [] if known else [f"unknown for {count(self.silent, 'replica')}"]
        return f"{self.name} ({', '.join(parts)})"


@dataclass(frozen=True)
class Stops:
    """What a verb stops: models, or why it is not known which, and running nodes as host → container id."""

    served: tuple[Served, ...] = ()
    unknown: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    # Whether the head starts the model again by itself.
    again: bool = False
    # Which of them cannot be loaded then, since the model cache that the inventory names lacks them, and what to do.
    absent: str = ""
    # Whether no host has the API key of the cluster, and each client needs a new one.
    new_key: bool = False
    # Hosts beside the head that have what a head has, which a person gives up.
    given_up: tuple[str, ...] = ()
    # The model that runs on: the nodes have no rank of it.
    stays: str = ""
    # The models that run on with fewer replicas, and with how many.
    fewer: str = ""
    # What is lost with the head: batches whose answers are not fetched, by their key.
    batches: Mapping[str, str] = field(default_factory=dict)
    # Where there are batches of which it is not known which, and why; empty where all are known.
    unlisted: str = ""
    # Whether they are not deleted, but stay on a host that is the head no more.
    left_behind: bool = False
    # What is being pulled, by host.
    pulls: Mapping[str, str] = field(default_factory=dict)
    # Hosts that are not of the inventory and lose what the cluster has there, with where SSH leads.
    outside: Mapping[str, str] = field(default_factory=dict)

    @property
    def consequence(self) -> str:
        """What becomes of the model and of batches, for a plan and for `--yes`, which asks nothing; may be empty."""
        unknown, model = f"the model (unknown: {self.unknown}) stops" if self.unknown else "", ""
        if self.served:
            one = len(self.served) == 1
            fate = f"{'is' if one else 'are'} {'started again' if self.again else 'not served again'}"
            model = f"{self._models} {'stops' if one else 'stop'}, and {fate}"
        batches = (f"{self._fate[1]}: {which}" for which in self._batches)
        given_up = (f"given up: {what}" for what in self._kept_elsewhere)
        return "; ".join(filter(None, (model, unknown, *self._known, self.fewer, *batches, *given_up)))

    @property
    def _known(self) -> Iterator[str]:
        """What a person should know before the answer."""
        if self.absent:
            yield self.absent
        if self.new_key:
            yield "the endpoint gets a new API key, and every client needs it"

    @property
    def deleted(self) -> str:
        """The batches that are lost; empty where there are none."""
        return ", ".join(self._batches)

    @property
    def anything(self) -> bool:
        """Whether a person must be asked."""
        stops = self.served or self.unknown or self.nodes or self.pulls
        return bool(stops or self.batches or self.unlisted or self.outside or self.given_up)

    def within(self, confirmed: Stops) -> bool:
        """Whether an answer about `confirmed` covers this too."""
        served = {one.generation for one in self.served} <= {one.generation for one in confirmed.served}
        there = ((self.nodes, confirmed.nodes), (self.pulls, confirmed.pulls), (self.outside, confirmed.outside))
        nodes = all(now.items() <= then.items() for now, then in there)
        known = (not self.unknown or bool(confirmed.unknown)) and self.absent in ("", confirmed.absent)
        known = known and self.new_key <= confirmed.new_key and {*self.given_up} <= {*confirmed.given_up}
        return served and nodes and known and self._batches_within(confirmed)

    def _batches_within(self, confirmed: Stops) -> bool:
        """Whether an answer about `confirmed` covers these batches; one about unknown ones covers any."""
        return bool(confirmed.unlisted) or (not self.unlisted and self.batches.keys() <= confirmed.batches.keys())

    def action(self, cluster: str) -> str:
        """What is asked for, as a question and a refusal have it: what is stopped, and what is deleted with it."""
        stop = f"stop {self._what(cluster)}" if self.served or self.unknown or self.nodes else ""
        pulls = (
            f"end the pull of {model} to {hosts}"
            for model, hosts in by_hosts((m, h) for h, m in self.pulls.items()).items()
        )
        deleted = (f"{self._fate[0]} {which}" for which in self._batches)
        known = "; ".join(self._known)
        given_up = (f"give up {what}" for what in self._kept_elsewhere)
        what = ", ".join(filter(None, (stop, *deleted, *given_up, *pulls, *self._removed(cluster))))
        return f"{what} ({known})" if known else what

    def _removed(self, cluster: str) -> Iterator[str]:
        """What is removed where the inventory leads no more."""
        places = [name if name == to else f"{name} ({to})" for name, to in sorted(self.outside.items())]
        if places:
            verb = "have" if len(places) > 1 else "has"
            yield f"remove what {cluster} has on {', '.join(places)}, which {verb} left the inventory"

    @property
    def _kept_elsewhere(self) -> Iterator[str]:
        """What another host than the head has as one, and loses."""
        if self.given_up:
            yield f"the API key, order, history and batches that {' and '.join(self.given_up)} kept as a head"

    @property
    def _models(self) -> str:
        return " and ".join(one.text for one in self.served)

    @property
    def _fate(self) -> tuple[str, str]:
        """What is done to the batches, and what is done then."""
        return ("leave behind", "left behind") if self.left_behind else ("delete", "deleted")

    @property
    def _batches(self) -> Iterator[str]:
        """The batches that are lost, known and unknown ones."""
        if self.batches:
            yield f"{count(len(self.batches), 'unfetched batch')} on the head ({'; '.join(self.batches.values())})"
        if self.unlisted:
            yield f"the batches on {self.unlisted}"

    def _what(self, cluster: str) -> str:
        """What is stopped, and where."""
        hosts = ", ".join(sorted(self.nodes))
        nodes = f"the running {plural(len(self.nodes), 'node')} on {hosts}" if hosts else ""
        unknown = f"the model of {cluster} (unknown: {self.unknown})" if self.unknown else ""
        if self.served:
            return " and ".join(filter(None, (f"{self._models} on {cluster}", unknown or nodes)))
        if unknown:
            return unknown
        idle = f"{self.stays} has no rank there" if self.stays else ""
        return f"{nodes} of {cluster} ({'; '.join(filter(None, (self.fewer, idle))) or 'no model is served'})"
