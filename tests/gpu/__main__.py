"""`python -m tests.gpu INVENTORY -o REPORT`: measure GPU hosts with vcluster; writes REPORT.json and REPORT.md."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu import heal
from tests.gpu.bench import bench
from tests.gpu.cluster import Cluster, Failed, opened
from tests.gpu.report import Report
from vllm_cluster.kernel.errors import VclusterError

STEPS = ("facts", "check", "up", "serve", "bench", "heal", "rollback", "down")
# Weights and KV cache cannot fit into this share of any GPU.
UNFIT = "--gpu-memory-utilization 0.02"


@dataclass
class Measuring:
    """One run over a cluster."""

    cluster: Cluster
    report: Report
    options: argparse.Namespace
    end: float

    def left(self) -> float:
        """Seconds."""
        return self.end - time.monotonic()

    def run(self) -> bool:
        """Every step in order; a step that fails is reported and the next begins. Whether all went well."""
        well = True
        for step in self.options.steps:
            if self.options.resume and self.report.has(step):
                continue
            if self.left() < 5:
                self.report.keep(step, {"skipped": "no time was left"})
                continue
            show_progress(f"{step} ({self.left():.0f} s left)")
            try:
                self.report.keep(step, getattr(self, f"do_{step}")())
            except (Failed, VclusterError) as error:
                self.report.keep(step, {**self.report.steps.get(step, {}), "failed": str(error)})
            found = self.report.steps[step]
            well = well and self.report.has(step)
            show_progress(f"{step}: { ({k: v for k, v in found.items() if k != 'document'}) }"[:1500])
        return well

    def do_facts(self) -> dict[str, Any]:
        run = self.cluster.vcluster("check", "--facts", seconds=self.left()).ok()
        return {"seconds": run.seconds, "document": list(run.events)}

    def do_check(self) -> dict[str, Any]:
        """Exit 3 is an answer too: what is wrong."""
        deep = [] if self.options.shallow else ["--deep"]
        run = self.cluster.vcluster("check", *deep, seconds=self.left())
        if not run.events:
            raise Failed(run.failure)
        document = run.events[-1]
        findings = [{key: row.get(key) for key in ("host", "code", "message")} for row in document.get("findings", [])]
        rows = (document.get("allreduce") or {}).get("rows", [])
        return {
            "exit": run.code,
            "seconds": run.seconds,
            "findings": findings,
            "all-reduce": rows,
            "document": document,
        }

    def do_up(self) -> dict[str, Any]:
        run = self.cluster.vcluster("up", "--yes", seconds=self.left()).ok()
        return {"seconds": run.seconds, "phases": self._rows(run.phases())}

    def do_serve(self) -> dict[str, Any]:
        flags = ["--", *self.options.flags.split()] if self.options.flags else []
        run = self.cluster.vcluster("serve", self.options.model, "--yes", *flags, seconds=self.left()).ok()
        return {"seconds": run.seconds, **self._logged_figures(), "phases": self._rows(run.phases())}

    def _logged_figures(self) -> dict[str, Any]:
        wanted = "KV cache size|Available KV cache memory|Model loading took|Loading weights took|init engine"
        log = self.cluster.inside(
            self.cluster.head, f"grep -E '{wanted}' /var/lib/vcluster/serve.log | tail -n 12"
        ).text
        tokens = re.findall(r"KV cache size: ([\d,]+) tokens", log)
        kv_tokens = int(tokens[-1].replace(",", "")) if tokens else None
        return {"kv_tokens": kv_tokens, "log": [line[-160:] for line in log.splitlines()]}

    @staticmethod
    def _rows(phases: list[tuple[str, float]]) -> list[dict[str, Any]]:
        return [{"seconds": seconds, "what": text} for text, seconds in phases if seconds >= 0.05]

    def do_bench(self) -> dict[str, Any]:
        name = self.cluster.answers()
        if name is None:
            raise Failed("nothing answers")
        figures: dict[str, Any] = {"rounds": []}
        for _ in range(self.options.rounds):
            for number in self.options.at_once:
                if self.left() < 20:
                    return {**figures, "broken_off": "no time was left"}
                found = bench(self.cluster, self.options.model, name, number, tokens=self.options.tokens)
                figures["rounds"].append(found)
                self.report.keep("bench", figures)
        return figures

    def do_heal(self) -> dict[str, Any]:
        figures: dict[str, Any] = {"kills": []}
        for what in self.options.kills:
            if self.left() < 30:
                return {**figures, "broken_off": "no time was left"}
            try:
                found = heal.heal(self.cluster, what, min(self.left(), self.options.heal_seconds))
            except Failed as error:
                found = {"killed": what, "failed": str(error)}
                figures["failed"] = f"{what} and perhaps more"
            figures["kills"].append(found)
            self.report.keep("heal", figures)
            show_progress(f"heal: {found}")
        return figures

    def do_rollback(self) -> dict[str, Any]:
        """A second model that cannot fit is asked for: what the clients of the first one see."""
        before = self.cluster.answers()
        if before is None:
            raise Failed("nothing answers before")
        began = time.monotonic()
        argv = ["serve", self.options.model, "--name", "too-large", "--yes", "--", *self.options.unfit.split()]
        run = self.cluster.vcluster(*argv, seconds=self.left())
        figures = {"exit": run.code, "seconds": run.seconds, "failure": run.failure, "answers_after": None}
        while self.left() > 5 and figures["answers_after"] is None:
            if self.cluster.answers(seconds=heal.PROBE_SECONDS) == before:
                figures["answers_after"] = round(time.monotonic() - began, 1)
        if run.code == 0 or figures["answers_after"] is None:
            figures["failed"] = "it was served" if run.code == 0 else "the first model does not answer again"
        return figures

    def do_down(self) -> dict[str, Any]:
        return {"seconds": self.cluster.vcluster("down", "--yes", seconds=max(120.0, self.left())).ok().seconds}


def show_progress(text: str) -> None:
    """A line for whoever waits."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def words(known: tuple[str, ...] | None = None) -> Callable[[str], list[str]]:
    """A list with commas, of known words."""

    def read(text: str) -> list[str]:
        found = [word for word in text.split(",") if word]
        if known and (unknown := [word for word in found if word not in known]):
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(known)}")
        return found

    return read


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(prog="python -m tests.gpu", description=__doc__)
    made.add_argument("inventory", type=Path)
    made.add_argument("-o", "--output", type=Path, default=Path("gpu-report"), help="REPORT, without .json or .md")
    made.add_argument("--steps", type=words(STEPS), default=list(STEPS), help=f"of {','.join(STEPS)}")
    made.add_argument("--resume", action="store_true", help="leave out what REPORT.json has already")
    made.add_argument("--seconds", type=float, default=3600.0, help="begin nothing that this leaves no time for")
    made.add_argument("--model", default="bench/llama8b", help="repository or folder, as for `vcluster serve`")
    made.add_argument("--flags", default="", help="for vLLM, one text: '--load-format dummy --max-model-len 8192'")
    made.add_argument("--unfit", default=UNFIT, help="flags with which the model does not fit")
    made.add_argument("--at-once", type=lambda text: [int(word) for word in text.split(",")], default=[16, 256])
    made.add_argument("--tokens", type=int, default=128, help="in, and out, of a request")
    made.add_argument("--rounds", type=int, default=3)
    made.add_argument("--kills", type=words(tuple(heal.KILLS)), default=list(heal.KILLS))
    made.add_argument("--heal-seconds", type=float, default=420.0, help="how long one kill may take to heal")
    made.add_argument("--shallow", action="store_true", help="check without --deep")
    return made


def main() -> int:
    """Measure, write the report; 0 when every step went well."""
    options = parser().parse_args()
    end = time.monotonic() + options.seconds
    report = Report.resumed(options.output) if options.resume else Report(options.output)
    with suppress(KeyboardInterrupt), opened(options.inventory) as cluster:
        return 0 if Measuring(cluster, report, options, end).run() else 1
    return 130


if __name__ == "__main__":
    sys.exit(main())
