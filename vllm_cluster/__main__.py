"""`python -m vllm_cluster` is `vcluster`."""

from vllm_cluster.cli.main import main

main()
