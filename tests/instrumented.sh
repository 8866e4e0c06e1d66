#!/bin/sh
# Every object that the engine's module is linked from is instrumented by the address sanitizer; so is the module itself.
#   instrumented.sh OBJECT...
bad=0
for object; do
  nm -u "$object" | grep -q ' __asan_' || { echo "$object is not instrumented"; bad=1; }
done
echo "$# files looked at"
exit "$bad"
