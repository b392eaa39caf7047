// The page of `kiln inspect --html`: panes of text whose lines light up together. The model is described in inspect_model.py.
"use strict";
const KINDS = { py: "Python", mlir: "MLIR", llvm: "LLVM", ptx: "PTX", sass: "SASS" };
const $ = (id) => document.getElementById(id);
const escaped = (text) => text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const element = (html) => Object.assign(document.createElement("template"), { innerHTML: html }).content.firstElementChild;
const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
const hueOf = (place) => { const [file, line] = place.split(":").map(Number); return (line * 137.5 + file * 61) % 360; };
let settled = false; // first jumps are at once
let model, unit, base = null; // the function shown, and the one it is compared with
let pinned = null, lit = null; // places, "file:line"
const panes = [], outline = { shown: innerWidth >= 1800 }, ROW = 18;
const narrow = matchMedia("(max-width: 700px)"); // panes are tabs

async function unpacked() {
  const bytes = Uint8Array.from(atob($("model").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// --- rows: what a pane shows, of one text or of two -------------------------------------------------------------------

function rowsOf(text, start = 0, end = text.lines.length, mark = "") {
  const rows = [];
  for (let n = start; n < end; n++)
    rows.push({ n, line: text.lines[n], runs: text.runs[n], place: text.places?.[n]?.join(":") ?? null,
      label: text.labels ? text.labels[n] : String(n + 1), live: text.live?.[n], mark });
  return rows;
}

function paneRows(pane) {
  const text = pane.texts[pane.chosen];
  if (pane.kind === "py") return rowsOf(text).map((row) => ({ ...row, place: unit.known.has(`${pane.chosen}:${row.n + 1}`) ? `${pane.chosen}:${row.n + 1}` : null }));
  const key = `${text.kind}/${text.title}`, number = (one) => model.units.indexOf(one);
  const diff = base && (model.diffs[`${number(base)}:${number(unit)}`] ?? {})[key];
  if (!diff) return rowsOf(text);
  const before = base.texts.find((one) => `${one.kind}/${one.title}` === key);
  return diff.flatMap(([same, a, b, c, d]) => same ? rowsOf(text, c, d) : [...rowsOf(before, a, b, "removed"), ...rowsOf(text, c, d, "added")]);
}

function coloured(line, runs) {
  let html = "", at = 0;
  for (const [, letter, length] of runs.matchAll(/([a-z.])(\d+)/g)) {
    const part = escaped(line.slice(at, (at += +length)));
    html += letter === "." ? part : `<span class="${letter}">${part}</span>`;
  }
  return html + escaped(line.slice(at));
}

// --- columns ----------------------------------------------------------------------------------------------------------

const ALARMING = new Set(["local", "banks", "findings"]);

function cells(pane, row) {
  if (pane.kind === "sass") return unit.most ? `<span class="cell" title="live registers">${bar(row.live, unit.most, 210)}</span>` : "";
  if (pane.kind !== "py") return "";
  const at = `${pane.chosen}:${row.n + 1}`;
  return unit.columns.map((column) => {
    const value = column.values[at], was = base?.columns.find((one) => one.id === column.id)?.values[at];
    const change = base && (value ?? 0) !== (was ?? 0) ? (value ?? 0) - (was ?? 0) : 0;
    const shown = value === undefined && !change ? "" : bar(value ?? 0, column.most, column.id === "live" ? 210 : ALARMING.has(column.id) ? 4 : 24) +
      (change ? ` <em class="${change > 0 ? "more" : "less"}">${change > 0 ? "+" : "−"}${Math.abs(change)}</em>` : "");
    return `<span class="cell ${ALARMING.has(column.id) && value ? "alarm" : ""}" data-c="${column.id}" title="${escaped(column.details[at] ?? "")}">${shown}</span>`;
  }).join("");
}

function bar(value, most, heat) {
  return value === undefined || value === null ? "" : `<i style="--part:${(100 * value) / (most || 1)}%;--heat:${heat}"></i><em>${Math.round(value * 10) / 10}</em>`;
}

function heads(pane) {
  if (pane.kind === "sass" && unit.most) return `<div class="heads"><span class="num">address</span><span class="cell" title="registers in use at each instruction">live</span></div>`;
  if (pane.kind !== "py" || !unit.columns.length) return "";
  return `<div class="heads"><span class="num"></span>${unit.columns.map((c) => `<button class="cell" data-c="${c.id}" title="${escaped(c.help)}; click for the line with the most, again for the next">${escaped(c.title)}</button>`).join("")}</div>`;
}

// --- panes ------------------------------------------------------------------------------------------------------------

function makePanes() {
  for (const [number, [kind, title]] of Object.entries(KINDS).entries()) {
    const pane = { kind, title, chosen: 0, cursor: 0, rows: [], texts: [], marked: [], shown: kind !== "llvm" || innerWidth > 2200 };
    pane.root = element(`<section class="pane" data-kind="${kind}" aria-label="${title}"><header><h2>${title}</h2><select aria-label="${title}: which"></select>
      <span class="count"></span><button title="previous (N)" aria-label="previous">↑</button><button title="next (n)" aria-label="next">↓</button></header>
      <div class="body"><div class="code" role="listbox" tabindex="0" aria-label="${title}"></div><canvas class="ruler" aria-hidden="true"></canvas></div></section>`);
    pane.code = pane.root.querySelector(".code");
    pane.ruler = pane.root.querySelector(".ruler");
    pane.select = pane.root.querySelector("select");
    pane.toggle = element(`<button title="show or hide (${number + 1})">${title}</button>`);
    pane.toggle.onclick = () => show(pane, !pane.shown);
    $("toggles").append(pane.toggle);
    pane.select.onchange = () => choose(pane, pane.select.selectedIndex);
    const [previous, next] = pane.root.querySelectorAll("header button");
    previous.onclick = () => step(pane, -1);
    next.onclick = () => step(pane, 1);
    pane.code.onmouseover = (event) => {
      const row = rowAt(pane, event), line = event.target.closest(".line");
      if (row) light(row.place ?? pinned);
      if (line) line.title = line.scrollWidth > pane.code.clientWidth ? row.line.trim() : ""; // what does not fit
    };
    pane.code.onmouseleave = () => light(pinned);
    pane.code.onclick = (event) => { const head = event.target.closest("button.cell"), row = rowAt(pane, event); if (head) nextBy(head.dataset.c); else if (row) { move(pane, pane.rows.indexOf(row), false); pin(row.place, pane); } };
    pane.ruler.onclick = (event) => { pane.code.scrollTop = (event.offsetY / pane.ruler.clientHeight) * pane.code.scrollHeight - pane.code.clientHeight / 2; };
    if (panes.length) pane.split = splitter(panes.at(-1), pane);
    panes.push(pane);
  }
}

function makeOutline() {
  outline.root = element(`<aside class="outline" aria-label="outline"></aside>`);
  outline.toggle = element(`<button title="how the kernels are built (0)">Outline</button>`);
  outline.toggle.onclick = () => showOutline(!outline.shown);
  outline.root.onclick = (event) => { const at = event.target.closest("[data-p]"); if (at) pin(at.dataset.p, null); };
  outline.root.onmouseover = (event) => { const at = event.target.closest("[data-p]"); light(at ? at.dataset.p : pinned); };
  outline.root.onmouseleave = () => light(pinned);
  $("toggles").prepend(outline.toggle);
}

function showOutline(shown) {
  if (narrow.matches && shown) alone(outline);
  outline.shown = shown || (narrow.matches && !panes.some((pane) => pane.shown));
  outline.root.innerHTML = unit.outline.map(([title, items]) => `<h3>${title}</h3><ul>${items.map(([words, place, depth]) => {
    const text = `<span>${place ? place[1] : ""}</span>${escaped(words)}`, style = `style="padding-left:${6 + 12 * depth}px;${place ? `--hue:${hueOf(place.join(":"))}` : ""}"`;
    return place ? `<li><button data-p="${place.join(":")}" ${style}>${text}</button></li>` : `<li><p ${style}>${text}</p></li>`;
  }).join("")}</ul>`).join("");
  layOut();
}

function rowAt(pane, event) {
  const line = event.target.closest(".line");
  return line && pane.rows[+line.dataset.r];
}

function nextBy(name) { // the line with the most of a column, then the one with the next most
  const values = Object.entries(unit.columns.find((column) => column.id === name).values).sort((a, b) => b[1] - a[1]).map(([place]) => place);
  const place = values[(values.indexOf(pinned) + 1) % values.length];
  pin(place, null);
}

function splitter(left, right) {
  const bar = element(`<div class="split" role="separator" aria-orientation="vertical" aria-label="width of panes"></div>`);
  bar.onpointerdown = (down) => {
    const before = panes.slice(0, panes.indexOf(right)).filter((pane) => pane.shown).at(-1) ?? left;
    const widths = [before, right].map((pane) => pane.root.offsetWidth), grown = [before, right].map((pane) => +getComputedStyle(pane.root).flexGrow);
    bar.setPointerCapture(down.pointerId);
    bar.onpointermove = (now) => [before, right].forEach((pane, n) => {
      const width = Math.max(120, widths[n] + (n ? down.clientX - now.clientX : now.clientX - down.clientX));
      pane.root.style.flexGrow = ((grown[0] + grown[1]) * width) / (widths[0] + widths[1]);
    });
    bar.onpointerup = () => { bar.onpointermove = null; panes.forEach(drawRuler); };
  };
  return bar;
}

function show(pane, shown) {
  if (!pane.texts.length) return;
  pane.shown = shown || narrow.matches;
  if (narrow.matches) alone(pane); // tabs
  layOut();
  if (shown) render(pane);
}

function alone(shown) { // of the panes and the outline
  for (const pane of panes) pane.shown = pane === shown;
  outline.shown = shown === outline;
}

function layOut() {
  const shown = panes.filter((pane) => pane.shown && pane.texts.length);
  $("panes").replaceChildren(...(outline.shown ? [outline.root] : []), ...shown.flatMap((pane, n) => (n ? [pane.split, pane.root] : [pane.root])));
  outline.toggle.setAttribute("aria-pressed", String(outline.shown));
  for (const pane of panes) {
    pane.toggle.setAttribute("aria-pressed", String(pane.shown && pane.texts.length > 0));
    pane.toggle.disabled = !pane.texts.length;
    pane.root.style.flexGrow ||= pane.kind === "py" ? 1.6 : 1;
  }
  requestAnimationFrame(() => panes.forEach(drawRuler));
}

function choose(pane, number) {
  pane.chosen = (number + pane.texts.length) % pane.texts.length;
  pane.select.selectedIndex = pane.chosen;
  pane.cursor = 0;
  render(pane);
}

function render(pane) {
  if (!pane.shown || !pane.texts.length) return;
  pane.rows = paneRows(pane);
  pane.byPlace = Map.groupBy ? Map.groupBy(pane.rows.keys(), (n) => pane.rows[n].place) : new Map();
  if (!Map.groupBy) pane.rows.forEach((row, n) => pane.byPlace.set(row.place, [...(pane.byPlace.get(row.place) ?? []), n]));
  const wide = Math.max(...pane.rows.slice(-1).map((row) => row.label.length), 3);
  pane.code.style.setProperty("--numbers", `${wide + 2}ch`);
  if (pane.kind === "py") pane.code.style.setProperty("--wide", base ? "72px" : "48px");
  const chunks = [];
  for (let start = 0; start < pane.rows.length; start += 100) {
    const lines = pane.rows.slice(start, start + 100).map((row, n) =>
      `<div class="line ${row.mark}" role="option" id="${pane.kind}-${start + n}" data-r="${start + n}" data-n="${row.n}"${row.place ? ` data-p="${row.place}" style="--hue:${hueOf(row.place)}"` : ""}>` +
      `<span class="num">${row.label}</span>${cells(pane, row)}<code>${coloured(row.line, row.runs)}</code></div>`);
    chunks.push(`<div class="chunk" role="presentation" style="--height:${lines.length * ROW}px">${lines.join("")}</div>`);
  }
  pane.code.innerHTML = heads(pane) + chunks.join("");
  pane.marked = [];
  paint(pane);
}

// --- lighting ---------------------------------------------------------------------------------------------------------

function light(place) {
  if (place === lit) return;
  lit = place;
  panes.forEach(paint);
  say();
}

function paint(pane) {
  if (!pane.shown || !pane.texts.length) return;
  for (const line of pane.marked) line.classList.remove("lit", "via", "pin");
  pane.marked = [];
  const put = (place, name) => { for (const n of pane.byPlace.get(place) ?? []) { const line = $(`${pane.kind}-${n}`); line.classList.add(name); pane.marked.push(line); } };
  if (lit) {
    put(lit, "lit");
    for (const place of unit.called.get(lit) ?? []) if (place !== lit) put(place, "via");
    if (pane.kind === "py") for (const place of unit.callers.get(lit) ?? []) if (place !== lit) put(place, "via");
  }
  if (pinned) put(pinned, "pin");
  const count = pane.byPlace.get(lit)?.length ?? 0;
  pane.root.querySelector(".count").textContent = base && pane.kind !== "py" ? changes(pane) : lit && pane.kind !== "py" ? `${count} of ${pane.rows.length} lines` : `${pane.rows.length} lines`;
  drawRuler(pane);
}

function changes(pane) {
  const count = (mark) => pane.rows.filter((row) => row.mark === mark).length;
  return `+${count("added")} −${count("removed")}`;
}

function pin(place, from) {
  pinned = place;
  lit = undefined;
  light(place);
  history.replaceState(null, "", place ? `#${linkTo(place)}` : location.pathname + location.search);
  if (!place) return;
  const file = +place.split(":")[0];
  for (const pane of panes) {
    if (pane === from || !pane.shown) continue;
    if (pane.kind === "py" && pane.chosen !== file) choose(pane, file);
    const first = pane.byPlace.get(place)?.[0];
    if (first !== undefined) { mark(pane, first); into(pane, first); }
  }
}

function linkTo(place) {
  const [file, line] = place.split(":");
  return +file ? `py:${encodeURIComponent(model.files[file].name)}:${line}` : `py:${line}`;
}

function followLink() {
  const found = /^#py:(?:([^:]+):)?(\d+)$/.exec(location.hash);
  if (!found) return;
  const file = found[1] ? model.files.findIndex((one) => one.name === decodeURIComponent(found[1])) : 0;
  if (file >= 0) pin(`${file}:${+found[2]}`, null);
}

function into(pane, n) { // rows are of one height, and offsets of lines that are not laid out yet cannot be asked for
  const top = n * ROW + (pane.code.querySelector(".heads")?.offsetHeight ?? 0) - pane.code.clientHeight / 2;
  pane.code.scrollTo({ top, behavior: calm || !settled ? "auto" : "smooth" });
}

function mark(pane, n) {
  const before = $(`${pane.kind}-${pane.cursor}`);
  before?.classList.remove("cursor");
  before?.removeAttribute("aria-selected");
  pane.cursor = Math.max(0, Math.min(pane.rows.length - 1, n));
  const line = $(`${pane.kind}-${pane.cursor}`);
  line?.classList.add("cursor");
  line?.setAttribute("aria-selected", "true");
  if (line) pane.code.setAttribute("aria-activedescendant", line.id);
  return line;
}

function move(pane, n, lights = true) {
  mark(pane, n)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  if (lights) light(pane.rows[pane.cursor].place ?? pinned);
}

function step(pane, by) {
  const wanted = found.size && found.pane === pane ? (n) => found.has(n) : base && pane.kind !== "py" ? (n) => pane.rows[n].mark && pane.rows[n - 1]?.mark !== pane.rows[n].mark : (n) => pane.rows[n].place === (pinned ?? lit);
  for (let n = pane.cursor + by; n >= 0 && n < pane.rows.length; n += by) if (wanted(n)) { mark(pane, n); return into(pane, n); }
}

function drawRuler(pane) {
  const canvas = pane.ruler, height = (canvas.height = canvas.clientHeight), count = pane.rows.length;
  if (!height || !count) return;
  const context = canvas.getContext("2d");
  canvas.width = 10;
  const thick = Math.max(1.5, height / count);
  pane.rows.forEach((row, n) => {
    const strong = row.place && (row.place === lit || row.place === pinned);
    if (!row.place && !row.mark) return;
    context.globalAlpha = strong || row.mark ? 1 : 0.3;
    context.fillStyle = strong ? "#f0761d" : row.mark ? (row.mark === "added" ? "#2da44e" : "#cf4037") : `hsl(${hueOf(row.place)} 60% 55%)`;
    context.fillRect(strong || row.mark ? 0 : 3, (n / count) * height, 10, strong ? Math.max(3, thick) : thick);
  });
}

// --- words about it ---------------------------------------------------------------------------------------------------

function say() {
  if (!lit) { $("status").innerHTML = `${escaped(model.command)} · Kiln ${escaped(model.kiln)}${model.ptxas ? ` · ptxas ${escaped(model.ptxas)}` : ""} · <b>?</b> for keys`; return; }
  const [file, line] = lit.split(":").map(Number), parts = [];
  for (const column of [...unit.columns].sort((a, b) => ALARMING.has(b.id) - ALARMING.has(a.id))) { // what is wrong comes first
    const value = column.values[lit];
    if (!value) continue;
    const share = column.id === "sass" ? ` (${((100 * value) / column.total).toFixed(1)} %)` : "";
    parts.push(`<b class="${ALARMING.has(column.id) ? "more" : ""}">${Math.round(value * 10) / 10} ${escaped(column.title)}</b>${share}${column.details[lit] ? `: ${escaped(column.details[lit])}` : ""}`);
  }
  const from = [...(unit.direct.get(lit) ?? [])].map((place) => place.split(":")[1]);
  const gone = unit.known.has(lit) && !unit.called.get(lit)?.size && unit.instructions !== undefined; // folded, or not needed
  const none = gone ? "no machine code is left of it" : "no instructions of its own";
  $("status").innerHTML = `<b>${escaped(model.files[file].name)}:${line}</b> <code>${escaped((model.files[file].lines[line - 1] ?? "").trim())}</code> · ${parts.join(" · ") || none}${from.length ? ` · called from line ${from.join(", ")}` : ""}`;
}

function facts() {
  const fact = (name, value, words, part, bad) => `<div class="fact ${bad ? "bad" : ""} ${name === "kernel" ? name : ""}" title="${escaped(words)}"><span>${name}</span><b>${value}</b>${part === undefined ? "" : `<i style="--part:${Math.min(100, part)}%"></i>`}</div>`;
  const kib = (bytes) => (bytes >= 1024 ? `${Math.round(bytes / 102.4) / 10} <small>KiB</small>` : `${bytes} <small>B</small>`);
  const by = (extents) => { const kept = [...extents]; while (kept.length > 1 && kept.at(-1) === 1) kept.pop(); return kept.join("<small>×</small>"); };
  $("facts").innerHTML = unit.kernels.map((kernel) => {
    const old = base?.kernels.find((one) => one.name === kernel.name) ?? base?.kernels[0];
    const delta = (name) => { const by = old ? (kernel[name] ?? 0) - (old[name] ?? 0) : 0; return by ? ` <small class="${by > 0 ? "more" : "less"}">${by > 0 ? "+" : "−"}${Math.abs(by)}</small>` : ""; };
    const made = [fact("kernel", escaped(kernel.name), `${kernel.file}:${kernel.line}`)];
    made.push(kernel.grid ? fact("grid", by(kernel.grid), "blocks of the first launch") : fact("grid", "dynamic", "nothing was launched: its blocks are known at run time"));
    if (kernel.block) made.push(fact("block", by(kernel.block), "threads of a block"));
    if (kernel.cluster?.some((n) => n > 1)) made.push(fact("cluster", by(kernel.cluster), "blocks of a cluster"));
    if (kernel.registers) {
      made.push(fact("registers", `${kernel.registers}${delta("registers")} <small>of 255</small>`, "registers of a thread", kernel.registers / 2.55));
      const spilt = kernel.spill_stores + kernel.spill_loads;
      made.push(fact("spills", spilt ? `${kib(spilt)}${delta("spill_stores")}` : "none", "bytes stored to and loaded from local memory because registers ran out", undefined, spilt));
      if (kernel.stack) made.push(fact("local memory", kib(kernel.stack), "bytes of each thread's own memory", undefined, true));
    }
    const shared = (kernel.smem ?? 0) + (kernel.dynamic ?? 0);
    made.push(fact("shared memory", `${kib(shared)}${delta("dynamic")} <small>of ${Math.floor(kernel.most_smem / 1024)} KiB</small>`, "bytes of a block, and the most it can have", (100 * shared) / kernel.most_smem));
    if (kernel.most_warps) made.push(fact("occupancy", `${Math.round((100 * kernel.warps) / kernel.most_warps)} <small>% · ${kernel.blocks} block${kernel.blocks === 1 ? "" : "s"} · ${escaped(kernel.limiter)}</small>`, `${kernel.warps} of ${kernel.most_warps} warps of an SM; limited by ${kernel.limiter}`, (100 * kernel.warps) / kernel.most_warps, !kernel.blocks));
    for (const message of kernel.messages ?? []) made.push(fact("ptxas", escaped(message.slice(0, 40)), message, undefined, true));
    return made.join("");
  }).join("") + (unit.instructions ? fact("machine code", `${unit.instructions} <small>instructions</small>`, "of all kernels of this function") : "");
}

// --- functions and configs --------------------------------------------------------------------------------------------

function prepare(one) {
  const edges = one.calls.map(([inner, outer]) => [inner.join(":"), outer.join(":")]);
  const closure = (from, to) => {
    const next = new Map(), all = new Map();
    for (const edge of edges) next.set(edge[from], [...(next.get(edge[from]) ?? []), edge[to]]);
    for (const start of next.keys()) {
      const seen = new Set(), todo = [...next.get(start)];
      while (todo.length) { const place = todo.pop(); if (!seen.has(place)) { seen.add(place); todo.push(...(next.get(place) ?? [])); } }
      all.set(start, seen);
    }
    return all;
  };
  one.called = closure(1, 0);
  one.callers = closure(0, 1);
  one.direct = new Map();
  for (const [inner, outer] of edges) one.direct.set(inner, (one.direct.get(inner) ?? new Set()).add(outer));
  one.known = new Set(one.texts.flatMap((text) => text.places.filter(Boolean).map((place) => place.join(":"))));
  for (const column of one.columns) {
    column.most = Math.max(...Object.values(column.values));
    column.total = Object.values(column.values).reduce((a, b) => a + b, 0);
    Object.keys(column.values).forEach((place) => one.known.add(place));
  }
  const sass = one.texts.find((text) => text.kind === "sass");
  one.instructions = sass?.labels?.filter(Boolean).length;
  one.most = sass?.live ? Math.max(...sass.live.map((n) => n ?? 0)) : 0;
}

function showUnit(number, other) {
  unit = model.units[number];
  base = other === null ? null : model.units[other];
  $("arch").textContent = unit.arch;
  for (const pane of panes) {
    pane.texts = pane.kind === "py" ? model.files : unit.texts.filter((text) => text.kind === pane.kind);
    pane.select.innerHTML = pane.texts.map((text) => `<option>${escaped(pane.kind === "py" ? text.name : text.title)}</option>`).join("");
    pane.select.hidden = pane.texts.length < 2;
    pane.chosen = pane.kind === "mlir" ? Math.min(pane.chosen, pane.texts.length - 1) : 0;
    pane.select.selectedIndex = pane.chosen;
    pane.cursor = 0;
  }
  const others = [...model.units.keys()].filter((n) => `${n}:${number}` in model.diffs);
  $("other-label").hidden = !others.length;
  $("other").innerHTML = ["", ...others].map((n) => `<option value="${n}" ${n === other ? "selected" : ""}>${n === "" ? "nothing" : escaped(model.units[n].config ?? model.units[n].name)}</option>`).join("");
  facts();
  showOutline(outline.shown && unit.outline.length > 0);
  panes.forEach(render);
  say();
}

// --- search, theme, keys ----------------------------------------------------------------------------------------------

const found = new Set();

function search() {
  const pane = focused(), words = $("query").value.toLowerCase();
  for (const line of document.querySelectorAll(".line.found")) line.classList.remove("found");
  found.clear();
  found.pane = pane;
  if (words) pane.rows.forEach((row, n) => { if (row.line.toLowerCase().includes(words)) { found.add(n); $(`${pane.kind}-${n}`).classList.add("found"); } });
  $("hits").textContent = words ? `${found.size} line${found.size === 1 ? "" : "s"}` : "";
  const first = [...found].find((n) => n >= pane.cursor) ?? [...found][0];
  if (first !== undefined) { mark(pane, first); into(pane, first); }
}

let last = null;
const focused = () => (last?.shown ? last : panes.find((pane) => pane.shown && pane.texts.length));

function openSearch() {
  $("search").hidden = false;
  $("query").select();
  $("query").focus();
}

function closeSearch() {
  $("search").hidden = true;
  $("query").value = "";
  const pane = focused();
  search();
  pane.code.focus();
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
}

function otherPane(by) {
  const shown = panes.filter((pane) => pane.shown && pane.texts.length);
  shown[(shown.indexOf(focused()) + by + shown.length) % shown.length].code.focus();
}

const KEYS = {
  ArrowDown: (pane) => move(pane, pane.cursor + 1), j: (pane) => move(pane, pane.cursor + 1), ArrowUp: (pane) => move(pane, pane.cursor - 1), k: (pane) => move(pane, pane.cursor - 1),
  PageDown: (pane) => move(pane, pane.cursor + 25), PageUp: (pane) => move(pane, pane.cursor - 25), Home: (pane) => move(pane, 0), End: (pane) => move(pane, pane.rows.length - 1),
  ArrowRight: () => otherPane(1), l: () => otherPane(1), ArrowLeft: () => otherPane(-1), h: () => otherPane(-1),
  Enter: (pane) => pin(pane.rows[pane.cursor].place, pane), " ": (pane) => pin(pane.rows[pane.cursor].place, pane), Escape: () => pin(null, null),
  n: (pane) => step(pane, 1), N: (pane) => step(pane, -1), "[": (pane) => choose(pane, pane.chosen - 1), "]": (pane) => choose(pane, pane.chosen + 1),
  "/": openSearch, "?": () => $("help").showModal(), t: switchTheme,
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target === $("query")) {
    if (event.key === "Escape") closeSearch();
    else if (event.key === "Enter") { event.preventDefault(); step(focused(), event.shiftKey ? -1 : 1); }
    return;
  }
  if (event.target.closest("select, button")) { if (!["/", "?", "t"].includes(event.key)) return; }
  const pane = panes[+event.key - 1], act = KEYS[event.key];
  if (pane) show(pane, !pane.shown);
  else if (event.key === "0") showOutline(!outline.shown);
  else if (act) act(focused());
  else return;
  event.preventDefault();
});
document.addEventListener("focusin", (event) => { last = panes.find((pane) => pane.root.contains(event.target)) ?? last; });

async function start() {
  model = await unpacked();
  $("title").textContent = model.title;
  makePanes();
  makeOutline();
  if (innerWidth < 1250) panes[1].shown = false;
  if (narrow.matches) alone(panes[0]);
  narrow.onchange = () => { if (narrow.matches) alone(panes.find((pane) => pane.shown) ?? panes[0]); layOut(); panes.filter((pane) => pane.shown).forEach(render); };
  model.units.forEach(prepare);
  $("unit").innerHTML = model.units.map((one, n) => `<option value="${n}">${escaped(one.name)}${one.config ? ` ${escaped(one.config)}` : ""}</option>`).join("");
  $("unit-label").hidden = model.units.length < 2;
  $("notes").hidden = !model.notes.length;
  $("notes").firstElementChild.textContent = model.notes.length === 1 ? "1 note" : `${model.notes.length} notes`;
  $("notes").lastElementChild.innerHTML = model.notes.map((note) => `<p>${escaped(note)}</p>`).join("");
  $("unit").onchange = () => showUnit(+$("unit").value, null);
  $("other").onchange = () => showUnit(+$("unit").value, $("other").value === "" ? null : +$("other").value);
  $("query").oninput = search;
  $("search").onsubmit = (event) => event.preventDefault();
  $("search-open").onclick = openSearch;
  $("theme").onclick = switchTheme;
  $("help-open").onclick = () => $("help").showModal();
  const theme = new URLSearchParams(location.search).get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  const compared = Object.keys(model.diffs)[0]?.split(":").map(Number);
  if (compared) $("unit").value = compared[1];
  showUnit(compared ? compared[1] : 0, compared ? compared[0] : null);
  $("panes").removeAttribute("aria-busy");
  const kernel = unit.kernels[0]; // what is most wanted first
  for (const pane of panes) {
    const first = pane.kind === "py" ? kernel.line - 1 : pane.rows.findIndex((row) => /func\.func |^define |\.entry /.test(row.line) && row.line.includes(kernel.name));
    if (first > 0) into(pane, first + Math.floor(pane.code.clientHeight / ROW / 2) - 3);
  }
  followLink();
  settled = true;
  addEventListener("hashchange", followLink);
  addEventListener("resize", () => panes.forEach(drawRuler));
}

start();
