#!/bin/sh
# A participant's container: takes a home that no other container holds, or joins with a code from the authority's desk,
# and takes part until the study ends. Homes lie in a folder of their study, which is named: those of another one, with
# another authority, are of no use in this one.
set -eu
. /opt/supervised.sh
supervised sordino join "${2:-coordinator:8444}" --desk /run/sordino/desk/socket --homes "/var/lib/sordino/clients/${1:-}" \
    --part place --yes --service
