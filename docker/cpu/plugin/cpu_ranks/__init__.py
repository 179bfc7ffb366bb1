"""A vLLM platform plug-in: CPU ranks placed by Ray, on any number of hosts."""


def register() -> str:
    """Name the platform class.

    vLLM calls this while it is still deciding what the current platform is, so nothing of vLLM may be imported here:
    almost every module of it asks for the current platform and would find half of one.
    """
    return "cpu_ranks.platform.CpuRanksPlatform"
