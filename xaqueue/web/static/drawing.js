// How things are drawn: as text nodes and shapes, never as markup. Nothing is asked or kept here.

export const address = (queue) => `#queue=${encodeURIComponent(queue)}`;
export const $ = (id) => document.getElementById(id);

export function node(kind, given = {}, ...inside) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(given)) {
    if (value === false || value === undefined) continue;
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

function shape(kind, given, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
  for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

export const cell = (what, kind = "") => node("td", { class: kind || false }, ...(what || what === 0 ? [what] : []));  // an empty one has no text at all: see the style
export const number = (value) => cell(value === null || value === undefined ? "" : value.toLocaleString("en"), value ? "n" : "n none");
export const button = (text, act, of, more = {}) => node("button", { type: "button", "data-do": act, "data-of": of, text, ...more });
export const head = (...inside) => node("th", { scope: "row" }, ...inside);
export const counted = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

// An id as people say it, a button where it opens something, and a button that copies it whole.
export function short(id) {
  return id.length <= 20 ? id : /^[0-9a-f]{32}$/.test(id) ? `${id.slice(0, 8)}…` : `${id.slice(0, 8)}…${id.slice(-8)}`;
}

export function named(id, act, what) {
  const text = act ? button(short(id), act, id, { class: "plain id", title: id, "aria-label": `${what} ${short(id)}` }) : node("span", { class: "id", title: id, text: short(id) });
  return node("span", { class: "line" }, text, button("", "copy", id, { class: "copy", title: "Copy it whole", "aria-label": `Copy the id of ${what.toLowerCase()} ${short(id)}` }));
}

export function fill(body, rows) {
  // Only what has changed is put in anew, so that the focus stays, and a screen reader says nothing twice. What tells
  // beforehand by its stamp that nothing has is not even made: there may be a thousand queues.
  const heads = [...body.closest("table").tHead.rows[0].cells].map((one) => one.textContent.trim());
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  rows.forEach(({ key, stamp, make }, at) => {
    let here = known.get(key);
    if (here && stamp && here.stamp === stamp) {
      if (body.rows[at] !== here) body.insertBefore(here, body.rows[at]);
      return;
    }
    const made = make();
    [...made.cells].forEach((one, n) => { one.dataset.label = heads[n]; });
    here = here || made;
    if (body.rows[at] !== here) body.insertBefore(here, body.rows[at] || null);
    if (here !== made) [...made.cells].forEach((one, n) => here.cells[n].isEqualNode(one) || here.cells[n].replaceWith(one));
    here.className = made.className;
    here.dataset.key = key;
    here.stamp = stamp;
  });
  while (body.rows.length > rows.length) body.lastElementChild.remove();
}

export function pairs(list, rows) {
  list.replaceChildren(...rows.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([name, value]) => [node("dt", { text: name }), node("dd", {}, typeof value === "number" ? value.toLocaleString("en") : value)]));
}

// Numbers with their names: [value, name, address, kind]. What is nothing is faint, what is wrong has its colour.
export function tiles(place, rows) {
  rows.forEach(([value, name, href, kind], at) => {
    const tile = place.children[at] || place.appendChild(node("li", {}, node("a", {}, node("strong"), " ", node("span"))));
    const link = tile.firstElementChild, [big, small] = link.children, look = kind || (value === "0" ? "none" : "");
    if (tile.className !== look) tile.className = look;
    if (href) link.setAttribute("href", href);
    if (big.textContent !== value) big.textContent = value;
    if (small.textContent !== name) small.textContent = name;
  });
  while (place.children.length > rows.length) place.lastElementChild.remove();
}

// What stands between backticks is for a command line.
export const told = (text) => text.split("`").map((part, n) => (n % 2 ? node("code", { text: part }) : part));

// Times and sizes

export function span(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

export const age = (at, now) => (at ? span(Math.max(0, (now - at) / 1e6)) : "");
const clock = (at) => new Date(at / 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function when(at, now, whole = false) {
  if (!at) return "";
  const text = at > now ? `in ${span((at - now) / 1e6)}` : `${age(at, now)} ago`, day = clock(at);
  return node("time", { datetime: new Date(at / 1000).toISOString(), title: day, text: whole ? `${text} (${day})` : text });
}

export function size(bytes) {
  if (!Number.isFinite(bytes)) return "";
  let unit = 0;
  for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
  return `${unit ? bytes.toFixed(1) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// Charts: bands of [kind, [[seconds, value], ...]], one upon the other where they are stacked, over the time from..now.

const WIDE = 600, HIGH = 100, ROOM = 97;  // a line at the top is seen whole

function path(points, from, now, high, low = []) {
  const place = ([at, value]) => `${(WIDE * (at - from) / (now - from)).toFixed(1)} ${(HIGH - ROOM * value / (high || 1)).toFixed(1)}`;
  return `M${[...points, ...low.toReversed()].map(place).join("L")}${low.length ? "Z" : ""}`;
}

export function drawn(label, bands, { from, now, high, lines = false }) {
  const shapes = bands.map(([kind, points, below]) => shape("path", { class: lines ? `${kind} stroke` : kind, d: points.length ? path(points, from, now, high, lines ? [] : below || [[points[0][0], 0], [points.at(-1)[0], 0]]) : "" }));
  return shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...shapes);
}

export function chart(place, label, bands, { from, now, high, unit, lines }) {
  const top = `at most ${high.toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
  const made = [drawn(label, bands, { from, now, high, lines }), node("span", { class: "top", text: top }),
    node("span", { class: "axis" }, node("span", { text: `${span(now - from)} ago` }), node("span", { text: "now" }))];
  place.replaceChildren(...made);
}
