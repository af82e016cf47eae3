#!/bin/bash
# A colocated GRPO run of a small dense model on one node, in the usual form: arrays of options, then `ray job submit`.

pkill -9 sglang
ray stop --force
sleep 1

set -ex

export PYTHONUNBUFFERED=16

LINKS=$(nvidia-smi topo -m 2>/dev/null | grep -c NV)
if [ "$LINKS" -gt 0 ]; then
    FAST_LINKS=1
else
    FAST_LINKS=0
fi
echo "fast links: $FAST_LINKS"

SCRIPT_DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"
source "${SCRIPT_DIR}/model-small-moe.sh"
MODELS=${MODELS:-/data/models}

CHECKPOINT_ARGS=(
   --hf-checkpoint ${MODELS}/small-chat
   # --ref-load ${MODELS}/small-chat-other
   --ref-load ${MODELS}/small-chat
   --save "/data/runs/small run"
   --save-interval 20   # steps
)

ROLLOUT_ARGS=(
   --prompt-data /data/sums.jsonl
   --input-key question
   --apply-chat-template

   --num-rollout 100
   --rollout-batch-size 16
   --n-samples-per-prompt 8
   --rollout-temperature 1
)

EVAL_ARGS=(
   --eval-prompt-data sums /data/sums-test.jsonl more /data/more-test.jsonl
   --sglang-cuda-graph-bs 1 2 $(seq 4 4 12)
)

TRACKING_ARGS=(
   # --use-wandb
   # --wandb-key ${WANDB_KEY}
)

LOGIN_ARGS=(
   --wandb-key ${WANDB_KEY}
)

export MASTER_ADDR=${MASTER_ADDR:-"127.0.0.1"}
ray start --head --node-ip-address ${MASTER_ADDR} --num-gpus 8 --disable-usage-stats

RUNTIME_ENV_JSON="{
  \"env_vars\": {
    \"PYTHONPATH\": \"/opt/megatron/:${SCRIPT_DIR}\",
    \"CUDA_DEVICE_MAX_CONNECTIONS\": \"1\",
    \"NCCL_NVLS_ENABLE\": \"${FAST_LINKS}\"
  }
}"

ray job submit --address="http://127.0.0.1:8265" \
   --runtime-env-json="${RUNTIME_ENV_JSON}" \
   -- python3 train.py \
   --actor-num-nodes 1 \
   --actor-num-gpus-per-node 8 \
   --colocate \
   --update-weight-buffer-size $(( 512 * 1024 * 1024 )) \
   ${MODEL_ARGS[@]} \
   ${CHECKPOINT_ARGS[@]} \
   ${ROLLOUT_ARGS[@]} \
   ${EVAL_ARGS[@]} \
   ${TRACKING_ARGS[@]} \
   ${LOGIN_ARGS[@]}
