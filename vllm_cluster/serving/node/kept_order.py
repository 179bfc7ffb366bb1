"""The order to serve, as it lies in the state volume, and what became of it."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from vllm_cluster.serving.node.files import sync_file, write_whole
from vllm_cluster.serving.node.process import log_line
from vllm_cluster.serving.node.timing import mark, since
from vllm_cluster.wire.inside import beginning
from vllm_cluster.wire.order import (
    ACCEPTED,
    READY,
    RESULTS,
    TAKEN,
    WANTED,
    Order,
    Placement,
    Ready,
    Taken,
    read_order,
    read_ready,
    read_taken,
)
from vllm_cluster.wire.reading import MAX_BYTES, RefusedDocument, read
from vllm_cluster.wire.status import FailedRequest, ServeFailure


class Inbox:
    """wanted.json, in which people ask; the order that was accepted last is kept beside it."""

    def __init__(self, state: Path) -> None:
        self.error: str | None = None
        self._wanted, self._accepted = state / WANTED, state / ACCEPTED
        self._read_before: bytes | None = None

    def news(self) -> Order | None:
        """An order that has come since the last look; one that cannot be read changes nothing, and is an `error`."""
        # Read whole each time: its time stamp comes from the sender's archive, and may not differ from the last one's.
        try:
            # Docker removes a file before it writes it again: only where no order ever came is none wanted.
            asked = self._wanted.exists() or self._accepted.exists()
            raw = beginning(self._wanted, MAX_BYTES + 1) if asked else Order().document
            if raw == self._read_before:
                self.error = None
                return None
            order = read_order(raw)
            if asked and self._outdated(order):
                return None
        except (OSError, RefusedDocument) as error:
            # Perhaps half written, or about to be: what was wanted before holds, and the next look decides.
            self.error = f"{WANTED} cannot be read: {error}"
            return None
        self._read_before, self.error = raw, None
        return order

    def _outdated(self, order: Order) -> bool:
        """Whether an order is older than one that was accepted, which is put back; a new one is accepted here."""
        accepted = self._accepted_before()
        if order == accepted:
            return False
        # One without an epoch was written before orders had one, or by an earlier version of vcluster.
        if order.epoch <= accepted.epoch and accepted.epoch > 0:
            log_line("node", f"refused order {order.epoch}: {accepted.epoch} was accepted before it")
            write_whole(self._wanted, json.loads(accepted.document))
            return True
        sync_file(self._wanted)
        write_whole(self._accepted, json.loads(order.document), sync=True)
        return False

    def _accepted_before(self) -> Order:
        try:
            return read_order(beginning(self._accepted, MAX_BYTES + 1), ACCEPTED)
        except (OSError, RefusedDocument):
            # One that cannot be read is replaced by the next order that comes.
            return Order()


MAX_READY, MAX_RESULTS_BYTES = 5, 1 << 20
# Of the rows of how starts ended, the newest: one has 300 bytes.
MAX_RESULTS = 8192
# Until a model was ready once, clients are asked to come back after so many seconds.
UNKNOWN_START = 60.0
# Of those the longest counts: a start takes 26 to 64 s as the hosts are busy.
MAX_STARTS = 5
MARGIN = 0.25


@dataclass(frozen=True)
class EndedStart:
    """How a start of a model ended, and after how many seconds: what is asked of a row of the history."""

    model: str
    result: str
    seconds: float | None


class Requests:
    """Keeps, beyond this container, what was asked for last, what it replaced, and how it ended.

    `wanted.json` belongs to people; that the order before it is served in its place is written elsewhere, so that no
    laptop's order can be overwritten.
    """

    def __init__(self, state: Path, *, history: Path | None = None, index: int = 0) -> None:
        """Keep these of a replica in a folder of its own; what became of all is in one `history`."""
        self._state, self._history, self._index = state, history or state, index
        # As the last order has it; none where this program began after it.
        self._drain: float | None = None
        self._kept = Taken()
        try:
            self._kept = read_taken(beginning(state / TAKEN, MAX_BYTES + 1))
        except (OSError, RefusedDocument) as error:
            if not isinstance(error, FileNotFoundError):
                log_line("node", f"{TAKEN} cannot be read, and counts as none: {error}")
        self._usual = self._last_starts()
        self._restarted: tuple[str, float] | None = None  # when, until what was restarted is ready

    @property
    def served(self) -> Placement | None:
        """What shall run."""
        return self._kept.served

    def has(self, order: Order) -> bool:
        """Whether this order was taken."""
        return self._kept != Taken() and (order.epoch, order.wanted) == (self._kept.number, self._kept.asked)

    @property
    def settled(self) -> bool:
        """Whether what was asked for is ready."""
        return self._kept.ready and self._kept.failed is None

    def seconds_left(self, age: float) -> int:
        """How long a start of this age takes still, by the last ones of the same model; in steps of 5 s.

        A client of OpenAI's has three tries: this is a quarter more than the longest took, and at least half the age.
        """
        model = self.served.deployment.model if self.served else ""
        left = max(max(self._usual.get(model, (UNKNOWN_START,))) * (1 + MARGIN) - age, age / 2)
        return min(max(-(-int(left) // 5) * 5, 5), 86400)

    def _last_starts(self) -> dict[str, deque[float]]:
        """How long the last starts took of each model that was ever ready."""
        found: dict[str, deque[float]] = {}
        # A first start has no such file, and a power cut may have broken a row of it.
        with suppress(OSError):
            for line in beginning(self._history / RESULTS, 2 * MAX_RESULTS_BYTES).splitlines()[-MAX_RESULTS:]:
                with suppress(RefusedDocument):
                    row = read(EndedStart, line, RESULTS)
                    # Of what is ready again the seconds count from its end: a host may have been away for hours.
                    if row.result == "ready" and row.seconds:
                        found.setdefault(row.model, deque(maxlen=MAX_STARTS)).append(row.seconds)
        return found

    def accept(self, order: Order) -> bool:
        """Take an order; whether it is another one than the last, though it may ask for the same."""
        self._drain = order.drain
        before, asked = self._kept, order.wanted
        known = before != Taken()
        if known and (order.epoch, asked) == (before.number, before.asked):
            return False
        if before.asked and not before.ended:
            pending = since(before.began)
            after = "" if pending is None else f" after {pending:.0f} s"
            self._result("replaced", f"another request came{after}")
        # What was being loaded has shown nothing yet: what was ready before it stays the one to go back to.
        back_to = before.served if before.ready else before.back_to
        if order.back_to is not None:
            # After the cluster changed, what was ready before it may wait for hosts that have left.
            back_to = order.back_to[0] if order.back_to else None
        self._restarted = None
        if asked is None or (back_to and back_to.generation == asked.generation):
            back_to = None
        self._keep(Taken(order.epoch, asked, order.by, mark(), back_to))
        return known

    def drain_seconds(self, usual: float) -> float:
        """How long its open requests may take, where the order does not name the usual time."""
        return usual if self._drain is None else self._drain

    def leave_to(self, others: Iterable[Placement]) -> None:
        """Forget what was ready before, where others have its GPUs by now: there is no way back to it."""
        kept = self._kept
        if kept.back_to and not kept.failed and any(kept.back_to.meets(one) for one in others):
            self._keep(replace(kept, back_to=None))

    def ready(self, seconds: float | None) -> None:
        """What runs has answered; later starts of the same are not new."""
        if seconds and self.served:
            self._usual.setdefault(self.served.deployment.model, deque(maxlen=MAX_STARTS)).append(seconds)
        if self._restarted is not None:
            away, self._restarted = since(self._restarted), None
            self._result("ready again", "", away, of=self.served)
        kept = self._kept
        if kept.ready or not kept.served:
            return
        back = kept.failed is not None
        away = since(kept.began)
        # First: a program that ended after the others would leave no way back to it.
        write_whole(self._state / READY, self._ready_before(kept.served).document, sync=True)
        self._keep(replace(kept, ready=True, ended=True, away_seconds=away if back else None))
        self._result("back" if back else "ready", "", away if back else seconds)

    def _ready_before(self, served: Placement) -> Ready:
        """What was ready, with this as the newest."""
        try:
            before = read_ready(beginning(self._state / READY, MAX_BYTES + 1)).requests
        except (OSError, RefusedDocument):
            before = ()
        return Ready((*(one for one in before if not one.repeats(served)), served)[-MAX_READY:])

    def fail(self, failure: ServeFailure | None) -> bool:
        """What runs has failed for good; whether the one before it shall be served again."""
        kept = self._kept
        if not kept.asked or kept.ready or (kept.ended and not kept.failed):
            return False
        what = failure or ServeFailure(round(time.time(), 3), "", ())
        if kept.failed:
            if not kept.stuck:
                self._keep(replace(kept, stuck=True))
                self._result("not back", what.summary)
            return False
        self._result("failed", what.summary)
        back = kept.back_to if kept.asked.deployment.rollback else None
        failed = FailedRequest(what.time, what.summary, what.lines, **_named(kept.asked)) if back else None
        if back:
            name = kept.asked.deployment.name
            log_line("node", f"serves {back.deployment.name} again: {name} cannot be served")
        self._keep(replace(kept, ended=True, failed=failed))
        return back is not None

    def restarted(self, why: str, *, final: bool = False) -> None:
        """What was served has ended by itself, and is started again; `final`: too often for another start."""
        if self.served:
            self._restarted = None if final else mark()
            self._result("gave up" if final else "restarted", why, of=self.served)

    def status(self) -> dict[str, object]:
        """Which order is served, in whose place, and what comes back if it fails."""
        kept = self._kept
        waits = kept.back_to if kept.asked and not kept.ended and kept.asked.deployment.rollback else None
        return {
            "request": kept.number,
            "instead_of": asdict(kept.failed) if kept.failed else None,
            "rollback_to": waits.deployment.name if waits else None,
            "away_seconds": kept.away_seconds,
        }

    def _keep(self, taken: Taken) -> None:
        self._kept = taken
        write_whole(self._state / TAKEN, taken.document, sync=True)

    def _result(self, result: str, what: str, seconds: float | None = None, of: Placement | None = None) -> None:
        """Append one line to the history; a full disk costs the line alone."""
        asked = of or self._kept.asked
        line = {
            "time": round(time.time(), 3),
            "request": self._kept.number,
            "user": self._kept.by,
            **(_named(asked) if asked else {}),
            "result": result,
            "seconds": seconds,
            "summary": what[:500],
            "replica": self._index,
            "replicas": asked.deployment.replicas if asked else 1,
        }
        path = self._history / RESULTS
        try:
            if path.exists() and path.stat().st_size > MAX_RESULTS_BYTES:
                path.replace(path.with_name(f"{path.name}.1"))
            with path.open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log_line("node", f"cannot write {path}: {error}")


def _named(placed: Placement) -> dict[str, str]:
    names = placed.deployment
    return {"generation": placed.generation, "model": names.model, "name": names.name}
