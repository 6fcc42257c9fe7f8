#!/usr/bin/env bash
# A step of a training pipeline: check a dump, enrich it, and let only good data through.
#
#   prepare.sh IN OUT [options of rlpost advantages]
#
# Reports lie beside OUT, called after it: OUT.inspect.json and OUT.summary.json, without .parquet.
# Exit codes are rlpost's: 0 good, 1 findings in the dump, 2 wrong options, 3 bad data, 4 reading or
# writing failed; and 10: the advantages would teach too little. OUT is there only with 0.
set -euo pipefail

if [ $# -lt 2 ] || [ "${1#-}" != "$1" ] || [ "${2#-}" != "$2" ]; then
  echo "usage: ${0##*/} IN OUT [options of rlpost advantages]" >&2
  exit 2
fi
in=$1 out=$2
shift 2
least_kept=${LEAST_KEPT:-0.2} # share of responses that the sample masks must let through
found="${out%.parquet}.inspect.json" summary="${out%.parquet}.summary.json"
folder=$(dirname "$out")
if ! [ -d "$folder" ]; then
  echo "prepare: $out: cannot be written: there is no directory $folder" >&2
  exit 4
fi
made="$folder/.$(basename "$out" .parquet).unchecked.parquet"
trap 'rm -f "$made"' EXIT

code=0
rlpost inspect "$in" --strict --format json >"$found" || code=$?
if [ "$code" -eq 1 ]; then
  jq -r '.findings[] | "\(.severity): \(.said); \(.advice)"' "$found" >&2
fi
[ "$code" -eq 0 ] || exit "$code"

code=0
rlpost advantages "$in" "$made" "$@" --quiet --overwrite --summary-json "$summary" || code=$?
case $code in
  0) ;;
  3) echo "prepare: $in: the data is bad; this dump is left out" >&2 && exit 3 ;;
  *) exit "$code" ;;
esac

if ! jq --exit-status --argjson least "$least_kept" '
  (1 - .masked.all.rate >= $least) and (.groups.zero_variance < .groups.count)
' "$summary" >/dev/null; then
  jq -r '"prepare: \(100 * .masked.all.rate | round) % masked, \(.groups.zero_variance) of "
    + "\(.groups.count) groups without a difference in reward"' "$summary" >&2
  exit 10
fi

mv "$made" "$out"
jq -r '"prepare: \(.responses) responses, advantages \(.advantage.mean) ± \(.advantage.std)"' "$summary"
