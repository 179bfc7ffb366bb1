#!/usr/bin/env bash
# The tests of `vcluster slurm` submit jobs to a real Slurm, which they start themselves: this only sees that the
# programs are there.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
if [ "$(command -v munged slurmctld slurmd sbatch srun | wc -l)" = 5 ]; then exit 0; fi
"$(dirname "$0")/install-packages.sh" setup-slurm slurmctld slurmd slurm-client munge
