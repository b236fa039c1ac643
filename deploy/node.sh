#!/bin/sh
# What a container runs: `node.sh head [flags of the orchestrator]`, or `node.sh target|draft` for a node that joins.
set -eu
role=$1
shift
address=$(hostname -i | cut -d' ' -f1)
head=${DRAFTPROOF_HEAD:-orchestrator:6379}
# The object store is not used; 80 MB is close to the least that Ray takes. Workers ask for no CPUs.
node() {
  ray start "$@" --node-ip-address="$address" --node-manager-port=6380 --num-cpus=0 \
    --object-store-memory=80000000 --disable-usage-stats
}

if [ "$role" = head ]; then
  node --head --port=6379 --include-dashboard=false
  exec python -m orchestrator --ray-address "$address:6379" "$@"
fi

if [ "$role" = target ] && [ "${DRAFTPROOF_ORCHESTRATOR_MODEL:-smollm2-135m-instruct}" = smollm2-135m-instruct ]; then
  python -m draftproof.engine.embedded
fi
tries=0
until python deploy/healthy.py tcp "$head"; do
  tries=$((tries + 1))
  if [ "$tries" -ge 60 ]; then
    echo "no Ray cluster at $head" >&2
    exit 1
  fi
  sleep 1
done
# ends with the node, so that the container's restart policy sees it
node --address="$head" --resources="{\"$role\": ${DRAFTPROOF_WORKERS:-1}}" --block
