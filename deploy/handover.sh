#!/bin/sh
# What the authority handed over, from a secret whose files a group can read, into files that only this user can.
set -eu
umask 077
to=/var/lib/sordino/handover/$STUDY
mkdir -p "$to/tls"
cd /run/handed-over
for name in authority.pub card.json roster.json newest.json history.json transcript.key; do
    cat "$name" > "$to/$name"
done
[ ! -f lottery.json ] || cat lottery.json > "$to/lottery.json"
for name in ca.pem server.pem server.key; do
    cat "tls-$name" > "$to/tls/$name"
done
