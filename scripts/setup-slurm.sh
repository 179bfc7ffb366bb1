#!/usr/bin/env bash
# The tests of `vcluster slurm` submit jobs to a real Slurm, which they start themselves: this only sees that the
# programs are there.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
if [ "$(command -v munged slurmctld slurmd sbatch srun | wc -l)" = 5 ]; then exit 0; fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
if ! command -v apt-get >/dev/null; then
  echo "setup-slurm: install slurmctld, slurmd, Slurm's clients and munge, then run this again" >&2
  exit 3
fi
echo "setup-slurm: installing Slurm and munge" >&2
# Debian starts a service when it installs one; the tests want only the program.
policy=/usr/sbin/policy-rc.d
made=""
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
  $sudo chmod +x "$policy"
  made=1
fi
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
  slurmctld slurmd slurm-client munge >/dev/null
[ -z "$made" ] || $sudo rm -f "$policy"
