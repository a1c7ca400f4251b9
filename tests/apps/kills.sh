#!/usr/bin/env bash
# ctest: TIMEOUT 400 PROCESSORS 1
# Jobs that are killed at 20 random moments resume with the bits of an uninterrupted job.
. "$(dirname "${BASH_SOURCE[0]}")/common.bash"
python3 "$TESSERA_SOURCE_DIR/bench/kills.py" --kills 20 --bin "$TESSERA_BIN"
