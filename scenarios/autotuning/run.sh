#!/bin/sh
# The models of DeepSpeed's autotuning examples on 16 V100: what `twinspeed tune` predicts to be the best beside what
# DeepSpeed's autotuner found by running experiments (published.csv), and the time that either took.
#
#   scenarios/autotuning/run.sh [PROGRAM]      (default: build/twinspeed)  prints a Markdown table
#
# The points are those that DeepSpeed's autotuner would run, were its experiments as predicted (docs/tuning.md). BERT's and
# DistilBERT's examples classify texts, and so do the files beside this one.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-build/twinspeed}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Sequences a second, and the name, of the best of a search: the last row of its summary.
best() {
  awk -F'|' '$2 ~ /^ global/ { gsub(/ /, "", $4); gsub(/ /, "", $5); print $4, $5 }' "$1/summary.txt"
}

search() { # folder, model, type, tokens, options
  to=$1 file=$2 type=$3 length=$4
  shift 4
  "$program" tune -m "$file" --dtype "$type" --seq "$length" --cluster dgx2-v100 --profile v100-sxm3-32gb --quiet \
    --runtime transformers-2021 -n 16 --axes off --recomputes none -o "$to" "$@" > "$to.txt" 2> "$to.err" \
    || { cat "$to.err" >&2; return 1; }
}

echo "| model | published best | samples/s | search | predicted best | samples/s | search | published best, predicted | share of the predicted best |"
echo "|---|---|---|---|---|---|---|---|---|"
grep -v '^#' "$here/published.csv" | while IFS=, read -r name file dtype tokens stage micro speed experiments minutes first largest; do
  [ "$largest" = 0 ] && limit= || limit=", \"max_train_batch_size\": $largest"
  echo "{\"train_micro_batch_size_per_gpu\": $first, \"autotuning\": {\"enabled\": true, \"fast\": true$limit}}" > "$out/$name.json"
  case $file in *.json) model=$here/$file ;; *) model=$file ;; esac
  begin=$(date +%s.%N)
  search "$out/$name" "$model" "$dtype" "$tokens" -c "$out/$name.json"
  end=$(date +%s.%N)
  points=$(awk '/points/ { for (i = 1; i < NF; i++) if ($(i + 1) ~ /^points/) print $i }' "$out/$name/summary.txt")
  set -- $(best "$out/$name")
  if search "$out/$name-at" "$model" "$dtype" "$tokens" --stages "$stage" --micro-batches "$micro" --accumulations 1; then at=$(best "$out/$name-at" | cut -d' ' -f1); else at=0; fi
  echo "$1 $2 $begin $end $points $at" | awk -v name="$name" -v stage="$stage" -v micro="$micro" -v speed="$speed" \
    -v experiments="$experiments" -v minutes="$minutes" '{
      split($2, part, "_"); found = substr(part[1], 2); for (i in part) if (part[i] ~ /^tmbspg/) size = substr(part[i], 7)
      printf "| %s | ZeRO-%s, %s | %.4g | %d experiments, %d min | ZeRO-%s, %s | %.4g | %d points, %.2f s | %.4g (%+.0f %%) | %.1f %% |\n",
        name, stage, micro, speed, experiments, minutes, found, size, $1, $5, $4 - $3, $6, 100 * ($6 / speed - 1), 100 * $6 / $1 }'
done
