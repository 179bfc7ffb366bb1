"""Decides whether a start of vLLM is ready: its API is healthy, and the model has answered what it is for."""

from __future__ import annotations

import threading

from vllm_cluster.serving.node.api import Api, NotServed, Question, in_order
from vllm_cluster.serving.node.start_movement import Movement, Phases
from vllm_cluster.serving.node.timing import Timing


class Readiness:
    """Waits for the API of one start, and asks the model; `name` is what requests call it."""

    def __init__(self, api: Api, name: str, phases: Phases, movement: Movement, pace: Timing) -> None:
        self._api, self._name, self._phases, self._movement, self._pace = api, name, phases, movement, pace

    def await_health(self, over: threading.Event, *, downloads: bool) -> bool:
        """Whether it became healthy before the start was `over`; `downloads` is whether vLLM may bring its model.

        Raises:
            TimeoutError: nothing moves any more.
        """
        phases = self._phases
        while not self._api.healthy(self._pace.health_timeout):
            if downloaded := self._movement.look():
                phases.downloading(downloaded)
            waits = phases.progress is None and phases.phase in ("loading", "downloading")
            if stalled := self._movement.stalled(unseen=downloads and waits):
                raise TimeoutError(f"while {phases.phase}: {stalled}")
            if over.wait(max(self._pace.tick, 0.05)):
                return False
        return True

    def prove(self) -> Question:
        """Have the model answer what it is for: /health is 200 on an engine that dies of its first request.

        Raises:
            ValueError: it answers no kind of request that is known.
        """
        refusals = []
        for question in in_order(self._phases.tasks):
            try:
                for number in range(1, self._pace.probes + 1):
                    self._phases.turn("probing", f"{question.name} {number}/{self._pace.probes}")
                    self._api.ask(question, self._name, self._pace.probe)
            except NotServed as error:
                refusals.append(str(error))
                continue
            return question
        raise ValueError(f"it answers no kind of request that vcluster knows: {refusals[0]}")
