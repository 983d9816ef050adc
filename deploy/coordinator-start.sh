#!/bin/sh
# The coordinator's container: makes the study at its first start, under the authority whose public files were handed
# over, and serves it.
set -eu
. /opt/supervised.sh
study=/var/lib/sordino/study/$SORDINO_STUDY

if [ ! -f "$study/study.toml" ]; then
    # shellcheck disable=SC2086  # options, to be split
    sordino init "$study" --authority "/var/lib/sordino/handover/$SORDINO_STUDY" --enrol "$SORDINO_PLACES" \
        --rounds "$SORDINO_ROUNDS" --sampling lottery --cohort "$SORDINO_COHORT" --population "$SORDINO_COHORT" \
        --epsilon "$SORDINO_EPSILON" --http 0.0.0.0:9464 ${SORDINO_STUDY_OPTIONS:-}
fi
supervised sordino serve "$study"
