#!/usr/bin/env bash
# Write the lock files with hashes: `make lock`. torch and what its CUDA build brings are in cuda.txt alone, because the CPU
# build has another address and version (2.13.0+cpu) for every index that offers it.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=${UV:-.venv/bin/uv}
compile() { "$uv" pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header -q "$@"; }
compile --extra postgres --extra kubernetes -o requirements/cuda.txt
skip=(--no-emit-package torch)
for name in $(grep -oE '^(nvidia-|cuda-|triton)[a-z0-9-]*' requirements/cuda.txt | grep -v '^nvidia-ml-py' | sort -u); do skip+=(--no-emit-package "$name"); done
compile --extra postgres --extra kubernetes "${skip[@]}" -o requirements/runtime.txt
compile --extra dev "${skip[@]}" -o requirements/dev.txt
