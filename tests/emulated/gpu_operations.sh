#!/usr/bin/env bash
# Checks that the table of operations in docs/cuda.md lists the launches that a step makes.
set -euo pipefail
python3 "$TESSERA_SOURCE_DIR/bench/gpu_operations.py" --bin "$TESSERA_BIN" --check
