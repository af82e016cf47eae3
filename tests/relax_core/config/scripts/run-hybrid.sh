#!/usr/bin/env bash
# One command in an array, variants by `case`, the environment from an entry script, further arguments after the script.
set -Eeuo pipefail

HERE="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" >/dev/null 2>&1 && pwd)"
ROOT="$(cd -- "${HERE}/.." && pwd)"
if [ -z "${ENTRY_MODE:-}" ]; then
    source "${HERE}/entry-local.sh"
fi

MODEL_PATH="${MODEL_PATH:?Set MODEL_PATH to a checkpoint}"
VARIANT="${VARIANT:-plain}"
N_SAMPLES="${N_SAMPLES:=4}"
BATCH=8
GLOBAL_BATCH=$((BATCH * N_SAMPLES))
NOW=$(date +%Y%m%d)

case "${VARIANT}" in
    plain) INTERVAL="${INTERVAL:-1}"; WITH_KL=1 ;;
    fast)
        INTERVAL="${INTERVAL:-2}"
        WITH_KL=0
        ;;
    *)
        echo "no variant ${VARIANT}" >&2
        exit 2
        ;;
esac

if ! [[ "${INTERVAL}" =~ ^[1-9][0-9]*$ ]] || ((INTERVAL > 20)); then
    echo "INTERVAL must be from 1 to 20" >&2
    exit 2
fi
[[ -s "${MODEL_PATH}/config.json" ]] || { echo "no model in ${MODEL_PATH}" >&2; exit 1; }

ALGORITHM_ARGS=(--advantage-estimator grpo)
if ((WITH_KL)); then
    ALGORITHM_ARGS+=(--use-kl-loss --kl-loss-coef 0.001)
fi

COMMAND=(
    python3 -m relax.entrypoints.train
    --resource '{"actor": [1, 1], "rollout": [1, 1]}'
    --update-weights-interval "${INTERVAL}"
    --hf-checkpoint "${MODEL_PATH}"
    --global-batch-size "${GLOBAL_BATCH}"
    "${ALGORITHM_ARGS[@]}"
    --custom-config-path "${ROOT}/extra.yaml"
    --tb-experiment-name "hybrid-${VARIANT}-${NOW}"
)

printf ' %q' "${COMMAND[@]}"

submit() {
    local address="$1"
    shift
    ray job submit ${NO_WAIT:+--no-wait} --address="${address}" ${WORKING_DIR:+--working-dir "${WORKING_DIR}"} \
        --runtime-env-json="${RUNTIME_ENV_JSON}" \
        -- "$@" 2>&1 | tee "logs/hybrid-${NOW}.log"
}

mkdir -p logs
submit http://127.0.0.1:8265 "${COMMAND[@]}" "$@"
