#!/bin/sh
# Writes a line of validation/evidence*.def for each measured run whose step's time is known and predicted. Usage:
#   twinspeed validate --cases FILE --json > predicted.json; scenarios/published/evidence.sh [-g GROUP | -x GROUP] predicted.json...
# -g: of that group alone; -x: of all others. Needs jq.
set -eu
only= other=
while getopts g:x: option; do
  case $option in
    g) only=$OPTARG ;;
    x) other=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { echo "usage: evidence.sh [-g GROUP | -x GROUP] FILE..." >&2; exit 2; }
jq -rs --arg only "$only" --arg other "$other" '
  def rounded(n): . as $x | if $x == 0 then 0 else ($x | fabs | log10 | floor) as $e
    | if $e >= n - 1 then ($x / pow(10; $e - n + 1) | round) * pow(10; $e - n + 1)
      else ($x * pow(10; n - 1 - $e) | round) / pow(10; n - 1 - $e) end end;
  def gpu: split("-") | map(select(test("^(v100|a100|h100|h200|b200|b300|gb200|gb300)$"))) | .[0] // "none";
  [.[].cases[] | select(.skipped_because == null and .measured_s != null and .predicted_s != null)
    | select($only == "" or .group == $only) | select($other == "" or .group != $other)]
  | group_by(.group)[][]
  | "RUN(\(.group | tojson), \(.id | tojson), \(.runtime | tojson), \(.profile | gpu | tojson), \(.generation | ascii_upcase), "
    + "\(.kind | ascii_upcase), \(.parameters | rounded(4)), \(.tokens), \(.gpus), \(.zero_stage), \(.part | ascii_upcase), "
    + "\(.measured_s | rounded(5)), \(.predicted_s | rounded(5)))"' "$@"
