LAYERS=4
DENSE=1
EXPERT_WIDTH=96
SHARED=2

kinds=()
for ((layer = 0; layer < LAYERS; layer++)); do
  if (( layer < DENSE )); then
    kinds+=(0)
  else
    kinds+=(1)
  fi
done
printf -v LAYER_KINDS "[%s]" "$(IFS=', '; echo "${kinds[*]}")"

MODEL_ARGS=(
   --num-layers $LAYERS
   --hidden-size 64
   --moe-layer-freq $LAYER_KINDS
   --moe-other-freq [0]*$DENSE+[1]*3
   --moe-shared-expert-intermediate-size $(($EXPERT_WIDTH * $SHARED))
   --rotary-base "${ROTARY_BASE:-10000}"
)
