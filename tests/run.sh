#!/bin/sh
# Runs the tests of several build folders as one run of CTest, so that a long test of one overlaps with those of the
# others. CTest's summary is printed last, after the number of assertions that held and of cases; the status is CTest's.
#   run.sh FOLDER BUILD... [-- CTEST_OPTION...]
# FOLDER is made, and keeps CTest's logs: `ctest --test-dir FOLDER --rerun-failed` runs what failed again.
set -eu
folder=$1
shift
mkdir -p "$folder"
: >"$folder/CTestTestfile.cmake"
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  printf 'subdirs([==[%s]==])\n' "$(cd "$1" && pwd)" >>"$folder/CTestTestfile.cmake"
  shift
done
[ $# -eq 0 ] || shift
log=$folder/Testing/Temporary/LastTest.log
rm -f "$log"

# CTest's output as it comes, its summary kept back until the sums are printed. Not in awk, some of which wait for a block.
{
  status=0
  ctest --test-dir "$folder" --output-on-failure --no-tests=error "$@" 2>&1 || status=$?
  echo "run.sh: $status"
} | {
  status=1 summary=
  while IFS= read -r line; do
    case $line in
    "run.sh: "[0-9]*) status=${line#run.sh: } ;;
    [0-9]*"% tests passed, "*) summary=$line ;;
    *) if [ -n "$summary" ]; then summary="$summary
$line"; else printf '%s\n' "$line"; fi ;;
    esac
  done
  [ ! -f "$log" ] || awk '
    /^assertions: [0-9]+ at [0-9]+ places$/ { assertions += $2; places += $4; suites++ }
    /^[0-9]+%: Checks: [0-9]+,/ { cases += $3 }
    END { printf "%.0f assertions at %d places held, in %d cases of %d suites\n", assertions, places, cases, suites }
  ' "$log"
  printf '%s\n' "$summary"
  exit "$status"
}
