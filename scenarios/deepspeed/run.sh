#!/bin/sh
# What DeepSpeed's documentation says of models that fit, and of one that does not, beside `twinspeed estimate`:
# published.csv names model, cluster, settings and source of each.
#
#   scenarios/deepspeed/run.sh [PROGRAM]      (default: build/twinspeed)  prints a Markdown table
#
# Status 1: a verdict is another one. Autotuning on 16 V100 is scenarios/autotuning/run.sh, BERT-large's profile
# bert-profile.sh.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
program=${1:-build/twinspeed}
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

value() { # of a key of the answer, the first
  sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\\([^,]*\\),*\$/\\1/p" "$out/answer" | head -n 1
}

gib() {
  awk -v bytes="$1" 'BEGIN { printf "%.1f GiB", bytes / 1073741824 }'
}

bad=0
echo "| model | on | with | published | a GPU needs | has | a node needs | verdict |"
echo "|---|---|---|---|---|---|---|---|"
while IFS='|' read -r name layers hidden heads cluster with settings published source; do
  case $name in '#'*) continue ;; esac
  printf '{"model_type": "gpt2", "n_layer": %s, "n_embd": %s, "n_head": %s, "n_positions": 1024, "vocab_size": 50257}\n' \
    "$layers" "$hidden" "$heads" > "$out/model.json"
  # shellcheck disable=SC2086
  "$program" estimate -m "$out/model.json" --dtype fp16 --cluster $cluster --recompute full --runtime megatron-2021 \
    $settings --json > "$out/answer" 2> "$out/err" || [ $? -eq 1 ] || { cat "$out/err" >&2; exit 2; }
  verdict="does not fit"
  [ "$(value fits)" != true ] || verdict=fits
  [ "$verdict" = "$published" ] || { verdict="**$verdict**"; bad=1; }
  node=$(value node_need_bytes)
  [ "$node" = 0 ] && node= || node=$(gib "$node")
  echo "| $name | $cluster | $with | $published | $(gib "$(value device_need_bytes)") | $(gib "$(value device_have_bytes)") | $node | $verdict |"
done < "$here/published.csv"
exit $bad
