#!/bin/sh
# Usage: install.sh BUILD_FOLDER LIBRARY_FOLDER_NAME
set -eu
build=$1 libdir=$2
source=$(cd "$(dirname "$0")/.." && pwd)
prefix=$(mktemp -d /tmp/twinspeed-install-XXXXXX)
trap 'rm -rf "$prefix"' EXIT
unset TWINSPEED_MODULES
cmake --install "$build" --prefix "$prefix" >/dev/null

# An installed header includes installed headers alone.
for header in $(cd "$prefix/include/twinspeed" && grep -rho '#include "[^"]*"' . | sed 's/.*"\(.*\)"/\1/' | sort -u); do
  test -e "$prefix/include/twinspeed/$header" || { echo "an installed header includes $header, which is not: cmake/install.cmake" >&2; exit 1; }
done

cat >"$prefix/user.c" <<'END'
#include <stdio.h>
#include <autotune/autotune.h>
#include <autotune/tuning.h>
#include <job/deepspeed_comparison.h>
#include <job/notes.h>
#include <job/own_engine.h>
#include <launch/supervise.h>
#include <models/hardware/profile_build.h>
#include <real/real.h>
#include <traces/compare.h>
#include <traces/measurements.h>
#include <traces/plot.h>
int main(void) {
  tws_network *network;
  tws_error err = {0};
  if (tws_network_load("gpt2", 0, &network, &err) != TWS_OK) return 1;
  printf("%lld\n", (long long)tws_network_params(network, 0));
  tws_network_destroy(network);
  return 0;
}
END
export PKG_CONFIG_PATH="$prefix/$libdir/pkgconfig"
cc -std=c11 -o "$prefix/user" "$prefix/user.c" $(pkg-config --cflags --libs twinspeed-core) # of this prefix, not the build's
test "$("$prefix/user")" = 124439808

# The shared library exports the names of its header alone, and a program that was linked with it runs.
names=$(nm -D --defined-only "$prefix/$libdir/libtwinspeed.so" | sed -n 's/.* T \([a-z0-9_]*\)@@.*/\1/p' | sort)
declared=$(grep -o 'twinspeed_[a-z0-9_]*(' "$prefix/include/twinspeed.h" | tr -d '(' | sort -u)
test "$names" = "$declared" || { echo "libtwinspeed.so exports other names than twinspeed.h declares" >&2; exit 1; }
test -z "$(nm -D --defined-only "$prefix/$libdir/libtwinspeed.so" | grep -v ' [TA] ')" ||
  { echo "libtwinspeed.so exports data" >&2; exit 1; }
cc -std=c11 -Wall -Wextra -Werror -o "$prefix/planning" "$source/library/examples/planning.c" \
  $(pkg-config --cflags --libs twinspeed) "-Wl,-rpath,$prefix/$libdir"
"$prefix/planning" gpt2 dgx-a100 >"$prefix/planned"
grep -q '^gpt2 on dgx-a100: .* GiB of a device' "$prefix/planned"

cc -std=c11 -Wall -Wextra -Werror -o "$prefix/network" "$source/library/examples/network.c" \
  $(pkg-config --cflags --libs twinspeed) "-Wl,-rpath,$prefix/$libdir"
test "$("$prefix/network")" = "62006 parameters"

# Training needs the engine's module, which is found next to the library.
if [ -e "$build/twinspeed_real.so" ]; then
  cc -std=c11 -Wall -Wextra -Werror -o "$prefix/training" "$source/library/examples/training.c" \
    $(pkg-config --cflags --libs twinspeed) "-Wl,-rpath,$prefix/$libdir"
  (cd "$prefix" && ./training >trained)
  grep -q '^resumed after step 4 with {"epoch": 1}$' "$prefix/trained"
  test "$(sed -n 's/^step 6: loss \([0-9.]*\),.*/\1/p' "$prefix/trained")" = "$(sed -n 's/^step 6 again: loss //p' "$prefix/trained")"
fi

"$prefix/bin/twinspeed" estimate -m gpt2 --cluster dgx-a100 --quiet --json >"$prefix/estimate.json"
"$prefix/bin/twinspeed" --version >"$prefix/version"
for module in simulator:sim engine:real; do
  # a module that was built is found from the installed program
  if [ -e "$build/twinspeed_${module#*:}.so" ]; then grep -q "${module%:*} *yes" "$prefix/version"; fi
done
test -s "$prefix/share/man/man1/twinspeed.1"
test -s "$prefix/share/twinspeed/scenarios/plots/timeline.gp"
test -s "$prefix/share/twinspeed/scenarios/published/sources.json"
for link in $(grep -oh "](\([^)#]*\)" "$prefix/share/doc/twinspeed/README.md" | sed 's/](//' | grep -v http); do
  test -e "$prefix/share/doc/twinspeed/$link" || { echo "the installed README leads nowhere: $link" >&2; exit 1; }
done
echo "installed: works"
