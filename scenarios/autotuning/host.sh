#!/bin/sh
# Is the tuner's winner the best there is? On this machine: a space of 96 configurations, searched with at most nine of them
# trained, and then all of them trained in interleaved rounds.
#
#   scenarios/autotuning/host.sh [PROGRAM] [ROUNDS]      (default: build/twinspeed, 5)  prints a Markdown table
#
# Leave the machine alone meanwhile. Status 1: the winner is more than 5 % slower than the best.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-build/twinspeed}
rounds=${2:-5}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
awk 'BEGIN { srand(7); for (i = 0; i < 60000; i++) printf "%c", 97 + int(26 * rand() * rand()) }' > "$out/text"

"$program" calibrate --quick -m "$here/host.json" --micro-batch 4,8,16 -o "$out/host.json" --quiet > /dev/null
space="-m $here/host.json --profile $out/host.json --seq 64 -b 32 -n 1,2 --threads 1,2 --micro-batches 4,8,16,32 --axes off --data $out/text --end-profile-step 7 --quiet"
# shellcheck disable=SC2086
"$program" tune $space --validate 6 -o "$out/picked" > /dev/null
# shellcheck disable=SC2086
"$program" tune $space --validate 1000 --tuner gridsearch --rounds "$rounds" --race 12 -o "$out/all" > /dev/null
winner=$(awk -F'|' '$2 ~ /^ global/ { gsub(/ /, "", $5); print $5 }' "$out/picked/summary.txt")

# Name and samples/s of every trial, the fastest first.
awk '/"trials":/ { on = 1 } /"median_error":/ { on = 0 }
  on && /"name":/ { split($0, part, "\""); name = part[4] }
  on && /"samples_per_s":/ { sub(/.*:[ \t]*/, ""); sub(/,/, ""); print $0, name }' "$out/all/results.json" | sort -rn > "$out/sorted"
echo "| | configuration | samples/s, measured | of the best |"
echo "|---|---|---|---|"
awk -v winner="$winner" 'NR == 1 { best = $1 } { count = NR }
  NR <= 5 || $2 == winner { printf "| %d | %s%s | %.1f | %.1f %% |\n", NR, $2, $2 == winner ? " (the winner)" : "", $1, 100 * $1 / best }
  { last = $0 } END { split(last, l); printf "| %d | %s | %.1f | %.1f %% |\n", count, l[2], l[1], 100 * l[1] / best }' "$out/sorted"
awk -v winner="$winner" 'NR == 1 { best = $1 } $2 == winner { share = $1 / best } END { exit !(share >= 0.95) }' "$out/sorted"
