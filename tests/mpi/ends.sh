#!/usr/bin/env bash
# ends.sh CODE PATTERN LEVEL COMMAND…: the command must end within a minute with exit code CODE (one of several:
# 4|9; any but 0: +), and write exactly one line "axonn: LEVEL: …" (a warning: at least one), which
# matches PATTERN (none: no such line). No process of the command may be left.
set -uo pipefail
code=$1 pattern=$2 level=$3
shift 3
mark=ends-$$
out=$(AXONN_TEST_MARK=$mark timeout -k 5 60 "$@" 2>&1)
status=$?
lines=$(printf '%s\n' "$out" | grep -a '^axonn: ')
fault=
case $code in
    +) [ $status -ne 0 ] && [ $status -ne 124 ] || fault="it ended with $status" ;;
    *) [[ "|$code|" == *"|$status|"* ]] || fault="it ended with $status, not $code" ;;
esac
if [ "$pattern" = none ]; then
    [ -z "$lines" ] || fault="$fault; it should have said nothing"
else
    [ "$level" = warning ] || [ "$(printf '%s\n' "$lines" | grep -c .)" -eq 1 ] || fault="$fault; it should have said one thing"
    printf '%s\n' "$lines" | grep -Evq "^axonn: $level: .*$pattern" && fault="$fault; it should have said '$pattern'"
fi
sleep 0.2
left=$(grep -alz "^AXONN_TEST_MARK=$mark\$" /proc/[0-9]*/environ 2>/dev/null | grep -v "/$$/")
[ -z "$left" ] || fault="$fault; left running: $left"
[ -z "$fault" ] && exit 0
echo "${fault#; }"
printf '%s\n' "$out"
exit 1
