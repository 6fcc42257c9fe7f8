#!/usr/bin/env bash
# A step of a training pipeline: inspect a dump, compute its advantages, and reject bad data.
#
#   prepare.sh IN OUT [options of rlpost advantages]
#
# Writes reports beside OUT: for out.parquet, out.inspect.json and out.summary.json.
# Exit codes are those of rlpost: 0 success, 1 findings in the dump, 2 wrong options, 3 bad data,
# 4 reading or writing failed. 10 means that too many responses are masked, or that no group has
# reward variance. OUT is only written with exit code 0, and replaced only with --overwrite.
set -euo pipefail

if [ $# -lt 2 ] || [ "${1#-}" != "$1" ] || [ "${2#-}" != "$2" ]; then
  echo "usage: ${0##*/} IN OUT [options of rlpost advantages]" >&2
  exit 2
fi
in=$1 out=$2
shift 2
least_kept=${LEAST_KEPT:-0.2} # least share of responses that the sample masks must keep
if [ -e "$out" ] && [[ " $* " != *" --overwrite "* ]]; then
  echo "prepare: $out: exists already; --overwrite replaces it" >&2
  exit 2
fi
findings="${out%.parquet}.inspect.json" summary="${out%.parquet}.summary.json"
folder=$(dirname "$out")
if ! [ -d "$folder" ]; then
  echo "prepare: $out: cannot be written: there is no directory $folder" >&2
  exit 4
fi
unchecked="$folder/.$(basename "$out" .parquet).unchecked.parquet"
trap 'rm -f "$unchecked"' EXIT

code=0
rlpost inspect "$in" --fail-on warning --format json >"$findings" || code=$?
if [ "$code" -eq 1 ]; then
  jq -r '.findings[] | "\(.severity): \(.text); \(.advice)"' "$findings" >&2
fi
[ "$code" -eq 0 ] || exit "$code"

code=0
rlpost advantages "$in" "$unchecked" "$@" --quiet --overwrite --summary-json "$summary" || code=$?
case $code in
  0) ;;
  3) echo "prepare: $in: bad data: this dump is skipped" >&2 && exit 3 ;;
  *) exit "$code" ;;
esac

# A measure of the whole input; facts has a row for each measure and slice.
whole='def whole($name): first(.facts[] | select(.measure == $name and .by == "all"));'

if ! jq --exit-status --argjson least "$least_kept" '
  '"$whole"' (whole("kept").mean >= $least) and (whole("equal_rewards").total < .groups)
' "$summary" >/dev/null; then
  jq -r "$whole"'"prepare: \(100 * (1 - whole("kept").mean) | round) % masked, "
    + "\(whole("equal_rewards").total) of \(.groups) groups with equal rewards"' "$summary" >&2
  exit 10
fi

mv "$unchecked" "$out"
jq -r "$whole"'"prepare: \(.responses) responses, advantages "
  + (whole("advantage") | "\(.mean) ± \(.std)")' "$summary"
