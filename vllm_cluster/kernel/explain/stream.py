"""What one log shows, line by line: signs, starts, stops, and whether work continues."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from vllm_cluster.kernel.explain import progress
from vllm_cluster.kernel.explain.catalogue import COMMUNICATORS, LogPattern
from vllm_cluster.kernel.explain.communicators import connected, warned
from vllm_cluster.kernel.explain.evidence import LAST_TROUBLE, ErrorLine, LogPosition, LogScan, Raised, SignMatch, held
from vllm_cluster.kernel.explain.failure import SignKind
from vllm_cluster.kernel.explain.frame import (
    SHOWN,
    TRACEBACK,
    IgnoredExceptions,
    Nearby,
    is_chained,
    is_echo,
    is_exception,
    leads,
    wraps,
)
from vllm_cluster.kernel.explain.idle import MAX_ENGINES, STUCK, IdleEngines
from vllm_cluster.kernel.explain.log_line import DAY, LogLine
from vllm_cluster.kernel.explain.ranks import RANK_WORDS, Ranks, addresses_in
from vllm_cluster.kernel.explain.signs import by_place, classify, judge_line
from vllm_cluster.kernel.explain.slurm_ends import SlurmEnds, cancels
from vllm_cluster.kernel.text import redact

WHO = 120  # characters of the name of a process that are kept
BANNER = 40  # lines of one start that all announce it
FIRST_STRANGE = 3
MAX_RAISED = 16  # exceptions of one log that no failure explains: the first half of them, and the last ones
MAX_PAST = 16  # failures of earlier runs that are kept
DISORDER = 60.0  # seconds by which processes of one host may write out of order
MAX_ADDRESSES, MAX_LOOKS, ADDRESSED = 64, 2000, 1024  # of one log, its lines in which to look, characters of each


class HostStream:
    """The lines of one host in one file, and what must be remembered from line to line."""

    def __init__(self, seen: LogScan, names: frozenset[str]) -> None:
        self.seen, self._names = seen, names
        self._time: float | None = None
        self._latest: float | None = None
        self._dated = self._foreign = self._leaves = self._dead = False
        self._looks, self._ignored = 0, IgnoredExceptions()
        self._slurm = SlurmEnds()
        self._idle = IdleEngines()
        self._trouble: deque[ErrorLine] = deque(maxlen=LAST_TROUBLE)
        self._raised: list[tuple[ErrorLine, Nearby, ErrorLine | None]] = []  # the last, what it came of
        self._raised_words: set[str] = set()  # the words of these
        self._chained: set[str] = set()  # processes whose next exception replaces the one before it
        self.waiting: dict[LogPattern, SignMatch] = {}  # what does not count if work continues

    def note(self, number: int, parsed: LogLine) -> None:
        """Keep the time of a line, and whether it can be later than what is above it."""
        self.seen.begin, self.seen.end = self.seen.begin or number, number
        self._foreign = self.foreign(parsed)
        self._time = self._time if parsed.time is None else parsed.time
        if parsed.time is not None and not self._foreign:
            self._latest, self._dated = parsed.time, parsed.dated

    def take(self, number: int, parsed: LogLine, nearby: Nearby) -> None:
        """Look at one line that may matter, and whose time is noted."""
        if self._slurm.is_another(self._time):
            self._begin(None)
        if nearby.kind.turns:
            self._turn(number, parsed)
            self._slurm.note_job(parsed.words, self._time)
        found, trouble = judge_line(parsed, nearby)
        self._dead = self._dead or progress.DEAD in parsed.words
        if nearby.kind.works:
            self._follow(number, parsed)
        if self._leaves and parsed.words.startswith("[W"):
            return
        if found:
            self._note_failure(found, parsed)
        elif self._ignored.holds(number, parsed, nearby):
            return
        # Of a traceback only its ends count.
        loud = trouble or (parsed.loud and not nearby.indents(parsed.words))
        if is_chained(parsed.words) and len(self._chained) < MAX_RAISED:
            self._chained.add(parsed.who)
        elif found or loud:
            self._keep(number, parsed, nearby, found, trouble)
        # Or it is inside a traceback whose ends the log does not have.
        elif not parsed.level or (parsed.loud and not (self._trouble or self.seen.hits)):
            self._quiet(number, parsed, nearby)
        if parsed.words.startswith(TRACEBACK) and len(self._raised) < MAX_RAISED:
            self._ended(number, parsed, nearby)

    def _follow(self, number: int, parsed: LogLine) -> None:
        """Follow what a line shows of the work itself: its end, its rates, and how ranks join."""
        seen, words = self.seen, parsed.words
        self._leaves = self._leaves or progress.LEAVES in words
        if progress.RATES in words:
            self._rates(number, parsed)
        if COMMUNICATORS in words:
            seen.communicators.take(words, lambda: self.place(number, parsed))
        if process := connected(words):
            self._take_back(process)
        if any(map(words.__contains__, RANK_WORDS)):
            seen.ranks.take(words)
            self._note_addresses(parsed)

    def _take_back(self, process: str) -> None:
        """Drop what a process of NCCL warned of: it has connected all the same."""
        if any(warned(process, line.parsed.words) for line in self._trouble):
            self._trouble = deque((one for one in self._trouble if not warned(process, one.parsed.words)), LAST_TROUBLE)
            self.seen.strange[:] = [place for place in self.seen.strange if not warned(process, place.text)]
            for known, hit in list(self.seen.hits.items()):
                if hit.lines and all(warned(process, line.parsed.words) for line in hit.lines):
                    del self.seen.hits[known]
                    self.waiting.pop(known, None)

    def _note_failure(self, found: tuple[LogPattern, ...], parsed: LogLine) -> None:
        """Keep when something failed, and whose address it names."""
        failed, at, asked = self.seen.failed, self._time, self.seen.asked
        # An engine that ends in order, or has made tokens, had started: what did not start is another one.
        if asked and progress.NOT_STARTED in parsed.words and (self.seen.alive or progress.IN_ORDER in asked.text):
            self.seen.asked = None
        if any(known.fails for known in found):
            self._note_addresses(parsed)
            if at is not None and (not failed or abs(at - failed[-1]) >= 1.0):
                failed.append(at)

    def _note_addresses(self, parsed: LogLine) -> None:
        """Keep the addresses in a line; of a log in which each line is a failure, those in the first ones."""
        self._looks += 1
        if self._looks <= MAX_LOOKS and len(self.seen.addresses) < MAX_ADDRESSES:
            self.seen.addresses.update(addresses_in(f"{parsed.who} {parsed.words[:ADDRESSED]}"))

    def _turn(self, number: int, parsed: LogLine) -> None:
        """Take a line by which vLLM or Ray starts, or is asked to end."""
        seen, own = self.seen, progress.OWN_START in parsed.words
        if own or (not self._foreign and any(mark in parsed.words for mark in progress.START)):
            self._begin(self.place(number, parsed))
            self._note_addresses(parsed)
            seen.own = seen.own or own
            seen.follows = seen.follows or progress.HEADLESS.search(parsed.words) is not None
        elif progress.OWN_STOP in parsed.words:
            seen.stopped = self.place(number, parsed)
        elif progress.asks_to_end(parsed.words, alive=bool(seen.alive)) and not self._fails():
            seen.asked = seen.asked or self.place(number, parsed)
        elif seen.alive and (progress.STEP_ABORTED.match(parsed.words) or progress.STEP_CANCELLED.search(parsed.words)):
            if (first := self._slurm.step(self.place(number, parsed))) and not self._fails():
                seen.asked = seen.asked or first
        elif progress.ENDS_ITS_OWN.search(parsed.words):
            if len(seen.endings) < MAX_ENGINES:
                seen.endings.setdefault(parsed.who[:WHO], self.place(number, parsed))
        elif not self._foreign and any(mark in parsed.words for mark in progress.GROUP_START):
            self._forget(group=True)

    def _fails(self) -> bool:
        """Whether anything has failed since the server last answered."""
        seen, answered = self.seen, self.seen.alive.line if self.seen.alive else 0
        failing = (hit for known, hit in seen.hits.items() if known.kind <= SignKind.CONSEQUENCE)
        return bool(seen.strange) or any(hit.number > answered and not cancels(hit) for hit in failing)

    def _quiet(self, number: int, parsed: LogLine, nearby: Nearby) -> None:
        """Keep a line in which a program without levels reports a failure."""
        seen = self.seen
        if len(seen.quiet) == len(seen.murmurs) == FIRST_STRANGE:
            return
        if nearby.kind.quiet and any(map(parsed.words.__contains__, progress.QUIET_WORDS)):
            if len(seen.quiet) < FIRST_STRANGE:
                seen.quiet.append(self.place(number, parsed))
        elif len(seen.murmurs) < FIRST_STRANGE and nearby.may_fail(parsed, self._names):
            self._murmur(number, parsed)

    def _murmur(self, number: int, parsed: LogLine) -> None:
        """Keep one of the first lines of which only a word may be that of a failure."""
        if len(self.seen.murmurs) < FIRST_STRANGE:
            self.seen.murmurs.append(self.place(number, parsed))

    def _ended(self, number: int, parsed: LogLine, nearby: Nearby) -> None:
        """Keep the end of a traceback that is an exception by its place alone: its class is called otherwise."""
        below, last, near = nearby.last(parsed.who, self._names) or (0, parsed, nearby)
        if last.words.startswith(progress.INTERRUPTED):
            # It was asked to end; where it was then does not matter.
            if self._trouble and self._trouble[-1].number == number:
                self._trouble.pop()
            if not self._fails():
                self.seen.asked = self.place(number, parsed)
            return
        if below and not is_exception(last.words) and not any(classify(last.words, near.signs)):
            self._strange(ErrorLine(number + below, last, self._time))
            self._raise(ErrorLine(number + below, last, self._time), near)

    def _rates(self, number: int, parsed: LogLine) -> None:
        """Count the reports of an engine that has requests and makes no token."""
        if (works := self._idle.work(parsed.words)) is None:
            self.seen.hits.pop(STUCK, None)
        if works is not False:
            return
        line = ErrorLine(number, parsed, self._time)
        if first := self._idle.stuck_since(line):
            if STUCK not in self.seen.hits:
                self.seen.hits[STUCK] = SignMatch(STUCK, self._place(*first), self._place(*line))
            self.seen.hits[STUCK].count += 1
            self.seen.hits[STUCK].lines.append(line)

    def _keep(self, number: int, parsed: LogLine, nearby: Nearby, found: tuple[LogPattern, ...], trouble: bool) -> None:
        """Keep a line with signs or of an error."""
        line = ErrorLine(number, parsed, self._time)
        for known in found:
            self._add(known, line, nearby)
        harmless = any(known.kind is SignKind.HARMLESS for known in found)
        if harmless and is_exception(parsed.words):
            self._unannounce(parsed.who)
        if (trouble or parsed.loud) and not parsed.calm and not harmless:
            if found and all(known.kind is SignKind.NOTE for known in found):
                # It works, but not as it should; alone it is all that may be why a log ends.
                self._murmur(number, parsed)
                if is_exception(parsed.words) and len(self._raised) < MAX_RAISED:
                    self._raised += [(line, nearby, None)]
                return
            # Where others must prove that it is one, it may be an error that no failure explains.
            if not trouble or progress.announces(parsed.words) or any(known.is_sure for known in found):
                self._trouble.append(line)
                return
            self._strange(line)
            if is_exception(parsed.words):
                self._raise(line, nearby)

    def _unannounce(self, who: str) -> None:
        """Drop the lines of a process that announced an exception which proves harmless."""
        while (kept := self._trouble) and kept[-1].parsed.who == who and progress.announces(kept[-1].parsed.words):
            del kept[-1]

    def _strange(self, line: ErrorLine) -> None:
        """Keep a line of trouble that no failure explains."""
        self._trouble.append(line)
        if self._time is not None:
            self.seen.failed.append(self._time)
        if len(self.seen.strange) < FIRST_STRANGE:
            self.seen.strange.append(self._place(*line))

    def _raise(self, line: ErrorLine, nearby: Nearby) -> None:
        """Keep an exception that no failure explains."""
        raised, parsed, before = self._raised, line.parsed, None
        self._unask(parsed)
        if parsed.who in self._chained:
            self._chained.discard(parsed.who)
            before = next((at for at in reversed(range(len(raised))) if raised[at][0].parsed.who == parsed.who), None)
        if before is None and parsed.words in self._raised_words:
            return
        if listed := nearby.listed(parsed, self._names):
            for known in classify(listed[1].words, nearby.signs)[0]:
                self._add(known, ErrorLine(line.number + listed[0], listed[1], line.above), nearby)
        for known in by_place(parsed, nearby, self._names):
            self._add(known, line, nearby)
        if wraps(parsed.words) and len(self._chained) < MAX_RAISED:
            self._chained.add(parsed.who)
        if before is not None:
            old, _, root = raised[before]
            raised[before] = line, nearby, root if wraps(old.parsed.words) else root or old
            self._raised_words = {one.parsed.words for one, *_ in raised}
            return
        if len(raised) == MAX_RAISED:
            self._raised_words.discard(raised.pop(MAX_RAISED // 2)[0].parsed.words)
        raised.append((line, nearby, None))
        self._raised_words.add(parsed.words)

    def _unask(self, parsed: LogLine) -> None:
        """Take an exception of the process that started the others, and was not asked: that is why it ended them."""
        asked, alive = self.seen.asked, self.seen.alive
        other = asked and asked.process != parsed.who[:WHO] and (not alive or progress.TO_AN_ENGINE in asked.text)
        if other and leads(parsed.who) and not is_echo(parsed.words):
            self.seen.asked = None

    def break_off(self, lines: Sequence[tuple[int, LogLine]]) -> None:
        """Take the traceback within which the log ends as an error, where no other line is one."""
        for number, parsed in () if self._fails() or self.seen.quiet or self.seen.murmurs else lines:
            self._strange(ErrorLine(number, parsed, self._time))

    def settle(self, *, few: bool = False) -> int:
        """Let a piece go that was read, and with `few` most of what is kept; about how many bytes that is."""
        if few:
            del self._raised[1:-1]
            self._raised_words = {line.parsed.words for line, *_ in self._raised}
        self._raised = [(line, nearby.alone(), root) for line, nearby, root in self._raised]
        lines = [*self._trouble, *(line for line, *_ in self._raised)]
        return held(self.seen, lines, few=few) + sum(len(nearby.part) for _, nearby, _ in self._raised)

    def finish(self) -> None:
        """Complete what was kept as it was read: the last places of signs and of trouble, and exceptions."""
        for hit in (*self.seen.hits.values(), *self.seen.before.values()):
            hit.recent.extend(self._place(*one) for one in hit.lines)
            hit.last = hit.recent[-1]
        self.seen.trouble.extend(self._place(*one) for one in self._trouble)
        for one, nearby, root in self._raised:
            frame, more = nearby.frame(one.parsed.who, self._names), nearby.continued(one.parsed, self._names)
            more = (*nearby.statement(one.parsed, self._names), *more)
            self.seen.raised.append(Raised(self._place(*one), more, frame, self._place(*root) if root else None))

    def foreign(self, parsed: LogLine) -> bool:
        """Whether a line cannot be later than what is above it, though it is below it.

        It is older; or it has a date where what failed above it has no time at all, as a line of another log.
        """
        if parsed.time is None:
            return False
        if self._latest is None:
            return parsed.dated and bool(self.seen.hits or self._trouble)
        return parsed.time < self._latest - (DISORDER if parsed.dated == self._dated else DAY)

    def place(self, number: int, parsed: LogLine, time: float | None = None) -> LogPosition:
        """A line as it is shown; without a time of its own it is as old as the one above it that has."""
        return self._place(number, parsed, self._time if time is None else time)

    def _place(self, number: int, parsed: LogLine, above: float | None) -> LogPosition:
        text, time = redact(parsed.words)[:SHOWN], above if parsed.time is None else parsed.time
        return LogPosition(self.seen.name, number, text, parsed.who[:WHO], self.seen.host, time)

    def _add(self, known: LogPattern, line: ErrorLine, nearby: Nearby) -> None:
        parsed, hit = line.parsed, self.seen.hits.get(known)
        if hit is None:
            place = self._place(*line)
            hit = self.seen.hits[known] = SignMatch(known, place, place, more=nearby.continued(parsed, self._names))
        hit.count, hit.evidence = hit.count + parsed.times, None
        if len(parsed.words) > SHOWN:
            line = line._replace(parsed=parsed._replace(words=redact(parsed.words)[:SHOWN]))
        hit.lines.append(line)
        if known.waits:
            self.waiting[known] = hit

    def _begin(self, place: LogPosition | None) -> None:
        """A new run, of vLLM or, without a place, of a job: what was found belongs to the one before it."""
        seen = self.seen
        new = place is None or seen.started is None or place.line - seen.started.line > BANNER
        if new or (place and progress.OWN_START in place.text):
            self._forget(group=False)
        if place and seen.stopped and seen.stopped.time and place.time:
            seen.stops.append((seen.stopped.time, place.time))
        seen.started, seen.alive, seen.stopped, seen.asked = place, None, None, None
        self._leaves = self._dead = False
        self._idle.clear()
        self._slurm.clear()
        seen.endings.clear()

    def _forget(self, *, group: bool) -> None:
        """Put aside what an earlier run was about; a host's own trouble may still be why this one fails."""
        seen, stop, failed = self.seen, self.seen.stopped or self.seen.asked, set[str]()
        for known in [known for known in seen.hits if (known.host or not group) and not known.is_fact]:
            hit = seen.hits.pop(known)
            # What ends by a request writes symptoms of its end.
            planned = known.kind is not SignKind.CAUSE and stop and hit.first.line > stop.line
            if known.kind <= SignKind.CONSEQUENCE and not planned:
                seen.past = [*seen.past, hit][-MAX_PAST:]
            if known.kind <= SignKind.SYMPTOM and not planned:
                failed.add(known.failure)
                # Not what only looks like one: a rank that was killed yesterday explains nothing.
                if known.host and known.kind is SignKind.CAUSE and not group:
                    seen.before.setdefault(known, hit)
        seen.earlier.update(failed)  # once: several signs may be of one line
        if group:
            seen.before.clear()
        else:
            self._trouble.clear()
            self._overcome()
            self._raised_words, self._raised = set(), []
            seen.quiet.clear()
            seen.murmurs.clear()
            self.waiting.clear()
            seen.communicators.clear()
            seen.ranks = Ranks()

    def _overcome(self) -> None:
        """Put aside what no failure explains: it is over, however that came."""
        self.seen.overcome = [*self.seen.overcome, *self.seen.strange][:FIRST_STRANGE]
        self.seen.strange.clear()

    def ready(self) -> None:
        """Take a line by which a server is ready, however an earlier one ended."""
        self._dead = False

    def answered(self, place: LogPosition) -> None:
        """Take a line by which the server has answered."""
        # A stream that breaks was begun with 200, and is logged after the engine died.
        if self._dead:
            return
        self.seen.alive = place
        self.seen.outlive(line.parsed.words for line in self._trouble)
        self._overcome()
        self._raised, self._raised_words = [], set()
        self.seen.quiet.clear()
        self.seen.murmurs.clear()
        self.seen.communicators.clear()
        self.seen.ranks = Ranks()
        self.work_continued(place)

    def work_continued(self, place: LogPosition) -> None:
        """Take the last sign of progress in a piece: what only looked like a failure before it is none."""
        for known, hit in list(self.waiting.items()):
            if place.line > hit.number:
                hit.evidence = place
                del self.waiting[known]
