#!/bin/sh
# Forty of Shakespeare's roles on two hosts adapt a frozen transformer, trained on plain English, by LoRA; three rounds.
# ./run.sh [FOLDER]     makes FOLDER, by default run-DATE-TIME; needs `sordino`, `python`, torch and peft (see README.md)
set -eu
cd "$(dirname "$0")"
example=$PWD
folder=${1:-run-$(date +%Y%m%d-%H%M%S)}
port=${PORT:-8443}
children=
[ -d "${SORDINO_DATA_FOLDER:-$HOME/.local/share/sordino/data}/shakespeare" ] || {
    echo "The plays are missing: sordino data prepare shakespeare" >&2; exit 2
}
trap 'kill $children 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM

mkdir "$folder"
cp lora.py "$folder"
cd "$folder"  # task and backbone lie where the commands are started, as they would on each machine
python "$example/prepare.py" . 40
# Forty are too few for an epsilon that means something: see README.md.
sordino init study --listen "localhost:$port" --participants 40 --hosts 2 --rounds 3 --dataset own --test held-out.npz \
    --task lora:Lora --task-option local_steps=8 --client-rate 0.1 --server-momentum 0 --bits 18 --clip 0.5 \
    --max-dropout 0 --epsilon 100
for role in $(seq -w 1 40); do
    host=1; [ "$role" -le 20 ] || host=2
    mv "roles/0$role.npz" "study/hosts/host-0$host/data/participant-0$role.npz"
done

sordino serve study & coordinator=$!
children=$coordinator
for host in study/hosts/*; do
    sordino join --home "$host" >"$host/join.txt" 2>&1 & children="$children $!"
done
wait "$coordinator"
wait
