#!/bin/sh
# Which measured runs constants may be fitted on, and which are only reported: a run is for fitting where the first byte
# of the SHA-256 of its id is even. Usage: scenarios/published/split.sh FILE...; prints "fitting ID" or "reported ID", a
# line for each run, in the files' order. `twinspeed validate --cases FILE` scores the two halves by the same rule.
set -eu
[ $# -gt 0 ] || { echo "usage: split.sh FILE..." >&2; exit 2; }
grep -ho '"id": *"[^"]*"' -- "$@" | sed 's/^"id": *"//; s/"$//' | while IFS= read -r id; do
  case $(printf '%s' "$id" | sha256sum) in
    ?[02468ace]*) printf 'fitting %s\n' "$id" ;;
    *) printf 'reported %s\n' "$id" ;;
  esac
done
