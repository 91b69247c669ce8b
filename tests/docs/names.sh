#!/usr/bin/env bash
# Checks that the documents name what exists:
#   - every relative link of every document leads to a file;
#   - every path below src/, include/, tests/, scripts/, bench/, examples/, docs/ or cmake/ between backquotes exists,
#     and so does every source file that is named without its folder (`device.c`, `cuda/device.c`);
#   - every ax_… and AX_… is a word of src or include (in docs/glossary.md without the last column, which has the names
#     of older versions);
#   - every `name()` in docs/architecture.md and docs/guide is a function that a file named on the page defines;
#   - the pages of docs/guide have at most 100 lines.
# Decisions, the changelog, docs/renamed.md and docs/performance.md describe older versions too, so only their links are checked.
# Usage: names.sh [ROOT]
set -euo pipefail
export LC_ALL=C
cd "${1:-$(dirname "$0")/../..}"

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'echo "names: line $LINENO failed" >&2' ERR
missing=0
report() { # PAGE WHAT
  echo "$1: $2" >&2
  missing=$((missing + 1))
}

# Prints the text between backquotes on a page; with "blocks" its code blocks too.
code_of() { # PAGE [blocks]
  awk -v blocks="${2:-}" '
    /^```/ { block = !block; next }
    block { if (blocks) print; next }
    { n = split($0, part, "`"); for (i = 2; i <= n; i += 2) print part[i] }' "$1"
}

# ---- links and paths ----------------------------------------------------------------------------------------------

find src include tests scripts bench examples docs -type f | sed 's|^|/|' >"$dir/sources"
documents=(README.md CONTRIBUTING.md CHANGELOG.md docs/*.md docs/guide/*.md docs/decisions/*.md)
for page in "${documents[@]}"; do
  while IFS= read -r target; do
    [[ -e $(dirname "$page")/$target ]] || report "$page" "the link to $target leads nowhere"
  done < <(grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//; s/#.*//' | grep -v '^[a-z]*:' | grep . || true)
done

present=()
for page in README.md CONTRIBUTING.md docs/*.md docs/guide/*.md; do
  [[ $page == docs/performance.md || $page == docs/renamed.md ]] || present+=("$page")
done
for page in "${present[@]}"; do
  while IFS= read -r path; do
    [[ -e $path ]] || report "$page" "there is no $path"
  done < <(code_of "$page" | grep -oE '(^|[ (=])(src|include|tests|scripts|bench|examples|docs|cmake)/[A-Za-z0-9_./-]+[A-Za-z0-9_/-]([^*<A-Za-z0-9_./-]|$)' |
    grep -oE '[a-z]+/[A-Za-z0-9_./-]+[A-Za-z0-9_/-]' | sort -u)
  while IFS= read -r name; do
    grep -qE "/${name//./\\.}\$" "$dir/sources" || report "$page" "there is no $name"
  done < <(code_of "$page" | grep -xE '[a-z0-9_/]+\.(c|h|cu|cuh|cpp|def|sh|py)' | sort -u)
done

# ---- names --------------------------------------------------------------------------------------------------------

grep -rhoE '\b(ax|AX)_[A-Za-z0-9_]+' src include CMakeLists.txt | sort -u >"$dir/words"
# Functions whose names macros make from the name of a kernel.
sed -n '/^#define AX_KERNELS(/,/[^\\]$/p' include/axonn/kernels.h | grep -oE 'X\([a-z0-9_]+\)' | sed 's/X(\(.*\))/\1/' |
  awk '{ print "ax_run_" $0; print "ax_cuda_" $0; print "AX_K_" $0 }' >>"$dir/words"
sort -u -o "$dir/words" "$dir/words"
for page in "${present[@]}"; do
  while IFS= read -r word; do
    grep -qx -- "$word" "$dir/words" || report "$page" "no $word in src or include"
  done < <(if [[ $page == docs/glossary.md ]]; then sed 's/|[^|]*|$/|/' "$page"; else cat "$page"; fi |
    grep -oE '\b(ax|AX)_[A-Za-z0-9_]*[A-Za-z0-9]\b([^*<]|$)' | grep -oE '(ax|AX)_[A-Za-z0-9_]+' | sort -u)
done

# ---- functions ----------------------------------------------------------------------------------------------------

# Prints the names of the functions that a file defines. A definition begins in the first column, and has a "{" before
# the first ";"; its name is before the first "(".
definitions_of() {
  awk '/^[A-Za-z_].*\(/ && !/^#/ && !/^(typedef|struct|enum|union)/ { text = $0; open = 1 }
       open && !/^[A-Za-z_].*\(/ { text = text " " $0 }
       open && match(text, /[;{]/) {
         if (substr(text, RSTART, 1) == "{" && match(text, /[A-Za-z0-9_]+\(/))
           while (match(text, /[A-Za-z0-9_]+ ?\(/)) {
             name = substr(text, RSTART, RLENGTH); sub(/ ?\(/, "", name); print name
             text = substr(text, RSTART + RLENGTH)
             if (name != "__attribute__") break
           }
         open = 0 }' "$1"
}

for page in docs/architecture.md docs/guide/*.md; do
  code_of "$page" blocks >"$dir/code"
  { grep -oE '(src|include|tests)/[A-Za-z0-9_/.-]+\.(c|h|cu|cuh|cpp)' "$dir/code" || true; } | sort -u >"$dir/files"
  while IFS= read -r file; do [[ ! -e $file ]] || definitions_of "$file"; done <"$dir/files" | sort -u >"$dir/defined"
  { grep -oE '\b[A-Za-z_][A-Za-z0-9_]*\(\)' "$dir/code" || true; } | sort -u | sed 's/()//' >"$dir/functions"
  while IFS= read -r name; do
    grep -qx "$name" "$dir/defined" || report "$page" "no file named on the page defines $name()"
  done <"$dir/functions"
  [[ $page =~ guide/(all-reduce|gemm|launch).md ]] || continue # pages that follow one call, function by function
  (($(wc -l <"$page") <= 100)) || report "$page" "has more than 100 lines"
  (($(wc -l <"$dir/functions") >= 20)) || report "$page" "names fewer than 20 functions: is its form another now?"
done

if ((missing)); then
  echo "names: $missing mistakes in documents" >&2
  exit 1
fi
echo "names: $(cat "${documents[@]}" | grep -c .) lines of ${#documents[@]} documents name what exists"
