#!/usr/bin/env bash
# Prints the folders with the packages of the Python environments of this machine, one a line: those of the pythons in PATH,
# then those in usual places. CUDA's libraries and tools may be installed there only, as packages of NVIDIA.
{
    for python in python3 python; do
        "$python" -c 'import sys; print(*sys.path, sep="\n")' 2>/dev/null
    done
    for environment in "${VIRTUAL_ENV:-}" "${CONDA_PREFIX:-}" ~/.local /usr/local /opt/* /opt/*/.venv /opt/*/venv; do
        printf '%s\n' "$environment"/lib/python3*/site-packages "$environment"/lib/python3*/dist-packages
    done
    echo /usr/lib/python3/dist-packages
} | while read -r folder; do
    [ -d "$folder" ] && [ "$folder" != / ] && echo "$folder"
done | awk '!seen[$0]++'
