#!/usr/bin/env bash
# What a container does: entry.sh server | head | machine | register | healthy [role] | any other command.
#   server    Prefect's server, which checks submitted parameters (deployments/server.py)
#   head      the head of the Ray cluster; it takes no work
#   machine   joins the cluster and starts the flow runs that go to this machine: runs are on the machine of their driver
#   register  makes the work pool, the deployments and the automations, once the server answers
#   healthy   whether the role that this container has still does its work
# Variables: RAY_ADDRESS (host:port of the head), RAY_AUTH_MODE and RAY_AUTH_TOKEN, PREFECT_API_URL; of this script, with
# defaults: ENTRY_POOL, ENTRY_QUEUE, ENTRY_RUNS_AT_ONCE, ENTRY_CPUS, ENTRY_OBJECT_STORE_BYTES, ENTRY_WORK_DIR,
# ENTRY_WAIT_SECONDS.
set -euo pipefail

project="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
export PYTHONPATH="$project${PYTHONPATH:+:$PYTHONPATH}"
state="${RELAX_HOME:-$HOME/.relax}"
mkdir -p "$state" "${PREFECT_HOME:-$HOME/.prefect}"
role="${1:-machine}"
work="${ENTRY_WORK_DIR:-$HOME}"

ray_token() { # a cluster that others can reach has one, or whoever reaches a port runs programs
  if [ "${RAY_AUTH_MODE:-}" != token ]; then
    echo "entry.sh: RAY_AUTH_MODE is not token: set it, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH" >&2
    exit 64
  fi
}

address() { # of this machine, as the others see it
  echo "${POD_IP:-$(hostname -i | awk '{print $1}')}"
}

# all fixed, so that a firewall can name them; 10001 is Ray's own for clients that nobody has here
ray_options=(--block --disable-usage-stats --object-store-memory="${ENTRY_OBJECT_STORE_BYTES:-1073741824}"
  --min-worker-port=10100 --max-worker-port=10999
  --node-manager-port=10011 --object-manager-port=10012 --runtime-env-agent-port=10013
  --dashboard-agent-listen-port=10014 --dashboard-agent-grpc-port=10015 --metrics-export-port=10016)

wait_for_server() {
  for _ in $(seq "${ENTRY_WAIT_SECONDS:-300}"); do
    if answers "${PREFECT_API_URL:?}/health"; then return; fi
    sleep 1
  done
  echo "entry.sh: no Prefect server answers at $PREFECT_API_URL" >&2
  exit 1
}

end() { # what this script started: politely, then not
  trap - TERM INT
  kill $(jobs -p) 2>/dev/null || true
  for _ in $(seq 60); do
    if [ -z "$(jobs -pr)" ]; then return 0; fi
    sleep 1
  done
  kill -KILL $(jobs -pr) 2>/dev/null || true
}

answers() {
  python - "$1" <<'PY'
import sys
import urllib.request

try:
    sys.exit(urllib.request.urlopen(sys.argv[1], timeout=5).status != 200)
except OSError:
    sys.exit(1)
PY
}

case "$role" in
  server)
    echo server > "$state/role"
    export RELAX_SUBMITTED_FILES="${RELAX_SUBMITTED_FILES:-elsewhere}" # models and prompts are on the machines
    exec python -m uvicorn --factory deployments.server:create_app \
      --host "${PREFECT_SERVER_API_HOST:-0.0.0.0}" --port "${PREFECT_SERVER_API_PORT:-4200}" --log-level warning
    ;;
  head)
    ray_token
    echo head > "$state/role"
    # no processors and no GPUs: nothing is ever put here but what needs none
    exec ray start --head --node-ip-address="$(address)" --port="${RAY_PORT:-6379}" --num-cpus=0 --num-gpus=0 \
      --include-dashboard=false "${ray_options[@]}"
    ;;
  machine)
    ray_token
    echo machine > "$state/role"
    wait_for_server
    set -m # or the worker, in the background, would inherit that interrupts are ignored, and not end when it is told
    # logical processors: actors are placed by device, so that more than there are do no harm
    ray start --address="${RAY_ADDRESS:?}" --node-ip-address="$(address)" --num-cpus="${ENTRY_CPUS:-$(($(nproc) + 8))}" \
      "${ray_options[@]}" &
    cd "$work"
    prefect worker start --pool "${ENTRY_POOL:-relax}" --type process --name "$(hostname)" --with-healthcheck \
      --limit "${ENTRY_RUNS_AT_ONCE:-1}" --no-create-pool-if-not-found ${ENTRY_QUEUE:+--work-queue "$ENTRY_QUEUE"} &
    # both or none: without one of them the container ends, and is started again
    trap 'end; exit 0' TERM INT
    code=0
    wait -n || code=$?
    end
    exit "$((code == 0 ? 1 : code))"
    ;;
  register)
    wait_for_server
    cd "$work"
    exec python -m deployments.register --folder "$work"
    ;;
  healthy)
    case "${2:-$(cat "$state/role" 2>/dev/null || true)}" in
      server) answers "http://127.0.0.1:${PREFECT_SERVER_API_PORT:-4200}/api/health" ;;
      head) exec ray health-check --address "$(address):${RAY_PORT:-6379}" ;;
      machine) answers "http://127.0.0.1:${PREFECT_WORKER_WEBSERVER_PORT:-8080}/health" ;;
    esac
    ;;
  *)
    exec "$@"
    ;;
esac
