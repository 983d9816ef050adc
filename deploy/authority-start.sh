#!/bin/sh
# The authority's container: makes the authority at its first start, hands the coordinator its files over, and lets in
# whoever has taken a code from the desk. Its keys never leave its own volume.
set -eu
. /opt/supervised.sh
home=/var/lib/sordino/authority/$STUDY
handed=/var/lib/sordino/handover/$STUDY
desk=/run/sordino/desk/socket

if [ ! -d "$home" ]; then
    if [ -e "$handed" ]; then
        echo "the keys of this study's authority are gone (volume authority), and nobody can make them again: restore" \
            "the volume from a copy. Without one nobody can join, renew or be revoked any more: begin a study under" \
            "another name (SORDINO_STUDY)" >&2
        ended 2
    fi
    set -- --study "$STUDY" --coordinator "${ENROLMENT:-coordinator:8444}" --host localhost --draws "$ROUNDS" \
        --places "$PLACES" ${SESSIONS:+--address "$SESSIONS"}
    for name in ${NAMES:-}; do
        set -- "$@" --host "$name"
    done
    rm -rf "${home%/*}/.$STUDY-"???????? # what one that was killed has left: the folder gets its name when it is whole
    first sordino authority init "$home" "$@"
fi
# Moved, not copied: two of these files are the coordinator's secrets, and have no place among the authority's. What has
# its last name is whole, so whoever was killed on the way goes on from there.
if [ -d "$home/coordinator" ] && [ ! -e "$handed" ]; then
    rm -rf "$handed.coming"
    cp -r "$home/coordinator" "$handed.coming"
    mv -T "$handed.coming" "$handed"
fi
rm -rf "$handed.coming" "$home/coordinator"
# The first terms that are signed: none that costs more than this, and none that the policy's defaults refuse.
printf '[policy]\nmax_epsilon = %s\nmin_honest_survivors = 2\nmax_roster_valid_h = 168\nkey_agreements = ["x25519-mlkem768"]\n%s\n' "$EPSILON" "${POLICY:-}" > "$home/first-terms.toml"
supervised sordino authority run "$home" --every 1s --first-terms "$home/first-terms.toml" --desk "$desk" ${DESK_PLACES:+--desk-places "$DESK_PLACES"} --json
