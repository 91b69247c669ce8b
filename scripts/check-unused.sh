#!/usr/bin/env bash
# Finds functions and macros that a header declares and nobody uses. A use is a line of a function in src or examples, a
# row of a table, a mention in README.md or docs, or a macro that pastes the beginning of the name (AX_FIELD_##type); a call
# from a test does not count. Prints file:line of each unused name.
set -euo pipefail
cd "$(dirname "$0")/.."

{
    find src include examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def'
    find README.md docs -name '*.md'
} | LC_ALL=C sort | xargs awk '
# Returns the line without comments and strings. inside: a comment continues on the next line.
function code(text,   out, at, token) {
    while (text != "") {
        if (inside) {
            if (!(at = index(text, "*/"))) return out
            text = substr(text, at + 2)
            inside = 0
            continue
        }
        if (!match(text, /\/\*|\/\/|"([^"\\]|\\.)*"/)) return out text
        token = substr(text, RSTART, 2)
        out = out substr(text, 1, RSTART - 1)
        text = substr(text, RSTART + RLENGTH)
        if (token == "//") return out
        inside = token == "/*"
    }
    return out
}
# The name that the line declares or defines: clang-format leaves declarations at the left margin, and a line holds one.
function declared(line,   name) {
    if (line ~ /^#[ \t]*define[ \t]/) {
        sub(/^#[ \t]*define[ \t]+/, "", line)
        match(line, /^[A-Za-z0-9_]+/)
        return substr(line, 1, RLENGTH)
    }
    if (line !~ /^[A-Za-z_]/ || line ~ /^[^(]*=/ || !match(line, /[A-Za-z0-9_]+\(/)) return ""
    name = substr(line, RSTART, RLENGTH - 1)
    if (name != "AX_MUST_CHECK" || !match(substr(line, RSTART + RLENGTH), /ax_[A-Za-z0-9_]+\(/)) return name
    return name
}
FNR == 1 { inside = 0 }
{
    document = FILENAME ~ /\.md$/
    line = document ? $0 : code($0)
    own = document || FILENAME ~ /\.def$/ ? "" : declared(line)
    if (own ~ /^(ax|AX)_/ && FILENAME ~ /\.h$/ && !(own in where)) where[own] = FILENAME ":" FNR
    while (match(line, /[A-Za-z0-9_]+/)) {
        name = substr(line, RSTART, RLENGTH)
        line = substr(line, RSTART + RLENGTH)
        if (name == own) own = ""
        else used[name] = 1
        if (line ~ /^ *##/ && name ~ /^AX_[A-Z]+_$/) pasted[name] = 1
    }
}
# Whether a macro pastes the beginning of the name.
function is_pasted(name,   start) {
    for (start in pasted) if (index(name, start) == 1) return 1
    return 0
}
END {
    for (name in where) {
        names++
        if (name in used || is_pasted(name)) continue
        print where[name] ": nobody uses " name
        unused++
    }
    printf "check-unused: %d names, %d unused\n", names, unused
    exit unused > 0
}' | LC_ALL=C sort
