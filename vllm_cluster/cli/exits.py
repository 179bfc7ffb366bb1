"""What exit codes mean, as the help of several verbs has it."""

from __future__ import annotations

LEASE = {
    2: "wrong usage or inventory, or a question without a terminal and without --yes",
    3: "an error was found before anything was changed",
    4: "a host is unreachable",
    75: "another run changes these hosts (--wait waits for it)",
}
REQUEST = {**LEASE, 75: f"{LEASE[75]}, or another request replaced this one"}
READ = {2: "wrong usage or inventory", 4: "a host is unreachable"}
STATUS = {
    0: "the cluster is as in the inventory, and the requested model is ready; with --wait, what it waited for",
    1: "the cluster differs, or the model is not ready; with --wait, it cannot become ready",
    3: "with --wait or --history: the cluster is not up",
    **READ,
    124: "--wait timed out",
}
ASK = {
    1: "the answer broke off",
    2: "wrong usage or inventory, or a request that the server refuses",
    3: "no model is ready",
    4: "a host is unreachable",
}
BATCH = {
    0: "every request is answered",
    1: "some requests have no answer, or the server did not come back",
    2: "wrong usage or inventory, or OUT holds answers to another input",
    3: "no model is ready, or another one than that of OUT",
    4: "a host is unreachable",
    75: "another run writes OUT",
}
