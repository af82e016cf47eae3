#!/bin/bash
# Sourced by scripts that are not started by an entry point of their own.
if [ -n "${ENTRY_MODE:-}" ]; then
    return 0 2>/dev/null || exit 0
fi

fast_links() {
    if command -v nvidia-smi >/dev/null 2>&1; then
        nvidia-smi topo -m | grep -c NV
        return 0
    fi
    echo 0
}

if [ -n "${CLUSTER_ADDRESS:-}" ] && timeout 5 ray status >/dev/null 2>&1; then
    source "${HERE}/entry-cluster.sh"
fi

export FAST_LINKS="$(fast_links)"
export CUDA_DEVICE_MAX_CONNECTIONS=1
DEVICES=""
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
    DEVICES="\"CUDA_VISIBLE_DEVICES\": \"${CUDA_VISIBLE_DEVICES}\","
fi
RUNTIME_ENV_JSON=$(cat <<JSON
{"env_vars": {${DEVICES} "NCCL_NVLS_ENABLE": "${FAST_LINKS}", "THREADS": "${THREADS:-24}"}}
JSON
)
export ENTRY_MODE=local
