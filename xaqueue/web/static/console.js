// The page asks the server that it is from and nobody else. What comes is made into text nodes, never into markup.

const EVERY_MS = 2000, KEPT = 60, RATE_POINTS = 6, LOOK_MS = 10000, ACT_MS = 60000;
const TOKEN = "xaqueue.token";
const $ = (id) => document.getElementById(id);
const history = new Map();  // of each queue: {at, depth, came, went}, the oldest first
let shown = null;  // the last overview
let looked = null;  // the messages that are listed: {queue, rows}
let open = null;  // the message or branch that a dialog is about
let turn = 0;  // of polls: an answer to an older one, with another token perhaps, is let go
let polling = null;  // the newest of them
let looking = 0;  // likewise of lists of messages
let acting = false;  // something is being changed: nothing else is sent meanwhile

// Asking

async function ask(path, action, token = sessionStorage.getItem(TOKEN)) {
  const headers = {};
  if (token) headers.authorization = `Bearer ${token}`;
  const how = { headers, cache: "no-store", signal: AbortSignal.timeout(action ? ACT_MS : LOOK_MS) };
  if (action) {
    Object.assign(headers, { "x-xaqueue": "1", "content-type": "application/json" });
    Object.assign(how, { method: "POST", body: JSON.stringify(action) });
  }
  let answer;
  try {
    answer = await fetch(path, how);
  } catch (error) {
    const late = error.name === "TimeoutError", told = action ? "whether it was done is not known: look before you do it again." : "is it stopped, or its disk?";
    throw Object.assign(new Error(late ? `the server has not answered for ${(action ? ACT_MS : LOOK_MS) / 1000} s: ${told}` : "the server does not answer: is it running?"), { status: 0 });
  }
  const found = await answer.json().catch(() => ({ error: `the server answered ${answer.status}` }));
  if (!answer.ok) throw Object.assign(new Error(found.error || `the server answered ${answer.status}`), { status: answer.status });
  return found;
}

// Returns when what is shown is no older than the call.
function poll() {
  polling = look(++turn);
  return polling;
}

async function look(mine) {
  try {
    const found = await ask("api/overview");
    if (mine !== turn) return polling;
    shown = found;
    document.body.classList.remove("old");
    draw();
  } catch (error) {
    if (mine !== turn) return polling;
    document.body.classList.add("old");
    light("bad", shown ? `${error.message} What stands below is old.` : error.message);
    who(error.status === 403 ? "nothing is shown without a token that the server knows" : "");
  }
}

// Drawing

function node(kind, given = {}, ...inside) {
  const made = document.createElement(kind);
  for (const [name, value] of Object.entries(given)) {
    if (value === false || value === undefined) continue;
    if (name === "text") made.textContent = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...inside);
  return made;
}

const cell = (text, kind = "") => node("td", { text, class: kind || false });
const number = (value) => cell(value === null || value === undefined ? "" : value.toLocaleString("en"), "n");
const button = (text, act, of, more = {}) => node("button", { type: "button", "data-do": act, "data-of": of, text, ...more });

function fill(body, rows) {
  // Only what has changed is put in anew, so that the focus stays, and a screen reader says nothing twice. What tells
  // beforehand by its stamp that nothing has is not even made: there may be a thousand queues.
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  rows.forEach(({ key, stamp, make }, at) => {
    let here = known.get(key);
    if (here && stamp && here.stamp === stamp) {
      if (body.rows[at] !== here) body.insertBefore(here, body.rows[at]);
      return;
    }
    const made = make();
    here = here || made;
    if (body.rows[at] !== here) body.insertBefore(here, body.rows[at] || null);
    if (here !== made) [...made.cells].forEach((cell, n) => here.cells[n].isEqualNode(cell) || here.cells[n].replaceWith(cell));
    here.dataset.key = key;
    here.stamp = stamp;
  });
  while (body.rows.length > rows.length) body.lastElementChild.remove();
}

function table(name, rows, none, part = {}) {
  const body = $(`${name}-rows`), note = $(name === "doubt" ? "doubt-note" : `${name}s-note`);
  body.closest("table").hidden = !rows.length;
  fill(body, rows);
  const text = part.error ? `Not shown: ${part.error}` : rows.length ? (part.more ? "There are more than these." : "") : none;
  if (note.textContent !== text) note.textContent = text;
}

function pairs(list, rows) {
  list.replaceChildren(...rows.filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([name, value]) => [node("dt", { text: name }), node("dd", { text: String(value) })]));
}

function span(seconds) {
  if (!(seconds >= 0)) return "";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}
const age = (at) => (at ? span(Math.max(0, (shown.now - at) / 1e6)) : "");
const when = (at) => (at ? new Date(at / 1000).toISOString().replace("T", " ").slice(0, 19) + " UTC" : "");
function size(bytes) {
  if (!Number.isFinite(bytes)) return "";
  let unit = 0;
  for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024;
  return `${unit ? bytes.toFixed(1) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// The light

function light(kind, text) {
  $("light").className = `light ${kind}`;
  if ($("state").textContent !== text) $("state").textContent = text;
  document.title = `${{ good: "", fair: "(!) ", bad: "(!!) " }[kind]}${$("name").textContent}`;
}

// The parts of the page

function draw() {
  const status = shown.status;
  $("name").textContent = status.format.name;
  const found = shown.health, count = found.length, isBad = found.some((one) => one.bad);
  const kind = isBad ? "bad" : count ? "fair" : "good";
  light(kind, count ? `${isBad ? "It does not work as it should" : "It works"}: ${count} ${count > 1 ? "things want" : "thing wants"} a look.` : "All is well.");
  const rows = found.map((one) => node("li", { class: one.bad && "bad", text: one.text }));
  const list = $("findings");
  if (list.textContent !== rows.map((row) => row.textContent).join("")) list.replaceChildren(...rows);
  who(shown.acts ? "With a token." : "Read-only: no token is shown.");
  fill($("queue-rows"), status.queues.map(queueRow));
  table("doubt", shown.in_doubt.rows.map((one) => ({ key: one.xid, make: () => doubtRow(one) })), "No branch is in doubt.", shown.in_doubt);
  const failures = status.queues.filter((queue) => shown.failure_queues.includes(queue.name));
  table("letter", failures.filter((one) => one.depth).map((one) => ({ key: one.name, make: () => letterRow(one) })), failures.length ? "No message has failed for good." : "No queue has a failure_queue: see max_tries in queues.toml.");
  table("session", shown.sessions.rows.map((one, at) => ({ key: `${at}`, make: () => sessionRow(one) })), "Nobody is connected.", shown.sessions);
  table("stream", status.queues.filter((one) => one.stream).map((one) => ({ key: one.name, make: () => streamRow(one) })), "No stream consumes a queue.");
  pairs($("facts"), facts(status));
}

function who(text) {
  $("who").textContent = text;
  $("sign").textContent = sessionStorage.getItem(TOKEN) ? "Forget the token" : "Show a token";
}

function queueRow(queue) {
  const points = history.get(queue.name) || [], came = queue.counters.enqueued, now = shown.now / 1e6;
  if (points.at(-1)?.at !== now) points.push({ at: now, depth: queue.depth, came, went: came - queue.depth });
  history.set(queue.name, points.slice(-KEPT));
  const last = points.at(-1), from = points.at(-RATE_POINTS) || points[0];
  const [ins, outs] = ["came", "went"].map((name) => (last.at > from.at ? ((last[name] - from[name]) / (last.at - from.at)).toFixed(1) : ""));
  const depths = points.map((point) => point.depth), line = depths.some((depth) => depth !== depths[0]) ? depths : [depths[0]];
  const notes = [queue.full && "full", queue.stuck && "stuck", queue.exhausted && `${queue.exhausted} to the failure queue`, queue.stream && `stream ${queue.stream}`, shown.failure_queues.includes(queue.name) && "dead letters"].filter(Boolean).join(", ");
  const oldest = age(queue.oldest), counts = [queue.ready, queue.delayed, queue.held, queue.in_doubt];
  const bytes = (queue.is_estimated ? "about " : "") + size(queue.size_bytes);
  const make = () => node("tr", {},
    node("th", { scope: "row" }, button(queue.name, "openQueue", queue.name, { class: "plain", title: queue.description || false })),
    ...counts.map(number), cell(oldest, "n"), cell(bytes, "n"), cell(ins, "n"), cell(outs, "n"), number(queue.consumers), node("td", {}, sparkline(line)), cell(notes));
  return { key: queue.name, stamp: JSON.stringify([counts, oldest, bytes, ins, outs, queue.consumers, line, notes, queue.description]), make };
}

function sparkline(depths) {
  const low = Math.min(...depths), high = Math.max(...depths);
  const place = (depth, n) => `${(100 * n / (depths.length - 1)).toFixed(1)} ${(22 - 20 * (depth - low) / (high - low)).toFixed(1)}`;
  const line = high > low ? depths.map(place) : ["0 22", "100 22"];
  const drawn = (kind, given) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", kind);
    for (const [name, value] of Object.entries(given)) made.setAttribute(name, value);
    return made;
  };
  const label = `from ${depths[0]} to ${depths.at(-1)} messages, ${low} to ${high} between`;
  const box = drawn("svg", { viewBox: "0 0 100 24", preserveAspectRatio: "none", role: "img", "aria-label": label });
  box.append(drawn("path", { d: `M${line.join("L")}` }));
  return box;
}

function doubtRow(branch) {
  const traffic = branch.queues.map((one) => [one.queue, one.adds && `+${one.adds}`, one.holds && `-${one.holds}`].filter(Boolean).join(" "));
  const head = node("th", { scope: "row" }, button(branch.xid, "openBranch", branch.xid, { class: "plain id" }));
  return node("tr", {}, head, cell(branch.state + (branch.damage.length ? ", damaged" : ""), "line"), cell(age(branch.since), "n"), cell(branch.coordinator), cell(traffic.join(", ")));
}

function letterRow(queue) {
  const acts = node("td", {}, button("Look", "openQueue", queue.name, { "aria-label": `Look at ${queue.name}` }), " ",
    button("Requeue all", "requeueAll", queue.name, { "aria-label": `Requeue all of ${queue.name}`, disabled: !shown.acts }));
  return node("tr", {}, node("th", { scope: "row", text: queue.name }), number(queue.depth), cell(age(queue.oldest), "n"), acts);
}

function sessionRow(session) {
  const waits = session.waits_for ? `${session.waits_for}, for ${age(session.waits_since)}` : "";
  const holds = session.branches.map((one) => `${one.xid} (${one.state}, ${one.messages} messages)`).join("\n");
  const more = session.holds > session.branches.length ? `\nand ${session.holds - session.branches.length} more` : "";
  return node("tr", {}, node("th", { scope: "row", text: session.who }), cell(`${session.address} (${session.transport})`),
    cell(age(session.since), "n"), number(session.calls), cell(waits), cell(holds + more, "id"));
}

function streamRow(queue) {
  const reads = queue.in_flight ? `${Math.max(queue.in_flight[0], queue.consumed) + 1} to ${queue.in_flight[1]}` : "";
  return node("tr", {}, node("th", { scope: "row", text: queue.name }), cell(queue.stream), number(queue.consumed),
    number(queue.watermark), number(Math.max(0, (queue.watermark || 0) - queue.consumed)), cell(reads));
}

function facts(status) {
  const owner = status.owner, journal = status.journal, replica = status.replication;
  const roles = { source: "ships its journal", replica: `a replica of ${replica?.url}`, promoted: `was promoted in the place of ${replica?.url}`, replaced: "was replaced by its replica" };
  const heard = replica && (replica.connected ? "in touch" : "not in touch");
  return [
    ["Directory", status.directory],
    ["Owner", owner && `process ${owner.pid} on ${owner.host} since ${owner.since}`],
    ["Sync", `${status.sync}: a commit ${status.promise}`],
    ["Replica", replica ? `${roles[replica.role]}; ${heard}; ${size(replica.lag_bytes)} behind${replica.lag_s ? `, ${span(replica.lag_s)}` : ""}${replica.waits ? "; steps wait for it" : ""}` : "none"],
    ["Branches", `${status.active} at work, ${status.in_doubt} in doubt, ${status.committing} committing, ${status.heuristic} decided by hand`],
    ["Journal", journal && (journal.damage || `${size(journal.allocated_bytes)} in ${journal.segments} segments${Number.isInteger(journal.ahead) ? `, ${journal.ahead} records ahead of the directories` : ""}`)],
    ["Disk free", size(status.free_bytes)],
    ["Quarantine", `${status.quarantined} files`],
    ["Last recovery", status.recovery || owner?.recovery],
    ["Seen", when(shown.now)],
  ];
}

// Messages

async function openQueue(name, keepsFocus = false) {
  const mine = ++looking;
  const digits = looked && looked.queue === name ? $("digits").value.trim() : "";
  if (!looked || looked.queue !== name) $("digits").value = "";
  const found = await ask(`api/messages?queue=${encodeURIComponent(name)}&id=${encodeURIComponent(digits)}`);
  if (mine !== looking) return;
  looked = found;
  $("messages").hidden = false;
  $("messages-title").textContent = `Messages of ${name}`;
  $("message-rows").replaceChildren(...found.rows.map(messageRow));
  $("messages-note").textContent = found.rows.length ? (found.more ? `The first ${found.rows.length}; there are more.` : "") : digits ? "No message has such an id." : "The queue is empty.";
  $("requeue-shown").hidden = !found.rows.some((one) => one.origin?.queue);
  $("requeue-shown").disabled = !shown.acts;
  if (!keepsFocus) $("messages-title").focus();
}

function messageRow(message) {
  const origin = message.origin ? `${message.origin.queue} (${message.origin.reason}${message.origin.tries ? `, ${message.origin.tries} tries` : ""})` : "";
  const body = message.body === undefined ? `${message.size_bytes} bytes, no text` : message.body.slice(0, 120);
  return node("tr", {}, number(message.seq), node("td", {}, button(message.message_id, "openMessage", message.message_id, { class: "plain id" })),
    cell(when(message.enqueued_at)), cell(size(message.size_bytes), "n"), number(message.tries), cell(origin), cell(body, "id"));
}

function openMessage(id) {
  const message = looked.rows.find((one) => one.message_id === id);
  open = message;
  $("message-title").textContent = `Message ${id}`;
  const cut = message.cut ? `\n... cut: it has ${message.size_bytes} bytes` : "";
  $("message-body").textContent = (message.body === undefined ? `Base64: ${message.body_base64}` : pretty(message.body)) + cut;
  const headers = Object.entries(message.headers);
  pairs($("message-headers"), headers.length ? headers : [["none", " "]]);
  const times = ["enqueued_at", "not_before", "expires_at", "origin first_failure", "origin last_failure", "origin expires_at"];
  const apart = ["body", "body_base64", "headers", "message_id", "cut", "origin"];
  const origin = Object.entries(message.origin ?? {}).map(([name, value]) => [`origin ${name}`, value || null]);
  pairs($("message-fields"), [...Object.entries(message), ...origin].filter(([name]) => !apart.includes(name)).map(([name, value]) => {
    if (times.includes(name)) return [name, when(value)];
    if (name === "unknown") return [name, value.join(", ")];
    return [name, value && typeof value === "object" ? JSON.stringify(value, null, 1) : value];
  }));
  $("requeue-one").hidden = !message.origin?.queue;
  $("requeue-one").disabled = !shown.acts;
  show("message");
}

function pretty(text) {
  if (!/^\s*[[{]/.test(text)) return text;
  try {
    const once = JSON.parse(text);
    // Numbers that JavaScript would round stay as they were sent.
    return /\d{16}/.test(text) ? text : JSON.stringify(once, null, 2);
  } catch {
    return text;
  }
}

async function requeue(queue, ids) {
  const found = await ask("api/requeue", { queue, ids }), stay = found.asked - found.moved;
  await wentBack(queue, found.moved, stay && `${stay} are held by transactions, or gone`);
}

async function requeueAll(queue) {
  // Those that are there now: what fails meanwhile is not taken again and again.
  await poll();
  const upto = shown.status.queues.find((one) => one.name === queue)?.watermark ?? 0;
  let moved = 0, found;
  do {
    found = await ask("api/failed", { queue, upto });
    moved += found.moved;
    done(`${moved} messages of ${queue} went back so far.`);
  } while (found.more);
  await wentBack(queue, moved, found.stay && `${found.stay} are held by transactions, or came from no other queue`);
}

async function wentBack(queue, moved, stay) {
  done(`${moved} ${moved === 1 ? "message" : "messages"} of ${queue} went back${stay ? `; ${stay}` : ""}.`);
  if (looked?.queue === queue) await openQueue(queue, true);
  await poll();
}

// Branches in doubt

async function openBranch(xid) {
  const branch = shown.in_doubt.rows.find((one) => one.xid === xid), decided = branch.decision;
  open = branch;
  pairs($("branch-fields"), [["Branch", xid], ["Transaction", branch.gtrid], ["State", branch.state], [decided ? "Decided" : "Prepared", when(branch.since)],
    ["Coordinator", branch.coordinator], ["By", decided?.by], ["Reason", decided?.reason], ["Damage", branch.damage.join("\n")]]);
  const rows = [...branch.added.map((one) => ["adds", one]), ...branch.held.map((one) => ["holds", one])];
  $("branch-messages").replaceChildren(...rows.map(([what, one]) => node("tr", {}, cell(what), cell(one.queue), cell(one.message_id, "id"), cell(one.size_bytes === null ? "" : size(one.size_bytes), "n"))));
  $("reason").value = "";
  for (const one of $("branch").querySelectorAll(".act")) {
    one.hidden = (one.dataset.do === "forget") !== Boolean(decided);
    one.disabled = !shown.acts;
  }
  for (const id of ["decision", "advice", "advice-title", "act-note"]) $(id).hidden = Boolean(decided);
  $("dry-rows").replaceChildren();
  $("dry-note").textContent = "";
  $("advice").textContent = "Asking.";
  show("branch");
  if (!decided) await Promise.all([dryRun(branch), advise(branch)]);
}

async function dryRun(branch) {
  try {
    const found = await ask(`api/dry-run?xid=${encodeURIComponent(branch.xid)}`), rows = found.commit.rows;
    if (open !== branch) return;
    const back = Object.fromEntries(found.rollback.rows.map((one) => [one.queue, one.messages_after]));
    $("dry-rows").replaceChildren(...rows.map((one) => node("tr", {}, cell(one.queue), number(one.messages), number(one.messages_after), number(back[one.queue]))));
    $("dry-note").textContent = [found.commit.error, found.rollback.error].filter(Boolean).join(" ");
  } catch (error) {
    if (open === branch) $("dry-note").textContent = `Not shown: ${error.message}`;
  }
}

async function advise(branch) {
  const place = $("advice");
  try {
    const found = await ask(`api/advice?xid=${encodeURIComponent(branch.xid)}`);
    if (open !== branch) return;
    const says = [["decision log", found.log.says], ...found.participants.map((one) => [one.name, one.says + (one.detail ? ` (${one.detail})` : "")])];
    const list = node("dl");
    pairs(list, says);
    place.replaceChildren(node("p", {}, node("strong", { text: found.answer }), ` ${found.why}`), list);
  } catch (error) {
    if (open === branch) place.textContent = `None: ${error.message}`;
  }
}

async function decide(path, body, text) {
  const reason = $("reason").value.trim();
  if (!reason) {
    $("reason").focus();
    throw new Error("write a reason: it is recorded with who and when.");
  }
  const branch = open;
  await ask(path, { xid: branch.xid, reason, ...body });
  done(`Branch ${branch.xid} ${text}.`);
  await poll();
  if (open === branch) $("branch").close();
}

// What buttons and forms do

const acts = {
  openQueue: (name) => openQueue(name),
  openMessage: async (id) => openMessage(id),
  openBranch,
  closeMessages: async () => { looking++; $("messages").hidden = true; looked = null; },
  requeueShown: () => requeue(looked.queue, looked.rows.filter((one) => one.origin?.queue).map((one) => one.message_id)),
  requeueAll,
  requeueOne: async () => {
    const message = open;
    await requeue(looked.queue, [message.message_id]);
    if (open === message) $("message").close();
  },
  commit: () => decide("api/decide", { commit: true }, "is committed"),
  rollback: () => decide("api/decide", { commit: false }, "is rolled back"),
  forget: () => decide("api/forget", {}, "is forgotten"),
  close: async (_, from) => from.closest("dialog").close(),
  sign: async () => {
    if (!sessionStorage.getItem(TOKEN)) { $("secret").value = ""; show("token"); return; }
    sessionStorage.removeItem(TOKEN);
    shown = null;
    await acts.closeMessages();
    await poll();
  },
  find: () => openQueue(looked.queue, true),
  useToken: async () => {
    const token = $("secret").value.trim();
    if (!/^[!-~]+$/.test(token)) throw new Error("a token is letters, digits and signs without spaces: write it as it was given to you.");
    await ask("api/overview", null, token);
    sessionStorage.setItem(TOKEN, token);
    $("secret").value = "";
    $("token").close();
    await poll();
  },
};

const SENDING = new Set(["commit", "rollback", "forget", "requeueShown", "requeueAll", "requeueOne"]);

async function perform(name, from) {
  const sends = SENDING.has(name);
  if (sends && acting) return;
  acting ||= sends;
  const place = from.closest("dialog")?.querySelector(".failure") || $("failure");
  place.textContent = "";
  $("done").textContent = "";
  from.setAttribute("aria-busy", "true");
  try {
    await acts[name](from.dataset.of, from);
  } catch (error) {
    place.textContent = error.message;
    place.scrollIntoView({ block: "nearest" });
  } finally {
    from.removeAttribute("aria-busy");
    if (sends) acting = false;
  }
}

function done(text) { $("done").textContent = text; }

function show(id) {
  $(id).querySelector(".failure").textContent = "";
  $(id).showModal();
}

document.addEventListener("click", (event) => {
  const from = event.target.closest("[data-do]");
  if (from && from.getAttribute("aria-busy") !== "true") perform(from.dataset.do, from);
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  perform(event.target.dataset.submit, event.target);
});

for (const [where, what] of [[document, "visibilitychange"], [window, "online"], [window, "offline"]])
  where.addEventListener(what, () => document.hidden || poll());

(async () => {
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((ready) => { setTimeout(ready, EVERY_MS); });
  }
})();
