#!/bin/sh
# Install the engine from /build, where the wheels are: mounted, not copied, so that no layer of the image holds them.
set -eu
python3 -m venv /opt/venv
install() {
  /opt/venv/bin/python -m pip --disable-pip-version-check install --quiet --no-index --no-deps --no-compile "$@"
}
install /build/wheels/*.whl
install --no-build-isolation /build/plugin
/opt/venv/bin/python /build/trim.py
