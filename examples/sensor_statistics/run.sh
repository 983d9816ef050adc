#!/bin/sh
# Forty sensors on two gateways: the mean temperature, then a histogram, and no reading leaves its gateway.
# ./run.sh [FOLDER]     makes FOLDER, by default run-DATE-TIME; needs `sordino` and `python` (see README.md)
set -eu
cd "$(dirname "$0")"
folder=${1:-run-$(date +%Y%m%d-%H%M%S)}
port=${PORT:-8443}
children=
trap 'kill $children 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM

init() {  # a study of one round over files that the participants bring
    sordino init "$@" --listen "localhost:$port" --dataset own --participants 40 --hosts 2 --rounds 1 \
        --max-dropout 0.1 --epsilon 4 --task-option column=temperature --task-option reduce=mean >"$folder/init.txt"
    for host in "$1"/hosts/*; do  # one ledger for both studies, since they are over the same data
        sed -i -e "s#^ledger = .*#ledger = \"../../../$(basename "$host").sqlite\"#" "$host/host.toml"
    done
}

serve() {  # what three machines would do: a coordinator and two gateways
    sordino serve "$1" & coordinator=$!
    children="$children $coordinator"
    for host in "$1"/hosts/*; do
        sordino join --home "$host" >"$host/join.txt" 2>&1 & children="$children $!"
    done
    wait "$coordinator"
    wait
}

mkdir "$folder"
init "$folder/mean" --task mean --task-option low=10 --task-option high=35 --task-option count=false
init "$folder/histogram" --task histogram --task-option low=14 --task-option high=30 --task-option bins=8
python readings.py "$folder/mean" "$folder/histogram"
serve "$folder/mean"
serve "$folder/histogram"
sordino budget show --participant "$folder/histogram/hosts/host-01"
