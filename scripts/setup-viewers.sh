#!/usr/bin/env bash
# `make promises` looks at the cluster with what people look at it with: a browser without a window, and Prometheus.
# This only sees that the programs are there.
set -euo pipefail
missing=()
command -v chromium chromium-headless-shell chromium-browser google-chrome >/dev/null || missing+=(chromium)
{ command -v prometheus && command -v promtool; } >/dev/null || missing+=(prometheus)
[ "${#missing[@]}" -gt 0 ] || exit 0
"$(dirname "$0")/install-packages.sh" setup-viewers "${missing[@]}"
