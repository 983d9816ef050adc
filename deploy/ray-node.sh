#!/bin/sh
# A node of the Ray cluster that a coordinator's gateways and workers run on: `ray-node.sh head`, `gateway-N`, or
# `coordinator`, which returns once the node is up. Whoever has the cluster's token can run programs on every node.
set -eu
umask 077
common="--disable-usage-stats --object-store-memory=160000000"
case $1 in
    head)
        if [ -z "${RAY_AUTH_TOKEN:-}" ] && [ ! -s "$RAY_AUTH_TOKEN_PATH" ]; then
            python3 -c 'import secrets; print(secrets.token_hex(32), end="")' > "$RAY_AUTH_TOKEN_PATH.new"
            mv "$RAY_AUTH_TOKEN_PATH.new" "$RAY_AUTH_TOKEN_PATH"
        fi
        # Kept, so that nodes and the coordinator go on with a head that was started again.
        export RAY_gcs_storage=rocksdb RAY_gcs_storage_path="${RAY_AUTH_TOKEN_PATH%/*}/gcs"
        exec ray start --head --port=6379 --num-cpus=0 --include-dashboard=false --block $common
        ;;
    gateway-*)
        # One processor for the gateway, the others for workers.
        set -- --num-cpus="$((1 + ${WORKERS:-1}))" --resources="{\"$1\": 1}" --block
        ;;
    *) set -- --num-cpus=0 ;;
esac
# The head may come later.
until [ -n "${RAY_AUTH_TOKEN:-}" ] || [ -s "$RAY_AUTH_TOKEN_PATH" ]; do sleep 0.5; done
exec ray start --address="$RAY_ADDRESS" "$@" $common
