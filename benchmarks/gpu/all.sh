#!/usr/bin/env bash
# Installs where needed, runs the programs of this folder one after another, and prints one table of what they saw.
#
#   bash benchmarks/gpu/all.sh [--out runs/gpu] [--only NAME,...] [--again] [--limit SECONDS] [--list]
#   bash benchmarks/gpu/all.sh --rehearse        # without a GPU: tiny models; says nothing about speed
#
# A second call skips what is finished. RELAX_PYTHON names the Python to use; by default .venv's, else python3 where it
# has what is needed, else `make install` makes .venv.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usable() {
  "$1" - >/dev/null 2>&1 <<'PYTHON'
import sys
from importlib.util import find_spec
sys.exit(not all(find_spec(name) for name in ("torch", "megatron.core", "sglang", "ray", "prefect", "pyarrow")))
PYTHON
}

case " $* " in *" --list "* | *" --help "* | *" -h "*) exec python3 benchmarks/gpu/parts.py "$@" ;; esac
if [ -n "${RELAX_PYTHON:-}" ]; then
  python=$RELAX_PYTHON
  usable "$python" || { echo "RELAX_PYTHON: $python lacks torch, Megatron-core, SGLang, Ray, Prefect or pyarrow." >&2; exit 2; }
elif usable .venv/bin/python; then
  python=.venv/bin/python
elif usable python3; then
  python=python3
else
  make install
  python=.venv/bin/python
  usable "$python" || { echo "\`make install\` went through, but $python lacks something that is needed." >&2; exit 2; }
fi
exec "$python" benchmarks/gpu/parts.py "$@"
