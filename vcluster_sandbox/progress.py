"""Lines of progress with the time that is left, where that is known."""

from __future__ import annotations

import time

from vcluster_sandbox.local_docker import Report

DOWNLOADING = "downloading the CPU engine's wheels (480 MB)"
HOST_IMAGE = "building the host image (sshd and a Docker engine)"
INSTALLING = "installing the CPU engine"
IMAGE_AND_MODEL = "making its image and the model"
STARTING = "starting sshd and Docker on the hosts"
# The steps of a sandbox from nothing, in their order, each with its seconds on two cores that have nothing else to do.
# Only their shares of the whole count.
SECONDS = {DOWNLOADING: 38, HOST_IMAGE: 13, INSTALLING: 28, IMAGE_AND_MODEL: 24, STARTING: 5}
# Less is not worth a word.
MIN_LEFT = 5


class TimeLeft:
    """How long the steps that are left will take, by how long those before took: unknown until one has ended."""

    def __init__(self) -> None:
        self._step, self._began = "", 0.0
        self._took, self._recorded = 0.0, 0.0

    def begin(self, text: str, now: float) -> None:
        """Begin a step, where this is the line of one."""
        if text not in SECONDS or text == self._step:
            return
        if self._step:
            self._took += now - self._began
            self._recorded += SECONDS[self._step]
        self._step, self._began = text, now

    def words(self, now: float) -> str:
        """`, about 70 s left`; empty where that is not known."""
        if not self._recorded:
            return ""
        steps = [*SECONDS]
        ahead = sum(SECONDS[step] for step in steps[steps.index(self._step) :])
        left = ahead * self._took / self._recorded - (now - self._began)
        return f", about {left:.0f} s left" if left >= MIN_LEFT else ""


def with_time_left(report: Report) -> Report:
    """Report as `report` does; the line of a step has the time that is left, which is shown again with the line."""
    left = TimeLeft()

    def report_line(text: str) -> None:
        now = time.monotonic()
        left.begin(text, now)
        report(f"{text}{left.words(now) if text in SECONDS else ''}")

    return report_line
