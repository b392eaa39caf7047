// The page of a trace: rows of warps, engines and stages of pipelines over time. `timeline.py` describes the model.
"use strict";
const $ = (id) => document.getElementById(id);
const escaped = (text) => String(text).replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
const canvas = $("canvas"), axis = $("axis"), pen = canvas.getContext("2d"), ruler = axis.getContext("2d");
const HEAD = 22, ROW = 19, STAGE = 11, EDGE = 3;
const ENGINES = { "bulk load": "load", "cp.async": "load", "bulk store": "store", wgmma: "mma", "tcgen05.mma": "mma" };
const LEGEND = [["wait", "waits"], ["issue", "issues"], ["arrive", "arrives"], ["compute", "computes"], ["load", "loads"], ["mma", "MMAs"], ["store", "stores"], ["work", "works"], ["range", "range"]];
let model, launch, rows = [], height = 0, left = 0, right = 1, least = 0, most = 1, chosen = null, colours = {}, labels = 150;

async function unpacked() {
  const bytes = Uint8Array.from(atob($("model").textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// --- the model ---------------------------------------------------------------------------------------------------------

const event = (n) => { const [tracks, sites, begins, ends] = launch.events, [name, kind, line] = launch.sites[sites[n]]; return { n, track: tracks[n], name, kind, line, begin: begins[n], end: ends[n], known: launch.known[n] ?? {} }; };
const nameOf = ([, warp, engine, role]) => [engine, warp === null ? "" : `warp ${warp}`, role && !engine ? role : ""].filter(Boolean).join(" ") || "CTA";
const short = ([, warp, engine, role]) => engine ? (warp === null ? engine : `${engine} w${warp}`) : warp === null ? "CTA" : `w${warp}${role ? ` ${role}` : ""}`;

function colourOf(one) {
  if (one.kind === "work") return ENGINES[launch.tracks[one.track][2]] ?? "work";
  return LEGEND.some(([name]) => name === one.kind) ? one.kind : "range";
}

function prepare(one) {
  if (one.ready) return;
  one.ready = true;
  const count = one.events[0]?.length ?? 0;
  one.by = one.tracks.map(() => []);
  one.lives = one.tracks.map(() => null);
  for (let n = 0; n < count; n++) {
    if (one.sites[one.events[1][n]][1] !== "run") one.by[one.events[0][n]].push(n);
    else one.lives[one.events[0][n]] = [one.events[2][n], one.events[3][n]];
  }
  for (const own of one.by) own.sort((a, b) => one.events[2][a] - one.events[2][b] || one.events[3][b] - one.events[3][a]);
  one.causes = new Map(); one.targets = new Map();
  one.edges[0].forEach((source, n) => {
    const target = one.edges[1][n];
    one.causes.set(target, [...(one.causes.get(target) ?? []), source]);
    one.targets.set(source, [...(one.targets.get(source) ?? []), target]);
  });
  one.lit = new Set(one.path.map(([, , , n]) => n));
}

function lanesOf(own) { // events of one lane do not overlap, but may contain each other
  const lanes = [], ends = [];
  for (const n of own) {
    const begin = launch.events[2][n], end = launch.events[3][n];
    let at = ends.findIndex((last) => last <= begin);
    if (at < 0 && lanes.length < 8) { at = lanes.length; lanes.push([]); }
    if (at < 0) at = lanes.length - 1;
    lanes[at].push(n);
    ends[at] = Math.max(ends[at] ?? 0, end);
  }
  return lanes;
}

function layOut() {
  rows = [];
  let y = 0;
  const shown = $("block").value, blocks = [...new Set(launch.tracks.map(([block]) => block))].sort((a, b) => a - b);
  const order = launch.tracks.map((_, n) => n).sort((a, b) => (launch.tracks[a][2] !== "") - (launch.tracks[b][2] !== "") || launch.tracks[a][1] - launch.tracks[b][1] || launch.tracks[a][2].localeCompare(launch.tracks[b][2]));
  const add = (row, tall) => { rows.push({ ...row, y, tall }); y += tall; };
  for (const block of blocks) {
    if (shown !== "all" && +shown !== block) continue;
    const sm = launch.tracks.find(([of, , , , sm]) => of === block && sm !== null)?.[4];
    add({ head: `CTA ${block}${sm === undefined || sm === null ? "" : ` on SM ${sm}`}` }, HEAD);
    for (const n of order) {
      if (launch.tracks[n][0] !== block || !launch.by[n].length) continue;
      const lanes = launch.tracks[n][2] ? lanesOf(launch.by[n]) : [launch.by[n]];
      lanes.forEach((own, lane) => add({ track: n, own, name: lane ? "" : nameOf(launch.tracks[n]), short: lane ? "" : short(launch.tracks[n]) }, lanes.length > 1 ? 12 : ROW));
    }
    for (const pipe of launch.pipelines.filter((one) => one.block === block)) {
      add({ sub: `pipeline ${pipe.lines.join(", ")}` }, HEAD - 3);
      for (let stage = 0; stage < pipe.stages; stage++) add({ pipe, stage, fills: pipe.fills.filter(([of]) => of === stage), name: `stage ${stage}`, short: `stage ${stage}` }, STAGE);
    }
  }
  height = y + 4;
  draw();
}

// --- drawing -----------------------------------------------------------------------------------------------------------

const width = () => canvas.clientWidth;
const x = (time) => labels + ((time - left) / (right - left)) * (width() - labels);
const timeAt = (at) => left + ((at - labels) / (width() - labels)) * (right - left);

function readColours() {
  const style = getComputedStyle(document.documentElement), probe = document.createElement("i");
  document.body.append(probe);
  for (const name of ["wait", "issue", "arrive", "compute", "load", "mma", "store", "work", "range", "full", "use", "path", "ink", "soft", "edge", "panel", "raised", "paper", "ember"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  colours.mono = style.getPropertyValue("--mono");
}

function sized(one, context, tall) {
  const ratio = Math.min(devicePixelRatio || 1, 16000 / Math.max(tall, 1)), wide = one.clientWidth;
  if (one.width !== Math.round(wide * ratio) || one.height !== Math.round(tall * ratio)) {
    one.width = Math.round(wide * ratio); one.height = Math.round(tall * ratio); one.style.height = `${tall}px`;
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, wide, tall);
}

function draw() {
  if (!launch || !width()) return;
  labels = width() < 600 ? 104 : 168;
  sized(canvas, pen, height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  grid();
  for (const row of rows) {
    if (row.own) drawEvents(row);
    else if (row.fills) drawFills(row);
  }
  if ($("show-path").checked) drawPath();
  if ($("show-arrows").checked) drawArrows();
  drawLabels();
  drawAxis();
}

function ticks() {
  const room = Math.max(2, Math.floor((width() - labels) / 90)), raw = (right - left) / room, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= raw), made = [];
  for (let at = Math.ceil(left / step) * step; at <= right; at += step) made.push(at);
  return made;
}

function grid() {
  pen.strokeStyle = colours.edge;
  pen.lineWidth = 1;
  pen.globalAlpha = 0.6;
  pen.beginPath();
  for (const at of ticks()) { const px = Math.round(x(at)) + 0.5; pen.moveTo(px, 0); pen.lineTo(px, height); }
  pen.stroke();
  pen.globalAlpha = 1;
  for (const row of rows) if (row.head) { pen.fillStyle = colours.raised; pen.fillRect(0, row.y, width(), row.tall); }
}

function drawEvents(row) {
  const [, sites, begins, ends] = launch.events, top = row.y + EDGE - (row.tall < ROW ? 2 : 0), tall = row.tall - (row.tall < ROW ? 2 : 2 * EDGE);
  const life = launch.lives[row.track];
  if (life && row.tall >= ROW) { // from a warp's first instruction to its last
    const from = Math.max(labels, x(life[0])), to = Math.min(width(), x(life[1]));
    pen.fillStyle = colours.edge;
    if (to > from) pen.fillRect(from, top + tall / 2 - 1, to - from, 2);
  }
  let last = -1, drawn = "";
  for (const n of row.own) {
    if (ends[n] < left || begins[n] > right) continue;
    const from = Math.max(labels, x(begins[n])), to = Math.min(width(), x(ends[n])), one = event(n), colour = colourOf(one);
    if (to - from < 0.7 && to <= last && colour === drawn) continue; // within the pixel that is drawn already
    const wide = Math.max(0.8, to - from - (to - from > 3 ? 0.6 : 0));
    pen.fillStyle = colours[colour];
    pen.fillRect(from, top, wide, tall);
    last = from + wide; drawn = colour;
    if (n === chosen) { pen.strokeStyle = colours.ink; pen.lineWidth = 2; pen.strokeRect(from, top, Math.max(2, wide), tall); }
    if (wide > 26 && tall > 10) {
      const text = fitting(one.name, wide - 8);
      pen.fillStyle = colour === "wait" ? colours.ink : colours.panel;
      if (text.length > 2) pen.fillText(text, from + 4, top + tall / 2 + 0.5);
    }
  }
}

function fitting(text, room) { // as much of a text as there is room for
  const all = pen.measureText(text).width;
  return all <= room ? text : text.slice(0, Math.floor((text.length * room) / all) - 1);
}

function drawFills(row) {
  const top = row.y + 1, tall = row.tall - 2;
  for (const [, begin, landed, needed, released] of row.fills) {
    if (released < left || begin > right) continue;
    const span = (a, b) => [Math.max(labels, x(a)), Math.min(width(), x(b)) - Math.max(labels, x(a))];
    const [from, filling] = span(begin, landed), [full, holding] = span(landed, released), used = Math.max(needed, landed);
    pen.fillStyle = colours.full;
    pen.globalAlpha = 0.28;
    if (filling > 0) pen.fillRect(from, top, filling, tall);
    pen.globalAlpha = 1;
    if (filling > 6) hatch(from, top, filling, tall);
    if (holding > 0) pen.fillRect(full, top, Math.max(0.8, holding - 0.8), tall);
    const [use, using] = span(used, released);
    pen.fillStyle = colours.use;
    if (using > 0) pen.fillRect(use, top + tall / 3, Math.max(0.8, using - 0.8), tall / 3);
  }
}

function hatch(from, top, wide, tall) {
  pen.save();
  pen.beginPath(); pen.rect(from, top, wide, tall); pen.clip();
  pen.strokeStyle = colours.full; pen.lineWidth = 1;
  pen.beginPath();
  for (let at = from - tall; at < from + wide; at += 5) { pen.moveTo(at, top + tall); pen.lineTo(at + tall, top); }
  pen.stroke(); pen.restore();
}

const rowOf = (n) => rows.find((row) => row.own?.includes(n));
function middles() { // the vertical middle of each event that has a row
  const made = new Map();
  for (const row of rows) if (row.own) for (const n of row.own) made.set(n, row.y + row.tall / 2);
  return made;
}

function drawPath() {
  const at = middles(), of = new Map();
  for (const row of rows) if (row.own && !of.has(row.track)) of.set(row.track, row.y + row.tall / 2);
  pen.strokeStyle = colours.path; pen.lineWidth = 2; pen.globalAlpha = 0.9;
  pen.beginPath();
  let last = null;
  for (const [track, begin, end, n] of launch.path) {
    const y = at.get(n) ?? of.get(track);
    if (y === undefined || end < left || begin > right) { last = null; continue; }
    const from = Math.max(labels, x(begin)), to = Math.min(width(), x(end)), below = y + 6;
    if (last !== null) { pen.moveTo(from, last); pen.lineTo(from, below); }
    pen.moveTo(from, below); pen.lineTo(to, below);
    last = below;
  }
  pen.stroke();
  pen.globalAlpha = 1;
}

function drawArrows() {
  const at = middles(), [, , , ends] = launch.events, shown = [];
  launch.edges[0].forEach((source, n) => {
    const target = launch.edges[1][n];
    if (!at.has(source) || !at.has(target) || ends[target] < left || ends[source] > right) return;
    shown.push([source, target]);
  });
  const all = shown.length <= (width() - labels) / 9; // more would hide the boxes
  for (const [source, target] of shown) {
    const own = source === chosen || target === chosen;
    if (!all && !own) continue;
    const a = [Math.max(labels, x(ends[source])), at.get(source)], b = [Math.max(labels, x(ends[target])), at.get(target)];
    pen.strokeStyle = pen.fillStyle = own ? colours.ember : colours.soft;
    pen.lineWidth = own ? 2 : 1;
    pen.globalAlpha = own ? 1 : 0.5;
    const bend = Math.max(8, Math.min(40, Math.abs(b[0] - a[0]) / 2 + 8));
    pen.beginPath(); pen.moveTo(...a); pen.bezierCurveTo(a[0] + bend, a[1], b[0] - bend, b[1], ...b); pen.stroke();
    pen.beginPath(); pen.moveTo(b[0], b[1]); pen.lineTo(b[0] - 5, b[1] - 3); pen.lineTo(b[0] - 5, b[1] + 3); pen.fill();
  }
  pen.globalAlpha = 1;
}

function drawLabels() {
  pen.fillStyle = colours.panel;
  pen.fillRect(0, 0, labels, height);
  for (const row of rows) {
    if (row.head || row.sub) {
      if (row.head) { pen.fillStyle = colours.raised; pen.fillRect(0, row.y, width(), row.tall); }
      pen.font = row.head ? "600 12px system-ui, sans-serif" : "11px system-ui, sans-serif";
      pen.fillStyle = row.head ? colours.ink : colours.soft;
      pen.fillText(row.head ?? row.sub, 10, row.y + row.tall / 2 + 0.5);
    } else {
      pen.font = row.tall < 14 ? "10px system-ui, sans-serif" : "12px system-ui, sans-serif";
      pen.fillStyle = row.tall < 14 ? colours.soft : colours.ink;
      pen.fillText(labels < 120 ? row.short : row.name, 10, row.y + row.tall / 2 + 0.5, labels - 14);
    }
  }
  pen.strokeStyle = colours.edge; pen.lineWidth = 1;
  pen.beginPath(); pen.moveTo(labels + 0.5, 0); pen.lineTo(labels + 0.5, height); pen.stroke();
}

function drawAxis() {
  sized(axis, ruler, 34);
  ruler.font = "11px system-ui, sans-serif";
  ruler.textBaseline = "middle";
  ruler.fillStyle = colours.soft;
  ruler.fillText(launch.unit, 10, 13);
  const made = ticks(), step = made.length > 1 ? made[1] - made[0] : 1;
  for (const at of made) {
    const text = step < 1 ? at.toFixed(1) : Math.round(at).toLocaleString("en"), px = x(at);
    if (px + ruler.measureText(text).width + 4 < width()) ruler.fillText(text, px + 3, 13);
    ruler.fillRect(px, 6, 1, 14);
  }
  const wide = width() - labels, part = (time) => labels + ((time - least) / (most - least)) * wide; // which part is shown
  ruler.fillStyle = colours.edge; ruler.fillRect(labels, 26, wide, 4);
  ruler.fillStyle = colours.ember; ruler.fillRect(part(left), 26, Math.max(3, part(right) - part(left)), 4);
}

// --- moving ------------------------------------------------------------------------------------------------------------

let due = false;
function soon() { if (!due) { due = true; requestAnimationFrame(() => { due = false; draw(); }); } }

function show(from, to) {
  const span = Math.max(8, Math.min(to - from, most - least)), at = Math.min(Math.max(least, from), most - span);
  left = at; right = at + span;
  soon();
}
const zoom = (by, about = (left + right) / 2) => show(about - (about - left) * by, about + (right - about) * by);
const move = (by) => show(left + by * (right - left), right + by * (right - left));

const fingers = new Map();
let pressed = null;

function down(one) {
  fingers.set(one.pointerId, one.offsetX);
  if (fingers.size === 1) pressed = { x: one.offsetX, y: one.offsetY, left, right, moved: false };
  if (one.pointerType === "mouse") canvas.setPointerCapture(one.pointerId);
}

function over(one) {
  if (!fingers.has(one.pointerId)) return hover(one);
  const before = [...fingers.values()];
  fingers.set(one.pointerId, one.offsetX);
  const now = [...fingers.values()];
  if (now.length === 2) {
    const apart = (pair) => Math.max(10, Math.abs(pair[0] - pair[1]));
    pressed.moved = true;
    return zoom(apart(before) / apart(now), timeAt((now[0] + now[1]) / 2));
  }
  if (!pressed || (!pressed.moved && Math.abs(one.offsetX - pressed.x) < 4)) return;
  pressed.moved = true;
  canvas.classList.add("dragging");
  const by = ((pressed.x - one.offsetX) / (width() - labels)) * (pressed.right - pressed.left);
  show(pressed.left + by, pressed.right + by);
}

function up(one) {
  fingers.delete(one.pointerId);
  canvas.classList.remove("dragging");
  if (one.type === "pointerup" && pressed && !pressed.moved) choose(under(pressed.x, pressed.y), false);
  if (!fingers.size) pressed = null;
}

function under(px, py) {
  const row = rows.find((each) => py >= each.y && py < each.y + each.tall);
  if (!row?.own || px < labels) return null;
  const [, , begins, ends] = launch.events, slack = (3 * (right - left)) / (width() - labels), at = timeAt(px);
  let best = null, distance = slack;
  for (const n of row.own) {
    const away = at < begins[n] ? begins[n] - at : at > ends[n] ? at - ends[n] : 0;
    if (away < distance || (away === 0 && (best === null || ends[n] - begins[n] <= ends[best] - begins[best]))) { best = n; distance = away || 1e-9; }
  }
  return best;
}

// --- words -------------------------------------------------------------------------------------------------------------

const count = (value) => (Math.abs(value) >= 100 ? Math.round(value).toLocaleString("en") : Math.round(value * 10) / 10);
const lasts = (cycles) => `${count(cycles)} ${launch.unit}${launch.mhz && launch.unit === "cycles" ? ` (${count((cycles / launch.mhz) * 1000)} ns)` : ""}`;

function hover(one) {
  const n = one.pointerType === "touch" ? null : under(one.offsetX, one.offsetY), tip = $("tip");
  tip.hidden = n === null;
  if (n === null) return;
  const it = event(n);
  tip.innerHTML = `<b>${escaped(it.name)}</b> ${escaped(nameOf(launch.tracks[it.track]))}<br><span>${lasts(it.end - it.begin)}${it.line ? ` · ${escaped(it.line)}` : ""}</span>`;
  tip.style.left = `${Math.min(one.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
  tip.style.top = `${one.clientY + 18}px`;
}

function coloured(line, runs) {
  let html = "", at = 0;
  for (const [, letter, length] of (runs ?? "").matchAll(/([a-z.])(\d+)/g)) {
    const part = escaped(line.slice(at, (at += +length)));
    html += letter === "." ? part : `<span class="${letter}">${part}</span>`;
  }
  return html + escaped(line.slice(at));
}

function sourceAt(place) {
  const [, name, number] = place.match(/^(.*):(\d+)$/) ?? [], file = model.files[name], line = +number;
  if (!file) return "";
  const from = Math.max(0, line - 4), made = [];
  for (let n = from; n < Math.min(file.lines.length, line + 3); n++)
    made.push(`<div class="${n + 1 === line ? "here" : ""}"><span class="num">${n + 1}</span><span>${coloured(file.lines[n], file.runs[n])}</span></div>`);
  return `<pre>${made.join("")}</pre>`;
}

function choose(n, into = true) {
  chosen = n;
  const panel = $("chosen");
  panel.hidden = n === null;
  if (n !== null) {
    const it = event(n), link = (other) => { const that = event(other); return `<button data-n="${other}">${escaped(that.name)} · ${escaped(nameOf(launch.tracks[that.track]))}</button>`; };
    const causes = launch.causes.get(n) ?? [], targets = launch.targets.get(n) ?? [];
    const known = Object.entries(it.known).map(([name, value]) => `${escaped(name)} ${escaped(value)}`).join(" · ");
    panel.innerHTML = `<h2>${escaped(it.name)} <small>${escaped(nameOf(launch.tracks[it.track]))} of CTA ${launch.tracks[it.track][0]} · ${lasts(it.end - it.begin)} · from ${count(it.begin)} to ${count(it.end)}${known ? ` · ${known}` : ""}${launch.lit.has(n) ? " · on the critical path" : ""}</small></h2>
      ${causes.length ? `<p>let go on by ${causes.slice(0, 6).map(link).join("")}</p>` : ""}${targets.length ? `<p>lets go on ${targets.slice(0, 8).map(link).join("")}${targets.length > 8 ? ` and ${targets.length - 8} more` : ""}</p>` : ""}
      ${it.line ? `<p><code>${escaped(it.line)}</code></p>${sourceAt(it.line)}` : ""}`;
    for (const button of panel.querySelectorAll("button")) button.onclick = () => choose(+button.dataset.n);
    if (into) bring(n);
  }
  soon();
}

function bring(n) { // into view
  const it = event(n), span = right - left;
  if (it.begin < left || it.end > right) show(Math.max(least, (it.begin + it.end - span) / 2), (it.begin + it.end + span) / 2);
  const row = rowOf(n), box = $("rows");
  if (row && (row.y < box.scrollTop || row.y + row.tall > box.scrollTop + box.clientHeight)) box.scrollTop = row.y - box.clientHeight / 2;
}

function step(by) {
  const row = chosen === null ? null : rowOf(chosen), own = (row ?? rows.find((each) => each.own))?.own;
  if (!own) return;
  const at = chosen === null ? 0 : own.indexOf(chosen) + by;
  if (at >= 0 && at < own.length) choose(own[at]);
}

function otherRow(by) {
  const with_ = rows.filter((row) => row.own), at = with_.indexOf(chosen === null ? null : rowOf(chosen)), row = with_[at < 0 ? 0 : at + by];
  if (!row) return;
  const time = chosen === null ? left : event(chosen).begin, [, , begins] = launch.events;
  choose(row.own.reduce((best, n) => (Math.abs(begins[n] - time) < Math.abs(begins[best] - time) ? n : best), row.own[0]));
}

// --- facts and tables --------------------------------------------------------------------------------------------------

function facts() {
  const fact = (name, value, part, first) => `<div class="fact ${first ? "first" : ""}"><span>${escaped(name)}</span><b>${value}</b>${part === undefined ? "" : `<i style="--part:${Math.min(100, 100 * part)}%"></i>`}</div>`;
  const us = (one) => `${digits(one.us)} <small>us [${digits(one.low)}, ${digits(one.high)}]</small>`, made = [], record = launch.record;
  if (record) {
    const same = record.burst.us === record.sustained.us;
    made.push(fact(`predicted${same ? "" : ", burst"}, ${Math.round(record.burst.mhz)} MHz`, us(record.burst), undefined, true));
    if (!same) made.push(fact(`sustained, ${Math.round(record.sustained.mhz)} MHz`, us(record.sustained)));
    if (record.limiter) made.push(fact("limited by", escaped(record.limiter)));
    for (const [unit, share] of Object.entries(record.busy)) if (share >= 0.005) made.push(fact(unit, `${Math.round(100 * share)} <small>% busy</small>`, share));
    made.push(fact("CTAs per SM", `${record.ctas_per_sm} <small>· ${digits(record.waves)} waves</small>`));
  }
  const [grid, block, cluster] = launch.size.map((one) => { const kept = [...one]; while (kept.length > 1 && kept.at(-1) === 1) kept.pop(); return kept.join("×"); });
  made.push(fact("grid", grid), fact("block", block));
  if (cluster !== "1") made.push(fact("cluster", cluster));
  $("facts").innerHTML = made.join("");
}
const digits = (value) => (value >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)));

function table(title, about, head, body, words = 1) {
  if (!body.length) return "";
  const kind = (n) => (n < words ? ' class="word"' : "");
  const cells = (row, tag) => `<tr>${row.map((cell, n) => `<${tag}${kind(n)}>${cell}</${tag}>`).join("")}</tr>`;
  return `<div class="box"><h2>${title}</h2>${about ? `<p>${about}</p>` : ""}<table><thead>${cells(head, "th")}</thead><tbody>${body.map((row) => cells(row, "td")).join("")}</tbody></table></div>`;
}

function tables() {
  const record = launch.record, percent = (share) => `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`, code = (text) => `<code>${escaped(text)}</code>`;
  const made = [];
  made.push(table("Critical path", "what the time consists of", ["what", "where", "line", "cycles", "share"],
    launch.shares.filter(([, , , , share]) => share >= 0.005).slice(0, 14).map(([what, where, line, cycles, share]) => [code(what), escaped(where), code(line), count(cycles), percent(share)]), 3));
  if (record) {
    made.push(table("Waits", "of a warp's time", ["line", "for", "ended by", "warps", "share"],
      record.stalls.map((one) => [code(`${one.file.split("/").at(-1)}:${one.line}`), escaped(one.what), escaped(one.cause), one.warps.length, percent(one.share)]), 3));
    made.push(table("What if", "the launch simulated again with one thing changed", ["change", "time"],
      [...record.what_ifs].sort((a, b) => a.cycles - b.cycles).map((one) => [escaped(one.change), `<span class="${one.change_of_time < -0.001 ? "less" : one.change_of_time > 0.001 ? "more" : ""}">${one.change_of_time > 0 ? "+" : "−"}${Math.abs(100 * one.change_of_time).toFixed(1)} %</span>`])));
  }
  const seen = new Set(), pipes = launch.pipelines.filter((one) => !seen.has(one.lines.join()) && seen.add(one.lines.join()));
  made.push(table("Pipelines", "how long before it is needed the data of a stage is there", ["filled at", "stages", "early by", "waits for it", "empty"],
    pipes.map((one) => [code(one.lines.join(", ")), one.stages, `${count(one.early)} <small>${launch.unit}</small>`, `${count(one.late)} <small>${launch.unit}</small>`, percent(one.empty)])));
  if (launch.notes.length) made.push(`<div class="box"><h2>How sure it is</h2>${launch.notes.map((note) => `<p>${escaped(note)}</p>`).join("")}</div>`);
  $("tables").innerHTML = made.join("");
}

// --- the page ----------------------------------------------------------------------------------------------------------

function showLaunch(number) {
  launch = model.launches[number];
  prepare(launch);
  chosen = null;
  $("chosen").hidden = true;
  $("device").textContent = [launch.device, launch.source].filter(Boolean).join(" · ");
  const blocks = [...new Set(launch.tracks.map(([block]) => block))].sort((a, b) => a - b);
  $("block-label").hidden = blocks.length < 2;
  $("block").innerHTML = [...blocks, "all"].map((each) => `<option>${each}</option>`).join("");
  $("block").value = launch.tracks.length > 40 && blocks.length ? blocks[0] : "all";
  const [, , begins, ends] = launch.events.length ? launch.events : [[], [], [], []];
  least = begins.reduce((a, b) => Math.min(a, b), Infinity);
  most = ends.reduce((a, b) => Math.max(a, b), -Infinity);
  if (!(most > least)) { least = 0; most = 1; }
  left = least; right = most;
  const used = new Set();
  launch.by.forEach((own) => own.forEach((n) => used.add(colourOf(event(n)))));
  const stages = launch.pipelines.length ? [["full hatched", "stage is filled"], ["full", "stage is full"], ["use", "in use"]] : [];
  $("legend").innerHTML = [...LEGEND.filter(([name]) => used.has(name)), ...stages].map(([name, text]) => `<span><i class="${name.split(" ")[1] ?? ""}" style="--colour:var(--${name.split(" ")[0]})"></i>${text}</span>`).join("");
  facts();
  tables();
  layOut();
}

function switchTheme() {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  readColours();
  draw();
}

const KEYS = {
  "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), 0: () => show(least, most), w: () => zoom(0.6), s: () => zoom(1 / 0.6), a: () => move(-0.2), d: () => move(0.2),
  ArrowLeft: () => step(-1), ArrowRight: () => step(1), ArrowUp: () => otherRow(-1), ArrowDown: () => otherRow(1), Escape: () => choose(null),
  c: () => { const cause = chosen !== null && launch.causes.get(chosen)?.at(-1); if (typeof cause === "number") choose(cause); },
  z: () => { if (chosen !== null) { const it = event(chosen), more = 2 * (it.end - it.begin) + 20; show(it.begin - more, it.end + more); } },
  t: switchTheme, "?": () => $("help").showModal(),
};

async function start() {
  model = await unpacked();
  $("title").textContent = model.title;
  const theme = new URLSearchParams(location.search).get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  readColours();
  $("launch-label").hidden = model.launches.length < 2;
  $("launch").innerHTML = model.launches.map((one, n) => `<option value="${n}">${escaped(one.kernel)}${model.launches.length > 1 ? ` (${escaped(one.source)} ${n})` : ""}</option>`).join("");
  $("launch").onchange = () => showLaunch(+$("launch").value);
  $("block").onchange = layOut;
  $("in").onclick = () => zoom(0.6);
  $("out").onclick = () => zoom(1 / 0.6);
  $("fit").onclick = () => show(least, most);
  $("show-path").onchange = $("show-arrows").onchange = draw;
  $("theme").onclick = switchTheme;
  $("help-open").onclick = () => $("help").showModal();
  $("foot").textContent = model.command;
  canvas.onpointerdown = down; canvas.onpointermove = over; canvas.onpointerup = up; canvas.onpointercancel = up;
  canvas.onpointerleave = () => { $("tip").hidden = true; };
  canvas.addEventListener("wheel", (one) => {
    if (one.ctrlKey || one.metaKey) { one.preventDefault(); zoom(Math.exp(one.deltaY * 0.004), timeAt(Math.max(labels, one.offsetX))); }
    else if (one.shiftKey || Math.abs(one.deltaX) > Math.abs(one.deltaY)) { one.preventDefault(); move((one.deltaX || one.deltaY) / width()); }
  }, { passive: false });
  const jump = (one) => { if (one.buttons || one.type === "pointerdown") { const at = least + ((one.offsetX - labels) / (width() - labels)) * (most - least), half = (right - left) / 2; show(at - half, at + half); } };
  axis.onpointerdown = (one) => { axis.setPointerCapture(one.pointerId); jump(one); };
  axis.onpointermove = jump;
  document.addEventListener("keydown", (one) => {
    if (one.ctrlKey || one.metaKey || one.altKey || $("help").open || one.target.closest("select, input, button")) return;
    const act = KEYS[one.key];
    if (act) { one.preventDefault(); act(); }
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readColours(); draw(); });
  new ResizeObserver(soon).observe($("timeline"));
  if (model.launches.length) showLaunch(0);
  document.querySelector("main").removeAttribute("aria-busy");
}

start();
