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
{
  status=0
  ctest --test-dir "$folder" --output-on-failure --no-tests=error "$@" 2>&1 || status=$?
  echo "run.sh: $status"
} | awk -v log_file="$log" '
  /^run\.sh: [0-9]+$/ { status = $2; next }
  /^[0-9]+% tests passed, / { ended = 1 }
  ended { summary = summary $0 "\n"; next }
  { print; fflush() }
  END {
    while ((getline line < log_file) > 0) {
      if (line ~ /^assertions: [0-9]+ at [0-9]+ places$/) {
        split(line, part, " ")
        assertions += part[2]
        places += part[4]
        suites++
      }
      if (line ~ /^[0-9]+%: Checks: [0-9]+,/) { split(line, part, "[ ,]+"); cases += part[3] }
    }
    printf "%.0f assertions at %d places held, in %d cases of %d suites\n", assertions, places, cases, suites
    printf "%s", summary
    exit status
  }'
