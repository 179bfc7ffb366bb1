"""What exit codes mean, as the help of several verbs has it, and the headings of verbs in the help."""

from __future__ import annotations

DAILY, MODELS, USE, MORE = "Every day", "Models and images", "Use the model", "More"

LEASE = {
    2: "wrong usage or inventory, or a question without a terminal and without --yes",
    3: "an error was found before anything was changed",
    4: "a host is unreachable",
    75: "another run changes these hosts; some verbs can --wait for it",
}
REQUEST = {**LEASE, 75: f"{LEASE[75]}, or another request replaced this one"}
READ = {2: "wrong usage or inventory", 4: "a host is unreachable"}
