#!/usr/bin/env bash
# Checks the order of the rooms. A room may include only headers of the rooms listed for it here, and no private headers
# of other rooms except those that a room lends. It may name `struct ax_x`, in a forward declaration too, only if it may
# use the room that defines it. Tests are not restricted. Prints file:line of each offence.
# Usage: check-rooms.sh [ROOT]
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"

{ find include src examples -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' 2>/dev/null || true; } | LC_ALL=C sort | awk '
BEGIN {
    # room: the public headers it owns (default: ROOM.h)
    owns("base", "base json option philox runtime")
    owns("token", "tokenizer chat")
    owns("dev", "dev kernels clock")
    owns("engine", "engine pipeline")
    # room: private headers that the rooms which may use it may include too
    lends("base", "memory")
    lends("cli", "launch model verb")
    lends("config", "private")
    lends("engine", "costs fit")
    lends("infer", "adapter beside")
    # room: rooms it may use. A name in brackets stands for that room and all that it may use.
    uses("base", "")
    uses("trace", "base")
    uses("dev", "[trace]")
    uses("machine", "[dev]")
    uses("comm", "[dev]")
    uses("pipe", "base")
    uses("grid", "[comm] pipe")
    uses("tensor", "[grid]")
    uses("parallel", "[tensor]")
    uses("op", "[parallel]")
    uses("nn", "[op]")
    uses("model", "[nn]")
    uses("optim", "[parallel]")
    uses("ckpt", "[parallel]")
    uses("token", "base")
    uses("data", "[trace] token")
    uses("engine", "[model] [optim] [data] machine")
    uses("infer", "[engine] [ckpt]")
    uses("config", "[infer]")
    uses("train", "[config]")
    uses("cli", "[train]")
    uses("bench", "[cli]")
    uses("axonn", "[train]")    # include/axonn/axonn.h, everything at once
    uses("examples", "[axonn]")
    # file, and struct of another room that the file may name nevertheless: the context holds the parallel settings of all
    # that is created with it (docs/decisions/0020-context-holds-parallel-settings.md)
    excused["include/axonn/grid.h", "ax_strategy"] = 1
    # an event of a device points to the communicator of a collective (docs/decisions/0042-listeners.md)
    excused["include/axonn/dev.h", "ax_comm"] = 1
}
function owns(room, headers,   n, name, i) {
    n = split(headers, name, " ")
    for (i = 1; i <= n; i++) owner[name[i]] = room
}
function lends(room, headers,   n, name, i) {
    n = split(headers, name, " ")
    for (i = 1; i <= n; i++) lent["src/" room "/" name[i] ".h"]
}
function uses(room, list,   n, word, i, other) {
    known[room] = may[room, room] = 1
    n = split(list, word, " ")
    for (i = 1; i <= n; i++) {
        other = word[i]
        if (gsub(/[][]/, "", other))
            for (r in known) if ((other, r) in may) may[room, r] = 1
        may[room, other] = 1
    }
}
function allowed(room,   r, list) {
    for (r in known) if ((room, r) in may && r != room) list = list " " r
    return list == "" ? " none" : list
}
function basename_of(path) { sub(/.*\//, "", path); sub(/\.cuh?$|\.h$|\.def$/, "", path); return path }
# Returns the room of a file of the tree, "" if it is in none.
function room_of(path,   part) {
    split(path, part, "/")
    if (part[1] == "include") {
        part[2] = basename_of(path)
        if (part[2] in owner) return owner[part[2]]
    } else if (part[1] == "examples")
        return "examples"
    return part[2] in known ? part[2] : ""
}
function normal(path) {
    while (gsub(/\/\.\//, "/", path) || sub(/[^\/.]+\/\.\.\//, "", path)) {}
    return path
}
# Returns the path of the header that `file` includes; "" for headers outside the tree.
function resolve(file, name, quoted,   dir, i, path) {
    dir = file
    sub(/[^\/]*$/, "", dir)
    n = split(quoted ? dir " src/ include/" : "include/", place, " ")
    for (i = 1; i <= n; i++) {
        path = normal(place[i] name)
        if (path in exists) return path
    }
    return ""
}
function offence(text) { printf "%s:%d: %s\n", file, line, text; bad++ }
function check(name, quoted,   target, from, to) {
    target = resolve(file, name, quoted)
    if (target == "") {
        if (quoted || name ~ /^axonn\//) offence("\"" name "\" is not a header of this tree")
        return
    }
    from = room_of(file)
    to = room_of(target)
    if (to == "")
        offence("room of \"" name "\" is unknown: add it to the table of scripts/check-rooms.sh")
    else if (target !~ /^include\// && from != to && !(target in lent))
        offence("\"" name "\" is private to room " to "; " from " may include only its public headers")
    else if (!((from, to) in may))
        offence("room " from " may not use room " to " (it may use:" allowed(from) ")")
}
# Returns the line without its comments. `commented` says whether the next line begins inside a comment.
function code_of(text,   at) {
    if (commented && !sub(/^.*\*\//, "", text)) return ""
    commented = 0
    gsub(/\/\*[^*]*(\*+[^*\/]+)*\*+\//, "", text)
    sub(/\/\/.*/, "", text)
    if (at = index(text, "/*")) {
        commented = 1
        text = substr(text, 1, at - 1)
    }
    return text
}
# Notes where a struct is named, and where it is defined or, failing that, first declared by a typedef.
function note_structs(text,   name) {
    while (match(text, /(^|[^A-Za-z0-9_])struct ax_[a-z0-9_]+/)) {
        name = substr(text, RSTART, RLENGTH)
        sub(/^.*struct /, "", name)
        if (substr(text, RSTART + RLENGTH) ~ /^ *\{/) defined[name] = file
        else if (text ~ /^typedef/ && !(name in declared)) declared[name] = file
        mentions++
        mention[mentions] = name
        mention_file[mentions] = file
        mention_line[mentions] = line
        text = substr(text, RSTART + RLENGTH)
    }
}
function check_mention(name,   home, from, to) {
    home = name in defined ? defined[name] : declared[name]
    if (home == "" || (file, name) in excused) return
    from = room_of(file)
    to = room_of(home)
    if (!((from, to) in may))
        offence("room " from " may not name struct " name " of room " to " (" home "; it may use:" allowed(from) ")")
}
{ files[NR] = $0; exists[$0] = 1 }
END {
    for (f = 1; f <= NR; f++) {
        file = files[f]
        line = 1
        commented = 0
        if (room_of(file) == "") offence("this file is in no room of the table in scripts/check-rooms.sh")
        else for (line = 1; (getline text < file) > 0; line++) {
            note_structs(code_of(text))
            if (text !~ /^[ \t]*#[ \t]*include[ \t]*["<]/) continue
            quoted = text ~ /include[ \t]*"/
            sub(/^[^"<]*["<]/, "", text)
            sub(/[">].*/, "", text)
            check(text, quoted)
            includes++
        }
        close(file)
    }
    for (m = 1; m <= mentions; m++) {
        file = mention_file[m]
        line = mention_line[m]
        check_mention(mention[m])
    }
    printf "check-rooms: %d files, %d includes, %d structs named, %d offences\n", NR, includes, mentions, bad
    exit bad > 0
}'
