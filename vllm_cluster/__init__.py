"""Turn a list of machines with SSH and Docker into one vLLM endpoint."""

__version__ = "0.1.0"
