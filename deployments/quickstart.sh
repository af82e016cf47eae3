#!/usr/bin/env bash
# GRPO on one-digit additions with SmolLM2-135M-Instruct: what `make quickstart` runs.
# The same command again goes on with the run, or says that it is complete.
set -euo pipefail
RELAX=${RELAX:-relax} MODEL=${MODEL:-models/smollm2} RUN=${RUN:-runs/quickstart} STEPS=${STEPS:-4}
samples=$(python3 -c 'import os, sys; print(os.path.relpath(sys.argv[1]))' "$(dirname "$0")/../data/samples")

exec "$RELAX" train \
  --run-dir "$RUN" \
  --hf-checkpoint "$MODEL" \
  --prompt-data "$samples/addition_train.jsonl" --input-key question --label-key answer --apply-chat-template \
  --eval-prompt-data addition "$samples/addition_eval.jsonl" --eval-interval "$STEPS" \
  --num-rollout "$STEPS" --rollout-batch-size 8 --n-samples-per-prompt 4 --rollout-shuffle \
  --rollout-max-response-len 64 --rollout-max-context-len 256 --rollout-temperature 1.0 \
  --advantage-estimator grpo --rm-type exact_number \
  --use-dynamic-batch-size --max-tokens-per-gpu 4096 \
  --lr 5e-6 "$@"
