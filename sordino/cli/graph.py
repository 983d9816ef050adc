"""``sordino graph``: degree and threshold of the graph, with the reasons."""

from __future__ import annotations

from typing import Any

from runtime.failure import ExitCode, Failure
from runtime.option_values import built
from sordino.cli.options import chosen, options, with_options
from sordino.cli.verbs import Json, answer, epilog
from sordino.lab.graph_options import GraphOptions
from wire.guarantee import CURIOUS_TRUST

HELP = (
    "Compute degree and threshold of the graph for exchanging masks and shares.\n\nIn a small cohort each "
    "participant exchanges them with all others, in a larger one with its neighbours on a random ring (k-regular). "
    "Colluders and dropouts take neighbours away; the numbers hold against any coordinator of the named kind, except "
    "with probability 2^-sigma. A window is k/2 consecutive places of the ring: where two windows hold no honest "
    "participant, the ring falls into two parts, and so does the sum. docs/graph.md derives the numbers.\n\n"
    "The degree grows with the number that may drop out, clients - min_survivors. Here that is the share --dropout; a "
    "study's plan has fewer min_survivors, which independent dropouts rarely miss, and so more neighbours. The last "
    "lines show that plan; --min-survivors takes either value.\n\n"
    f"curious: {CURIOUS_TRUST}. semi-malicious: it may ask different participants for "
    "different shares, as published systems assume; no study runs under it. malicious: it may also re-pick the ring, "
    "2^grinding times, and chooses the dropouts after it has seen the ring.\n\n"
    "JSON: degree, threshold and min_survivors; graph is harary (the ring) or complete; colluders and drops are "
    "counts; set_by says what the degree is due to (connectivity, answers, small or infeasible); published_degree and "
    "published_threshold are those of \\[BBG+20]'s rule, null where it gives none; adversaries compares the three; "
    "plan is what a study's plan has for this dropout, null where none can be; warnings are sentences. On the complete "
    "graph the figures of neighbours on a ring are null."
)
EPILOG = epilog(
    "graph --clients 1000 --adversarial 0.05 --dropout 0.1 --rings 10000", ExitCode.BOUND, ExitCode.INFEASIBLE
)


def _run(as_json: Json = False, **given: Any) -> int:
    from sordino.lab.graph import attack_figures, graph_figures, graph_lines

    own = built(GraphOptions, chosen(given, GraphOptions))
    figures = graph_figures(own)
    if own.rings:
        figures["attack"] = attack_figures(figures, own.rings)
    code = answer(as_json, figures, graph_lines(figures))
    if own.rings and not figures["attack"]["ok"]:
        raise Failure(ExitCode.BOUND, "the attack succeeds more often than these parameters allow: report it.")
    return code


run = with_options(_run, options(GraphOptions))
