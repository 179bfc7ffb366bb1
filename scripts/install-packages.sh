#!/usr/bin/env bash
# Installs Debian packages that tests need: NAME is the script that wants them, and goes before each message.
set -euo pipefail
name=$1
shift
if ! command -v apt-get >/dev/null; then
  echo "$name: install $*, then run this again" >&2
  exit 3
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "$name: installing $*" >&2
# Debian starts a service when it installs one; the tests want only the program.
policy=/usr/sbin/policy-rc.d
made=""
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
  $sudo chmod +x "$policy"
  made=1
fi
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
[ -z "$made" ] || $sudo rm -f "$policy"
