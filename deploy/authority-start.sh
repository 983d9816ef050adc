#!/bin/sh
# The authority's container: makes the authority at its first start, hands the coordinator its files over, and lets in
# whoever has taken a code from the desk. Its keys never leave its own volume.
set -eu
. /opt/supervised.sh
home=/var/lib/sordino/authority/$STUDY
handover=/var/lib/sordino/handover
desk=/run/sordino/desk/socket

if [ ! -d "$home" ]; then
    set -- --study "$STUDY" --coordinator coordinator:8444 --host localhost --draws "$ROUNDS" --places "$PLACES"
    for name in ${NAMES:-}; do
        set -- "$@" --host "$name"
    done
    sordino authority init "$home" "$@"
fi
# Moved, not copied: two of these files are the coordinator's secrets, and have no place among the authority's.
if [ -d "$home/coordinator" ]; then
    rm -rf "$handover/.coming"
    cp -r "$home/coordinator" "$handover/.coming"
    mv -T "$handover/.coming" "$handover/$STUDY"
    rm -rf "$home/coordinator"
fi
supervised sordino authority run "$home" --every 1s --desk "$desk" --json
