#!/bin/sh
# A participant's container: takes a home that no other container holds, or joins with a code from the authority's desk,
# and takes part until the study ends.
set -eu
. /opt/supervised.sh
supervised sordino join coordinator:8444 --desk /run/sordino/desk/socket --homes /var/lib/sordino/clients \
    --part place --yes --service
