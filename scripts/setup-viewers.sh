#!/usr/bin/env bash
# `make promises` looks at the cluster with what people look at it with: a browser without a window, and Prometheus.
# This only sees that the programs are there.
set -euo pipefail
missing=()
command -v chromium chromium-headless-shell chromium-browser google-chrome >/dev/null || missing+=(chromium)
{ command -v prometheus && command -v promtool; } >/dev/null || missing+=(prometheus)
[ "${#missing[@]}" -gt 0 ] || exit 0
if ! command -v apt-get >/dev/null; then
  echo "setup-viewers: install ${missing[*]}, then run this again" >&2
  exit 3
fi
sudo=""
[ "$(id -u)" = 0 ] || sudo=sudo
echo "setup-viewers: installing ${missing[*]}" >&2
# Debian starts a service when it installs one; the tests want only the program.
policy=/usr/sbin/policy-rc.d
made=""
if [ ! -e "$policy" ]; then
  printf '#!/bin/sh\nexit 101\n' | $sudo tee "$policy" >/dev/null
  $sudo chmod +x "$policy"
  made=1
fi
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
[ -z "$made" ] || $sudo rm -f "$policy"
