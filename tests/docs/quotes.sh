#!/usr/bin/env bash
# quotes.sh PAGE FILE: checks that each block of C code in PAGE, between ```c and ```, occurs in FILE as consecutive lines.
set -euo pipefail
awk -v page="$1" -v file="$2" '
    FILENAME == file { lines = lines $0 "\n"; next }
    $0 == "```c" { block = ""; quoting = FNR; next }
    $0 == "```" && quoting {
        blocks++
        if (!index("\n" lines, "\n" block)) {
            print page ":" quoting ": this code does not stand in " file " so:\n" block
            bad = 1
        }
        quoting = 0
        next
    }
    quoting { block = block $0 "\n" }
    END {
        if (quoting || !blocks)
            print page ": " (quoting ? "a block of code does not end" : "there is no C code to compare")
        exit bad || quoting || !blocks
    }' "$2" "$1"
