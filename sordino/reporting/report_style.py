"""The report's style sheet: one page on a screen, in the dark and on paper."""

from __future__ import annotations

from typing import Final

STYLE: Final = """\
:root {
  --page: #ffffff; --ink: #1c2126; --muted: #5d6771; --grid: #dfe3e7; --quiet: #e9edf0;
  --accent: #0b6e82; --warn: #b3491f;
  --phase-1: #8c9db5; --phase-2: #3f6fa3; --phase-3: #0b8a8f; --phase-4: #c99a2e; --phase-5: #a4527a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14181b; --ink: #e4e8eb; --muted: #9aa5ae; --grid: #333b42; --quiet: #262d32;
    --accent: #4fb7ca; --warn: #e2875b;
    --phase-1: #8797ae; --phase-2: #5b8fc9; --phase-3: #2f9ea3; --phase-4: #c79b3b; --phase-5: #bb6c93;
  }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, "Segoe UI", "Helvetica Neue", "Noto Sans", "DejaVu Sans", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 3rem 1.5rem 4rem; }
h1 { font-size: 2.1rem; line-height: 1.15; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 1.15rem; margin: 0 0 0.15rem; }
.kind { margin: 0 0 0.2rem; color: var(--accent); font-weight: 600; font-size: 0.9rem; }
.facts { margin: 0.4rem 0 0; color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(8.2rem, 1fr)); gap: 1.2rem 1.5rem;
  margin: 2rem 0 1.6rem; padding: 1.2rem 0; border-top: 1px solid var(--grid);
  border-bottom: 1px solid var(--grid); }
.tiles dt { color: var(--muted); font-size: 0.875rem; }
.tiles dd { margin: 0; }
.tiles b { display: block; font-size: 1.7rem; line-height: 1.25; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.tiles span { display: block; color: var(--muted); font-size: 0.8rem; line-height: 1.35; }
.lead { max-width: 46rem; margin: 0 0 2.4rem; }
section { margin: 2.6rem 0 0; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 2rem; margin: 0; }
figure { margin: 2.4rem 0 0; min-width: 0; }
.pair figure { margin: 0; }
.second { margin-top: 2.4rem; }
.terms.mechanism { margin: 0 0 2.4rem; font-size: 0.9rem; border-top: 1px solid var(--grid); }
.mechanism dt { color: var(--muted); font-weight: 500; }
figure p { margin: 0 0 0.6rem; color: var(--muted); font-size: 0.9rem; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-family: inherit; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; margin-top: 0.8rem; }
th, td { text-align: left; padding: 0.35rem 0.9rem 0.35rem 0; vertical-align: top;
  border-bottom: 1px solid var(--grid); }
th { font-weight: 600; }
thead th { color: var(--muted); font-weight: 500; vertical-align: bottom; }
small { display: block; font-size: 0.75rem; color: var(--muted); font-weight: 400; }
td small { display: inline; }
.numbers { font-variant-numeric: tabular-nums; }
.numbers th, .numbers td { text-align: right; padding: 0.3rem 0 0.3rem 0.8rem; white-space: nowrap; }
.numbers th:first-child, .numbers td:first-child { text-align: left; padding-left: 0; }
.scroll { overflow-x: auto; }
.wide svg { min-width: 40rem; overflow: hidden; }
.plan th, .plan td:nth-child(2) { white-space: nowrap; }
.plan td:last-child { color: var(--muted); }
.terms { margin: 0.6rem 0 0; }
.terms div { display: grid; grid-template-columns: 14rem 1fr; gap: 0 1.5rem; padding: 0.55rem 0;
  border-bottom: 1px solid var(--grid); }
.terms dt { font-weight: 600; }
.terms dd { margin: 0; }
footer p { margin: 0; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; color: var(--muted); font-size: 0.85rem; }
@media (max-width: 40rem) {
  main { padding-top: 1.5rem; }
  .pair { grid-template-columns: 1fr; }
  .terms div { grid-template-columns: 1fr; }
}
@media print {
  :root { --page: #ffffff; --ink: #000000; --muted: #444444; --grid: #cccccc; --quiet: #e6e6e6;
    --accent: #0b6e82; --warn: #b3491f; }
  body { font-size: 11px; -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  main { max-width: none; padding: 0; }
  figure, tr, .terms div { break-inside: avoid; }
  .pair { grid-template-columns: 1fr 1fr; }
}
"""
