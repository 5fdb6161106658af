// How many messages there were in the last hour, and its charts.

import { $, address, chart, counted, drawn, node } from "./drawing.js";

const KEPT = 60, HOUR_S = 3600, LEAST_S = 300, BANDS = 5, RATE_S = 15, NOW_S = 10;
const seen = new Map();  // of each queue: {at, depth, came}, the oldest first, since the page was opened
let hour = { every_s: 20, at: [], queues: {} };  // the same, from the server: of the queue that is looked at, or of all
let hourIs = null;  // of what, and when it was asked for
let now = 0;  // the server's time of the last look

// Whether that of a queue, or of all, is asked for; time_us as the server tells it.
export const isWanted = (queue, time_us) => hourIs?.queue !== queue || time_us / 1e6 - hourIs.at >= hour.every_s;

export function keep(found, queue, time_us) {
  hour = found;
  hourIs = { queue, at: time_us / 1e6 };
}

export function note(queues, time_us) {
  now = time_us / 1e6;
  for (const queue of queues) {
    const points = seen.get(queue.name) || [];
    if (points.at(-1)?.at !== now) points.push({ at: now, depth: queue.depth, came: queue.counters.enqueued });
    seen.set(queue.name, points.slice(-KEPT));
  }
}

// Of a queue: what the server has of the last hour, then what the page has seen.
export function past(name) {
  const kept = hour.queues[name] || { depth: [], came: [] }, first = hour.at.length - kept.depth.length, here = seen.get(name) || [];
  const since = Math.max(now - HOUR_S, 0), until = here[0]?.at ?? Infinity;
  const points = kept.depth.map((depth, n) => ({ at: hour.at[first + n], depth, came: kept.came[n] }));
  return [...points.filter((one) => one.at < until), ...here].filter((one) => one.at >= since);
}

// Messages a second that came and went between two points.
function rates(from, to) {
  const seconds = to.at - from.at, came = Math.max(0, to.came - from.came);
  return seconds > 0 ? [came / seconds, Math.max(0, came - (to.depth - from.depth)) / seconds] : [NaN, NaN];
}

export function ratesNow(name) {
  const points = past(name), last = points.at(-1);
  return rates(points.findLast((one) => last.at - one.at >= NOW_S) || points[0], last);
}

export const perSecond = (rate) => (rate > 0 ? rate.toLocaleString("en", { maximumFractionDigits: rate < 10 ? 1 : 0 }) : "");
const stretch = (points) => ({ now, from: Math.min(points[0]?.at ?? now, now - LEAST_S) });

// The space as a picture: the largest queues as bands, one upon the other, over the last hour.
export function drawWhole(queues) {
  const times = [...hour.at.filter((at) => at < now && at >= now - HOUR_S), now];
  const depths = (queue) => { const kept = hour.queues[queue.name]?.depth || []; return [...times.slice(0, -1).map((_, n) => kept[kept.length - times.length + 1 + n] ?? 0), queue.depth]; };
  const all = queues.map((queue) => ({ name: queue.name, depths: depths(queue) })).sort((a, b) => Math.max(...b.depths) - Math.max(...a.depths));
  const few = all.filter((one, n) => n < BANDS && Math.max(...one.depths) > 0), rest = all.slice(few.length).filter((one) => Math.max(...one.depths) > 0);
  if (rest.length) few.push({ name: "", depths: times.map((_, n) => rest.reduce((sum, one) => sum + one.depths[n], 0)) });
  let below = times.map((at) => [at, 0]);
  const bands = few.map((one, n) => {
    const points = times.map((at, which) => [at, below[which][1] + one.depths[which]]), band = [`band b${n}`, points, below];
    below = points;
    return band;
  });
  const high = Math.max(...below.map(([, depth]) => depth), 1), { from } = stretch([{ at: times[0] }]);
  chart($("whole-chart"), `All messages in the last hour: ${below.at(-1)[1]} now, ${high} at most`, bands, { from, now, high, unit: "messages" });
  const names = few.map((one, n) => node("li", {}, node("i", { class: `band b${n}` }), one.name ? node("a", { href: address(one.name), text: one.name }) : `${counted(rest.length, "other queue")}`, ` ${one.depths.at(-1).toLocaleString("en")}`));
  if ($("whole-names").textContent !== names.map((one) => one.textContent).join("")) $("whole-names").replaceChildren(...names);
}

export function sparkline(points, depths) {
  const low = Math.min(...depths), high = Math.max(...depths), label = `from ${depths[0]} to ${depths.at(-1)} messages, ${low} to ${high} between`;
  return drawn(label, [["band b1", points.map((one) => [one.at, one.depth])]], { ...stretch(points), high });
}

// Of one queue: how many, and how many came and left.
export function drawHour(queue) {
  const points = past(queue.name), time = stretch(points), depths = points.map((one) => [one.at, one.depth]), high = Math.max(...points.map((one) => one.depth), 1);
  chart($("depth-chart"), `Messages in the last hour: ${queue.depth} now, ${high} at most`, [["band b1", depths]], { ...time, high, unit: "messages" });
  const flow = [[], []];
  let before = points[0];
  for (const one of points) {
    if (one.at - before.at < RATE_S) continue;
    rates(before, one).forEach((rate, which) => flow[which].push([one.at, rate]));
    before = one;
  }
  const fast = Math.max(...flow.flat().map(([, rate]) => rate), 0.1);
  chart($("flow-chart"), `Messages a second in the last hour: ${fast.toFixed(1)} at most`, [["in", flow[0]], ["out", flow[1]]], { ...time, high: fast, unit: "a second", lines: true });
}
