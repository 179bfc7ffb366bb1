#!/usr/bin/env bash
# The contract tests talk to a real sshd and a real image registry, which they start themselves, and to every login
# shell: this only sees that the programs are there.
set -euo pipefail
there() { [ -x /usr/sbin/sshd ] && command -v dash bash zsh fish tcsh bsd-csh docker-registry; }
if [ "$(there | wc -l)" = 7 ]; then exit 0; fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
if ! command -v apt-get >/dev/null; then
  echo "install an SSH server (openssh-server), which the tests start on loopback, an image registry (docker-registry), and dash, bash, zsh, fish, tcsh, csh" >&2
  exit 3
fi
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
  openssh-server docker-registry dash bash zsh fish tcsh csh >/dev/null
[ -z "$made" ] || $sudo rm -f "$policy"
