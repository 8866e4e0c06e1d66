#!/bin/sh
# Installs the Debian packages of packages.txt that are missing. Works as root or through sudo; says what it does.
#   ./install.sh          install what is missing
#   ./install.sh --list   only say what is missing
set -eu
cd "$(dirname "$0")"

missing=""
for package in $(sed 's/#.*//' packages.txt); do
  status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
  [ "$status" = "install ok installed" ] || missing="$missing $package"
done

if [ -z "$missing" ]; then
  echo "install.sh: every package of packages.txt is installed."
  exit 0
fi
echo "install.sh: missing packages:$missing"
[ "${1:-}" != "--list" ] || exit 0

if ! command -v apt-get >/dev/null 2>&1; then
  echo "install.sh: this machine has no apt-get; install the equivalents of these packages yourself." >&2
  exit 4
fi
if [ "$(id -u)" = 0 ]; then
  sudo=""
elif command -v sudo >/dev/null 2>&1; then
  sudo="sudo"
else
  echo "install.sh: run it as root, or install sudo: su -c ./install.sh" >&2
  exit 4
fi
run() {
  echo "install.sh: $*"
  "$@" </dev/null
}
export DEBIAN_FRONTEND=noninteractive
run $sudo apt-get update -q
run $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing
