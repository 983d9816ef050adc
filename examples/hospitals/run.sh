#!/bin/sh
# Four hospitals learn one model for heart disease, and no patient's record leaves its hospital.
# ./run.sh [FOLDER]     makes FOLDER, by default run-DATE-TIME; needs `sordino` and `python` (see README.md)
set -eu
cd "$(dirname "$0")"
folder=${1:-run-$(date +%Y%m%d-%H%M%S)}
port=${PORT:-8443}
prepared=${SORDINO_DATA_FOLDER:-$HOME/.local/share/sordino/data}
children=
trap 'kill $children 2>/dev/null || :' EXIT
trap 'exit 130' INT TERM

mkdir "$folder"
if [ -d "$prepared/heart" ]; then
    data="--dataset heart --partition natural"
else
    echo "THE PATIENTS ARE MADE UP. For the real ones: sordino data prepare heart"
    python made_up.py "$folder"
    data="--dataset own --test $folder/held-out.npz"
fi
# Everybody must be there in each round (--max-dropout 0), and this epsilon is no promise: see README.md.
sordino init "$folder/study" --listen "localhost:$port" --participants 4 --hosts 4 --rounds 10 $data \
    --task softmax-regression --task-option features=28 --task-option classes=2 --client-rate 0.1 --local-epochs 1 \
    --clip 0.5 --max-dropout 0 --epsilon 50
for hospital in 1 2 3 4; do  # what each hospital would do on its own machine
    home=$folder/study/hosts/host-0$hospital
    [ -d "$prepared/heart" ] || mv "$folder/hospital-$hospital.npz" "$home/data/participant-00$hospital.npz"
done

sordino serve "$folder/study" & coordinator=$!
children=$coordinator
for host in "$folder"/study/hosts/*; do
    sordino join --home "$host" >"$host/join.txt" 2>&1 & children="$children $!"
done
wait "$coordinator"
wait
