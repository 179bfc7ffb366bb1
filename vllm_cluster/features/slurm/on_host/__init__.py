"""What runs on the nodes of a Slurm job."""
