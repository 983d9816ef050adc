// Draws the feed of sordino/reporting/feed.py as it comes. Everything is put in as text, never as markup.
"use strict";

const shown = {};
const byId = (id) => document.getElementById(id);
const node = (tag, attributes, ...inside) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) made.setAttribute(name, value);
  made.append(...inside.map((one) => (one instanceof Node ? one : String(one ?? ""))));
  return made;
};
const put = (id, ...inside) => byId(id).replaceChildren(...inside);
const fixed = (value, places) => (value === null || value === undefined ? "–" : value.toFixed(places));
const phaseWords = (name) => name.replace(/(?<=[a-z])(?=[A-Z])/g, " ");
const attempts = (many) => `${many} attempt${many === 1 ? "" : "s"}`;
const clock = (at) => new Date(at * 1000).toLocaleTimeString([], { hour12: false });

// ---------------------------------------------------------------- words and tables

const rows = (id, heads, lines) => {
  const body = lines.map((cells) =>
    node("tr", {}, ...cells.map((one, at) => node(at ? "td" : "th", at ? {} : { scope: "row" }, one))));
  const head = heads.length ? [node("thead", {}, node("tr", {}, ...heads.map((one) => node("th", { scope: "col" }, one))))] : [];
  put(id, ...(lines.length ? [...head, node("tbody", {}, ...body)] : []));
};

const draw = {
  study(study) {
    document.title = `${study.name || "Study"}: Sordino`;
    put("name", study.name || "No study has started yet");
    const who = shown.participants.roster;
    const began = study.began_at === null ? "" : `since ${new Date(study.began_at * 1000).toLocaleString([], { dateStyle: "medium", timeStyle: "short" })}`;
    put("facts", [study.task, who && `${who} participants`, study.guarantee && `${study.mechanism}, ${study.guarantee}`, began]
      .filter(Boolean).join(" · "));
    put("summary", study.summary);
    put("terms", ...study.terms.map(([name, text]) => node("div", {}, node("dt", {}, name), node("dd", {}, text))));
    put("foot", `sordino ${study.version}. This page shows counts${shown.participants.hosts ? ", hosts and participants' numbers" : ", no identities"}.`);
  },
  now(now) {
    put("waiting", now.waiting);
    const answers = byId("answers");
    answers.hidden = !now.expected;
    answers.max = now.expected || 1;
    answers.value = now.received;
    answers.setAttribute("aria-valuetext", `${now.received} of ${now.expected}, ${now.needed} needed`);
    byId("phases").hidden = Boolean(now.over) || !now.round;
    put("phases", ...now.phases.map((phase) => {
      const ended = phase.seconds !== null;
      const text = phase.now ? "now" : ended ? `${fixed(phase.seconds, 1)} s` : " ";
      const item = node("li", { class: phase.now ? "now" : ended ? "done" : "" }, phaseWords(phase.name), node("span", {}, text));
      if (phase.now) item.setAttribute("aria-current", "step");
      return item;
    }));
    if (!closed) link(now.over ? (now.over === "stopped" ? "stopped" : "finished") : "live");
  },
  participants(count) {
    const meaning = {
      roster: "on the roster", connected: "connected", attempt: "in the attempt under way", waited_for: "waited for",
      dropped: "dropped from this attempt, still connected", away: "were here and are away",
      unseen: "not seen yet", resting: "not needed for a while, will be back", excluded: "excluded: sent what no honest participant sends", set_aside: "set aside after a conflict",
    };
    const always = ["roster", "connected", "attempt", "waited_for", "dropped", "away", "unseen"];
    rows("participants", [], Object.keys(meaning).filter((one) => count[one] || always.includes(one))
      .map((one) => [meaning[one], count[one]]));
    for (const cell of byId("participants").querySelectorAll("td")) cell.className = "count";
    rows("hosts", count.hosts ? ["Host", "Connected", "Dropped", "Resting", "Away"] : [],
      (count.hosts ?? []).map((one) => [one.host, one.connected ?? 0, one.dropped ?? 0, one.resting ?? 0, one.lost ?? 0]));
  },
  dropouts(left) {
    put("aborted", left.total || left.aborted ? `${left.total} in all attempts; ${attempts(left.aborted)} aborted.` : "None so far.");
    rows("dropouts", left.total ? ["Phase", "Reason", "Participants"] : [],
      left.by_phase_and_reason.map((one) => [phaseWords(one.phase), one.reason, one.count]));
  },
  traffic: (lines) => rows("traffic", [], lines),
  transcripts(kept) {
    const none = kept.kept ? "A signed file is kept for each round. It names who took part, so this page offers it only "
      + "where it is published, or with sordino serve --page-names." : "None are kept.";
    put("kept", kept.files.length ? "A signed file for each round, the newest first; sordino transcript verify checks it. "
      + "The files of earlier rounds are in the coordinator's folder transcripts." : none);
    put("transcripts", ...kept.files.map((name) =>
      node("li", {}, node("a", { href: `transcripts/${name}`, download: name }, name))));
  },
  log(lines) {
    const last = lines.at(-1);
    put("log", ...[...lines].reverse().map((one) => node("li", {}, node("time", {}, clock(one.at)), node("span", {}, one.line))));
    if (last) say(last.line);
  },
  attempts: () => timeline(),
  curves: () => charts(),
};

const tiles = () => {
  const { now, study, privacy, found, dropouts, participants } = shown;
  const budget = (reader) => (privacy[`budget_${reader}`] === null ? "no budget" : `of ${Number(privacy[`budget_${reader}`].toPrecision(4))}`);
  put("projected", privacy.projected);
  const all = !study.rounds ? [] : [
    ["Rounds done", `${now.completed}`, `of ${study.rounds}`],
    ...found.slice(0, 2),
    ["Epsilon, coordinator", fixed(privacy.epsilon_coordinator, 2), `${budget("coordinator")}, at delta ${privacy.delta.toExponential()}`],
    ["Epsilon, released", fixed(privacy.epsilon_released, 2), budget("released")],
    ["Connected", `${participants.connected}`, `of ${participants.roster} participants`],
    ["Dropouts", `${dropouts.total}`, `${attempts(dropouts.aborted)} aborted`],
  ];
  put("tiles", ...all.map(([name, value, note]) =>
    node("div", {}, node("dt", {}, name), node("dd", {}, node("b", {}, value), node("span", {}, note)))));
};

let toSay = "", saying = 0;
const say = (line) => {  // at most every five seconds, for screen readers
  if (line === toSay) return;
  toSay = line;
  saying ||= setTimeout(() => { saying = 0; put("said", toSay); }, 5000);
};

// ---------------------------------------------------------------- figures

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

const timeline = () => {
  const names = shown.now.phases.map((phase) => phase.name);
  const running = shown.now.phases.some((phase) => phase.now || phase.seconds !== null) && !shown.now.over;
  const list = [...shown.attempts].reverse();
  if (running) list.unshift({ round: shown.now.round, attempt: shown.now.attempt, outcome: "under way",
    phase_seconds: Object.fromEntries(shown.now.phases.map((phase) => [phase.name, phase.seconds ?? 0])) });
  const total = (one) => names.reduce((sum, name) => sum + (one.phase_seconds[name] ?? 0), 0);
  const longest = Math.max(0.001, ...list.map(total));
  put("legend", ...names.map((name, at) => node("span", {}, node("i", { class: `phase-${at + 1}` }), phaseWords(name))));
  put("attempts", ...list.map((one) => {
    const label = names.map((name) => `${phaseWords(name)} ${fixed(one.phase_seconds[name] ?? 0, 1)} s`).join(", ");
    const bar = node("div", { class: "bar", role: "img", "aria-label": label, title: label }, ...names.map((name, at) => {
      const part = node("span", { class: `phase-${at + 1}` });
      part.style.width = `${(100 * (one.phase_seconds[name] ?? 0)) / longest}%`;
      return part;
    }));
    const again = one.attempt > 1 ? `, attempt ${one.attempt}` : "";
    const aborted = one.outcome.startsWith("aborted") ? "aborted" : "";
    return node("li", {}, node("span", {}, `Round ${one.round}${again}`), bar,
      node("small", { class: aborted }, `${fixed(total(one), 1)} s, ${phaseWords(one.outcome)}`));
  }));
};

const plots = {};
const chart = (id, caption, series, places) => {
  const figure = byId(`figure-${id}`), place = figure.querySelector(".chart");
  const some = series.filter((one) => one.values.some((value) => value !== null));
  figure.hidden = !some.length;
  if (!some.length) return;
  figure.querySelector("p").textContent = caption;
  const last = some.map((one) => `${one.label} ${fixed(one.values.findLast((value) => value !== null), places)}`).join(", ");
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", `By round. Last: ${last}. All values are in the table of rounds.`);
  const data = [shown.curves.round, ...some.map((one) => one.values)];
  const key = some.map((one) => one.label).join() + place.clientWidth + colour("ink");
  const atLast = (plot) => plot.cursor.idx ?? plot.setLegend({ idx: plot.data[0].length - 1 });
  if (plots[id]?.key === key) {
    plots[id].plot.setData(data);
    return atLast(plots[id].plot);
  }
  plots[id]?.plot.destroy();
  const axis = { stroke: colour("muted"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, font: "12px system-ui, sans-serif" };
  const plot = new uPlot({
    width: place.clientWidth, height: 208, cursor: { y: false, drag: { x: false } }, hooks: { setCursor: [atLast] }, scales: { x: { time: false } },
    axes: [{ ...axis, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 100000] }, { ...axis, size: 52 }],
    series: [{ label: "Round" }, ...some.map((one) => ({
      label: one.label, stroke: colour(one.colour), width: 2, dash: one.dash, spanGaps: true,
      points: { show: one.values.length < 2 }, value: (_, value) => fixed(value, places),
    }))],
  }, data, place);
  plots[id] = { key, plot };
  atLast(plot);
};

const charts = () => {
  const curves = shown.curves, privacy = shown.privacy;
  const flat = (value) => curves.round.map(() => value);
  const found = curves.figure.some((value) => value !== null) ? shown.found[0][0] : "Accuracy";
  byId("figure-found").querySelector("h2").textContent = found;
  chart("found", "After each round, on held-out data.", [
    { label: found === "Accuracy" ? "with noise" : found, values: found === "Accuracy" ? curves.accuracy : curves.figure, colour: "accent" },
    { label: "without noise", values: curves.without_noise, colour: "muted", dash: [4, 4] },
    { label: "at participants, before it", values: curves.reported, colour: "phase-5", dash: [2, 3] },
  ], 3);
  const readers = curves.epsilon_coordinator.some((value, at) => Math.abs(value - curves.epsilon_released[at]) > 5e-3);
  const budgets = { coordinator: privacy.budget_coordinator, released: privacy.budget_released };
  chart("epsilon", readers ? "Coordinator: who sees every sum. Released: a reader of what is released." : "Coordinator and released are equal.", [
    { label: readers ? "coordinator" : "epsilon", values: curves.epsilon_coordinator, colour: "accent" },
    ...(readers ? [{ label: "released", values: curves.epsilon_released, colour: "phase-5", dash: [2, 3] }] : []),
    { label: readers ? "budget, coordinator" : "budget", values: flat(budgets.coordinator), colour: "warn", dash: [6, 4] },
  ], 2);
  chart("loss", "After each round, on held-out data.", [{ label: "loss", values: curves.loss, colour: "accent" }], 3);
  chart("bytes", "kB in each round, protobuf framing included, TLS not.", [
    { label: "upload", values: curves.upload.map((value) => value / 1e3), colour: "accent" },
    { label: "download", values: curves.download.map((value) => value / 1e3), colour: "phase-5", dash: [2, 3] },
  ], 1);
  const kinds = [
    ["Round", "round", 0], ["In the sum", "u3", 0], ["Left", "left", 0], ["Accuracy", "accuracy", 3], ["Without noise", "without_noise", 3],
    ["At participants", "reported", 3], [found, "figure", 3], ["Loss", "loss", 3], ["Epsilon coordinator", "epsilon_coordinator", 2],
    ["Epsilon released", "epsilon_released", 2], ["Took, s", "seconds", 1], ["Upload, bytes", "upload", 0], ["Download, bytes", "download", 0],
  ].filter(([, name]) => curves[name].some((value) => value !== null));
  const from = Math.max(0, curves.round.length - 50);
  rows("rounds", kinds.map(([head]) => head), curves.round.slice(from)
    .map((_, at) => kinds.map(([, name, places]) => fixed(curves[name][from + at], places))).reverse());
};

// ---------------------------------------------------------------- the stream

let closed = true;
const link = (text, away = false) => { put("link", text); byId("link").className = away ? "pill away" : "pill"; };

const listen = () => {
  const source = new EventSource("events");
  source.onmessage = (message) => {
    closed = false;
    const changed = JSON.parse(message.data);
    Object.assign(shown, changed);
    for (const name of Object.keys(draw)) if (name in changed) draw[name](changed[name]);
    if ("now" in changed && !("attempts" in changed)) timeline();
    tiles();
  };
  source.onerror = () => {
    closed = true;
    const over = shown.now?.over && shown.now.over !== "stopped";
    const since = shown.now ? `, as it was at ${clock(shown.now.at)}` : "";
    link(over ? "finished; the coordinator has ended" : `no connection, trying again${since}`, !over);
    if (source.readyState === EventSource.CLOSED) setTimeout(listen, 5000);  // an answer that is no stream
  };
};

let resizing = 0;
const redraw = () => { clearTimeout(resizing); resizing = setTimeout(() => shown.curves && charts(), 150); };
addEventListener("resize", redraw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
listen();
