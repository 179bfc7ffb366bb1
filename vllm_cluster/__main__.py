"""`python -m vllm_cluster` is `vcluster`."""

from vllm_cluster.cli.app import main

main()
