#!/bin/sh
# Every object that the engine's module is linked from is instrumented by the address sanitizer; so is the module itself.
#   instrumented.sh OBJECT...
bad=0
for object; do
  grep -q __asan_ "$object" || { echo "$object is not instrumented"; bad=1; } # among its symbols
done
echo "$# files looked at"
exit "$bad"
