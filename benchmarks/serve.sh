#!/usr/bin/env bash
# Rate and latency of the running service; wrk (Debian) runs on the same cores. See `python -m benchmarks.serve --help`.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v wrk >/dev/null || { echo "wrk is not installed (Debian: apt-get install wrk)" >&2; exit 2; }
exec .venv/bin/python -m benchmarks.serve "$@"
