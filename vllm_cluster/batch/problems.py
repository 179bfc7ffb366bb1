"""Why a batch cannot begin or continue."""


class BatchProblem(Exception):
    """A reason for a person; `usage` where the files or options do not fit."""

    def __init__(self, message: str, *, usage: bool = False, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.usage, self.hint = message, usage, hint


class InUse(BatchProblem):
    """Another run writes the same file."""
