"""A cluster of real hosts on one machine: sshd, Docker engines, Ray and vLLM on the CPU, in containers."""

from vcluster_sandbox.lifecycle import down, up

__all__ = ["down", "up"]
