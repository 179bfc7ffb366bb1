#!/bin/sh
# Install the engine from /build, where the wheels are: mounted, not copied, so that no layer of the image holds them.
set -eu
python3 -m venv /opt/venv
install="/opt/venv/bin/python -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile"
# Two at once: pip unpacks on one core. The largest are dealt over both.
half=$(mktemp -d)
ls -S /build/wheels/*.whl | awk -v half="$half" '{ print > (half "/" NR % 2) }'
printf '%s\n' "$half"/* | xargs -P 2 -n 1 $install --requirement
rm -r "$half"
$install --no-build-isolation /build/plugin
/opt/venv/bin/python /build/trim.py
