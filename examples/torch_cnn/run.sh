#!/bin/sh
# Eight participants on two hosts train the network of my_cnn.py on Fashion-MNIST, three rounds.
# ./run.sh [FOLDER]     makes FOLDER, by default run-DATE-TIME; needs `sordino` and torch (see README.md)
set -eu
cd "$(dirname "$0")"  # where my_cnn.py lies: coordinator and participants look for it where they are started
folder=${1:-run-$(date +%Y%m%d-%H%M%S)}
port=${PORT:-8443}
children=
trap 'kill $children 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM

mkdir "$folder"
# Eight are too few for an epsilon that means something: see README.md.
sordino init "$folder/study" --listen "localhost:$port" --participants 8 --hosts 2 --rounds 3 --partition iid \
    --task my_cnn:MyCnn --client-rate 0.1 --local-epochs 1 --server-momentum 0 \
    --bits 18 --max-dropout 0 --epsilon 100

sordino serve "$folder/study" & coordinator=$!
children=$coordinator
for host in "$folder"/study/hosts/*; do
    sordino join --home "$host" >"$host/join.txt" 2>&1 & children="$children $!"
done
wait "$coordinator"
wait
