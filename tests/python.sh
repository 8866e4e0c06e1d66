#!/bin/sh
# Usage: python.sh PYTHON BUILD_FOLDER: makes a wheel, unpacks it and runs python.py with nothing else in its way.
set -eu
python=$1 build=$(cd "$2" && pwd)
source=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d /tmp/twinspeed-python-XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/site" "$work/tmp"
wheel=$("$python" "$source/library/python/make_wheel.py" "$build" "$work/dist")
"$python" -m zipfile -e "$wheel" "$work/site"
env -i PATH="$PATH" TMPDIR="$work/tmp" PYTHONPATH="$work/site" PYTHONDONTWRITEBYTECODE=1 \
  "$python" "$source/tests/python.py" "$source/tests/golden/estimators.json" "$build/twinspeed"
