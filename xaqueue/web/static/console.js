// The page asks the server that it is from and nobody else.

import { $, address, age, button, cell, counted, fill, head, named, node, number, pairs, short, size, span, tiles, told, when } from "./drawing.js";
import { drawHour, drawWhole, isWanted, keep, note, past, perSecond, ratesNow, sparkline } from "./hour.js";

const EVERY_MS = 2000, LOOK_MS = 10000, ACT_MS = 60000;
const TOKEN = "xaqueue.token";
let shown = null;  // the last overview
let looked = null;  // the messages that are listed: {queue, rows, find}
let open = null;  // the message or branch that a dialog is about
let turn = 0;  // of polls: an answer to an older one, with another token perhaps, is let go
let polling = null;  // the newest of them
let looking = 0;  // likewise of lists of messages
let acting = false;  // something is being changed: nothing else is sent meanwhile

// Which queue has the page for itself; null where all of them are shown.
const place = () => new URLSearchParams(location.hash.slice(1)).get("queue");

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
  const unclear = `the server answered ${answer.status}: its log says why.`, found = await answer.json().catch(() => ({ error: unclear }));
  if (!answer.ok) throw Object.assign(new Error(found.error || unclear), { status: answer.status });
  return found;
}

// Returns when what is shown is no older than the call.
function poll() {
  polling = look(++turn);
  return polling;
}

async function look(mine) {
  try {
    const queue = place(), found = await ask("api/overview");
    if (mine !== turn) return polling;
    if (isWanted(queue, found.now)) {
      const hour = await ask(`api/history?queue=${encodeURIComponent(queue ?? "")}`);
      if (mine !== turn) return polling;
      keep(hour, queue, found.now);
    }
    shown = found;
    document.body.classList.remove("old");
    draw();
  } catch (error) {
    if (mine !== turn) return polling;
    document.body.classList.add("old");
    light("bad", shown ? `${error.message} What stands below is old.` : error.message);
    who(error.status === 403 ? "Nothing is shown without a token that the server knows." : "");
  }
}

// The light

function light(kind, text) {
  $("light").className = `light ${kind}`;
  if ($("state").textContent !== text) $("state").textContent = text;
  document.title = `${{ good: "", fair: "(!) ", bad: "(!!) " }[kind]}${$("name").textContent}`;
}

// All queues

function draw() {
  const status = shown.status, name = place();
  $("name").textContent = status.format.name;
  drawHealth(shown.health);
  who(shown.acts ? `Signed in ${shown.roles.length ? `as ${shown.roles.join(", ")}` : "with all rights"}.` : "Looking only.");
  note(status.queues, shown.now);
  $("home").hidden = name !== null;
  $("queue").hidden = name === null;
  if (name === null) drawAll(status);
  else drawQueue(status.queues.find((one) => one.name === name), name);
}

function drawHealth(found) {
  const count = found.length, isBad = found.some((one) => one.bad);
  const text = count ? `${isBad ? "It does not work as it should" : "It works"}: ${counted(count, "thing")} ${count > 1 ? "want" : "wants"} a look.` : "All is well.";
  light(isBad ? "bad" : count ? "fair" : "good", text);
  const rows = found.map((one) => node("li", { class: one.bad && "bad" }, node("strong", { text: one.kind }), ": ", ...told(one.text), ...(["in doubt", "damaged"].includes(one.kind) ? [" ", node("a", { href: "#doubt", text: "Look" })] : [])));
  if ($("findings").textContent !== rows.map((row) => row.textContent).join("")) $("findings").replaceChildren(...rows);
}

function drawAll(status) {
  const sum = (what) => status.queues.reduce((all, one) => all + what(one), 0), wrong = shown.health.map((one) => one.kind);
  const letters = status.queues.filter((one) => shown.failure_queues.includes(one.name) && one.depth);
  const flow = [0, 1].map((which) => perSecond(sum((one) => ratesNow(one.name)[which] || 0)) || "0");
  const replica = status.replication;
  tiles($("tiles"), [
    [sum((one) => one.depth).toLocaleString("en"), "messages", "#queues"],
    [flow[0], "in a second", "#queues"], [flow[1], "out a second", "#queues"],
    [status.in_doubt.toLocaleString("en"), "in doubt", "#doubt", (wrong.includes("damaged") && "bad") || (wrong.includes("in doubt") && "fair")],
    [sum((one) => (letters.includes(one) ? one.depth : 0)).toLocaleString("en"), "dead letters", "#letters", letters.length && "fair"],
    [shown.sessions.error ? "-" : `${shown.sessions.total}`, "connected", "#sessions"],
    [size(status.free_bytes), "of disk free", "#space", wrong.includes("low disk") && "fair"],
    ...(replica ? [[replica.connected ? size(replica.lag_bytes) : "away", replica.connected ? "replica behind" : "is the replica", "#space", wrong.includes("replica") && "fair"]] : []),
  ]);
  $("empty").hidden = status.queues.length > 0;
  for (const id of ["whole", "queues"]) $(id).hidden = !status.queues.length;
  if (!status.queues.length) $("first").textContent = `xaqueue define orders --space ${status.directory}\nxaqueue put orders hello --space ${status.directory}`;
  drawWhole(status.queues);
  fill($("queue-rows"), status.queues.map(queueRow));
  table("doubt", shown.in_doubt.rows.map((one) => ({ key: one.xid, make: () => doubtRow(one) })), shown.in_doubt);
  table("letter", letters.map((one) => ({ key: one.name, make: () => letterRow(one) })));
  table("session", shown.sessions.rows.map((one, at) => ({ key: `${at}`, make: () => sessionRow(one) })), shown.sessions);
  table("stream", status.queues.filter((one) => one.stream).map((one) => ({ key: one.name, make: () => streamRow(one) })));
  pairs($("facts"), facts(status));
}

// Where there is nothing, nothing is shown; where it may not be seen, why.
function table(name, rows, part = {}) {
  const body = $(`${name}-rows`), section = body.closest("section"), text = part.error ? `Not shown: ${part.error}` : part.more ? "There are more than these." : "";
  section.hidden = !rows.length && !text;
  body.closest("table").hidden = !rows.length;
  fill(body, rows);
  const said = section.querySelector(".note");
  if (said.textContent !== text) said.textContent = text;
}

function who(text) {
  $("who").textContent = text;
  $("sign").textContent = sessionStorage.getItem(TOKEN) ? "Sign out" : "Sign in";
}

const remarks = (queue) => [queue.full && "full", queue.stuck && "stuck", queue.exhausted && `${queue.exhausted} to the failure queue`, queue.stream && `stream ${queue.stream}`, shown.failure_queues.includes(queue.name) && "dead letters"].filter(Boolean);
const waits = (queue) => [queue.delayed && `${queue.delayed.toLocaleString("en")} delayed`, queue.held - queue.in_doubt > 0 && `${queue.held - queue.in_doubt} at work`, queue.in_doubt && `${queue.in_doubt} in doubt`].filter(Boolean).join(", ");

function queueRow(queue) {
  const points = past(queue.name), line = points.map((one) => one.depth), [ins, outs] = ratesNow(queue.name).map(perSecond);
  const notes = remarks(queue).join(", "), oldest = age(queue.oldest, shown.now), others = waits(queue), isWrong = queue.full || queue.stuck;
  const make = () => node("tr", { class: isWrong && "fair" },
    head(node("a", { href: address(queue.name), text: queue.name, title: queue.description || false }), notes && node("small", { text: notes })),
    number(queue.ready), cell(others), cell(sparkline(points, line), "spark"), cell(ins, "n"), cell(outs, "n"), cell(oldest, "n"), number(queue.consumers));
  return { key: queue.name, stamp: JSON.stringify([queue.ready, others, oldest, ins, outs, queue.consumers, line, notes, queue.description]), make };
}

function doubtRow(branch) {
  return node("tr", {}, head(named(branch.xid, "openBranch", "Branch")), cell(branch.state + (branch.damage.length ? ", damaged" : ""), "line"),
    cell(age(branch.since, shown.now), "n"), cell(effects(branch.queues)), cell(branch.coordinator));
}

// "+1 into orders", "-1 from stock".
function effects(queues) {
  const list = queues.flatMap((one) => [one.adds && `+${one.adds} into ${one.queue}`, one.holds && `\u2212${one.holds} from ${one.queue}`]).filter(Boolean);
  return list.join(", ") || "nothing";
}

function letterRow(queue) {
  const acts = cell(node("span", { class: "buttons" }, button("Look", "openQueue", queue.name, { "aria-label": `Look at ${queue.name}` }),
    button("Requeue all", "requeue", queue.name, { "aria-label": `Requeue all of ${queue.name}`, disabled: !shown.acts })));
  return node("tr", {}, head(queue.name), number(queue.depth), cell(age(queue.oldest, shown.now), "n"), acts);
}

function sessionRow(session) {
  const waiting = session.waits_for ? `${session.waits_for}, for ${age(session.waits_since, shown.now) || "0 s"}` : "";
  const holds = session.branches.map((one) => `${short(one.xid)} (${one.state}, ${counted(one.messages, "message")})`).join("\n");
  const more = session.holds > session.branches.length ? `\nand ${session.holds - session.branches.length} more` : "";
  return node("tr", {}, head(node("span", { title: session.who, text: session.who.replace(/[0-9a-f]{24,}/, short) })), cell(session.address ? `${session.address} (${session.transport})` : session.transport),
    cell(age(session.since, shown.now), "n"), number(session.calls), cell(waiting), cell(holds + more, "id"));
}

function streamRow(queue) {
  const reads = queue.in_flight ? `${Math.max(queue.in_flight[0], queue.consumed) + 1} to ${queue.in_flight[1]}` : "";
  return node("tr", {}, head(queue.name), cell(queue.stream), number(queue.consumed),
    number(queue.watermark), number(Math.max(0, (queue.watermark || 0) - queue.consumed)), cell(reads));
}

function facts(status) {
  const owner = status.owner, journal = status.journal, replica = status.replication;
  const roles = { source: "ships its journal", replica: `a replica of ${replica?.url}`, promoted: `was promoted in the place of ${replica?.url}`, replaced: "was replaced by its replica" };
  const heard = replica && (replica.connected ? "in touch" : "not in touch");
  return [
    ["Directory", status.directory],
    ["Owner", owner && `process ${owner.pid} on ${owner.host}`],
    ["Open since", owner && when(Date.parse(owner.since) * 1000, shown.now, true)],
    ["Sync", `${status.sync}: a commit ${status.promise}`],
    ["Replica", replica ? `${roles[replica.role]}; ${heard}; ${size(replica.lag_bytes)} behind${replica.lag_s ? `, ${span(replica.lag_s)}` : ""}${replica.waits ? "; steps wait for it" : ""}` : "none"],
    ["Branches", `${status.active} at work, ${status.in_doubt} in doubt, ${status.committing} committing, ${status.heuristic} decided by hand`],
    ["Journal", journal && (journal.damage || `${size(journal.allocated_bytes)} in ${journal.segments} segments${Number.isInteger(journal.ahead) ? `, ${journal.ahead} records ahead of the directories` : ""}`)],
    ["Disk free", size(status.free_bytes)],
    ["Quarantine", `${status.quarantined} files`],
    ["Last recovery", status.recovery || owner?.recovery],
    ["Seen", node("time", { text: new Date(shown.now / 1000).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" }) })],
  ];
}

// One queue

function drawQueue(queue, name) {
  $("queue-title").textContent = name;
  $("queue-says").textContent = queue ? [queue.description, ...remarks(queue)].filter(Boolean).join(" · ") : "There is no such queue.";
  for (const id of ["queue-tiles", "queue-charts"]) $(id).hidden = !queue;
  if (!queue) return;
  const [ins, outs] = ratesNow(name).map((rate) => perSecond(rate) || "0"), count = (value) => (value ?? 0).toLocaleString("en");
  tiles($("queue-tiles"), [[count(queue.ready), "ready", "", queue.full && "fair"], [count(queue.delayed), "delayed"], [count(queue.held - queue.in_doubt), "at work"],
    [count(queue.in_doubt), "in doubt"], [age(queue.oldest, shown.now) || "-", "the oldest", "", !queue.oldest && "none"],
    [(queue.is_estimated ? "about " : "") + size(queue.size_bytes), "on disk"], [count(queue.consumers), "consumers"], [ins, "in a second"], [outs, "out a second"]]);
  drawHour(queue);
}

// Where the address names another queue, its messages are asked for; who may not read them sees the rest.
async function arrive() {
  looking++;
  looked = null;
  $("find-text").value = "";
  for (const id of ["message-rows", "reasons"]) $(id).replaceChildren();
  const name = place();
  await poll();
  if (name === null) {
    document.getElementById(location.hash.slice(1))?.scrollIntoView();
    return;
  }
  $("queue-title").focus();
  window.scrollTo(0, 0);
  await list(name);
}

async function list(name) {
  const mine = ++looking, find = $("find-text").value.trim();
  const found = await ask(`api/messages?queue=${encodeURIComponent(name)}&find=${encodeURIComponent(find)}`);
  if (mine !== looking || place() !== name) return;
  looked = { ...found, find };
  fill($("message-rows"), found.rows.map((one) => ({ key: one.message_id, make: () => messageRow(one) })));
  $("message-rows").closest("table").hidden = !found.rows.length;
  const count = found.count > found.rows.length || found.more ? `The first ${found.rows.length}${found.more ? "; there are more." : ` of ${found.count}.`}` : "";
  $("messages-note").textContent = found.rows.length ? count : find ? "No message has such an id, or such words." : "The queue is empty.";
  $("reasons").replaceChildren(...found.reasons.map((one) => node("li", {}, button(`${one.count.toLocaleString("en")} × ${one.reason}`, "findReason", one.reason, { title: `from ${one.queue}: show these` }))));
  const back = found.reasons.length > 0, all = $("requeue-found");
  all.hidden = !back;
  all.disabled = !shown.acts;
  all.dataset.of = name;
  all.textContent = find ? `Requeue these ${found.count.toLocaleString("en")}${found.more ? " and more" : ""}` : "Requeue all";
}

function messageRow(message) {
  const origin = message.origin, why = origin ? `${origin.why}\nfrom ${origin.queue}${origin.tries ? `, ${counted(origin.tries, "try").replace("trys", "tries")}` : ""}` : "";
  const body = message.body === undefined ? `${size(message.size_bytes)}, no text` : message.body.slice(0, 160);
  return node("tr", {}, head(named(message.message_id, "openMessage", "Message")), cell(when(origin?.last_failure || message.enqueued_at, shown.now), "line"),
    cell(size(message.size_bytes), "n"), number(message.tries), cell(why, "why"), cell(body, "id body"));
}

function openMessage(id) {
  const message = looked.rows.find((one) => one.message_id === id), origin = message.origin, time = (at) => when(at, shown.now, true);
  open = message;
  $("message-title").replaceChildren("Message ", named(id, "", "Message"));
  $("message-body").textContent = content(message);
  pairs($("message-origin"), origin ? [["Failed", origin.detail || origin.reason], ["Came from", origin.queue], ["Tries there", origin.tries], ["First failure", time(origin.first_failure)],
    ["Last failure", time(origin.last_failure)], ["Expired", time(origin.expires_at)], ["Its id there", origin.message_id]] : []);
  pairs($("message-headers"), Object.entries(message.headers));
  $("message-headers").previousElementSibling.hidden = !Object.keys(message.headers).length;
  pairs($("message-fields"), [["Sent", time(message.enqueued_at)], ["Size", size(message.size_bytes)], ["Number in the queue", message.seq], ["Tries", message.tries], ["Priority", message.priority],
    ["Not before", time(message.not_before)], ["Expires", time(message.expires_at)], ["Content type", message.content_type], ["Correlation id", message.correlation_id], ["Reply to", message.reply_queue],
    ["Failure queue", message.failure_queue], ["Group", message.group], ["Key against doubles", message.dedup_key], ["Trace", message.traceparent],
    ["May be a double", message.possible_duplicate ? "yes" : ""], ["Of a later version", message.unknown.join(", ")]]);
  $("requeue-one").hidden = !origin?.queue;
  $("requeue-one").disabled = !shown.acts;
  show("message");
}

const content = (one) => (one.body === undefined ? `Base64: ${one.body_base64}` : pretty(one.body)) + (one.cut ? `\n... cut: it has ${one.size_bytes} bytes` : "");

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

// Those that are there now, or of them what is looked for: what fails meanwhile is not taken again and again.
async function requeue(queue, find = "", count = null) {
  await poll();
  const there = shown.status.queues.find((one) => one.name === queue), upto = there?.watermark ?? 0, these = count ?? counted(there?.depth ?? 0, "message");
  if (!(await sure(`Requeue ${these} of ${queue}?`, "Each goes back to the queue that it came from, and has all its tries again.", "Requeue"))) return false;
  let moved = 0, found;
  do {
    found = await ask("api/requeue", { queue, upto, find });
    moved += found.moved;
    done(`${counted(moved, "message")} of ${queue} went back so far.`);
  } while (found.more);
  done(`${counted(moved, "message")} of ${queue} went back${found.stay ? `; ${found.stay} are held by transactions, or came from no other queue` : ""}.`);
  if (place() === queue) await list(queue);
  await poll();
  return true;
}

// Branches in doubt

async function openBranch(xid) {
  const branch = shown.in_doubt.rows.find((one) => one.xid === xid), decided = branch.decision;
  open = branch;
  $("branch-effect").textContent = decided ? `It was decided by hand: ${branch.state}.` : `It waits to be committed: ${effects(branch.queues)}.`;
  pairs($("branch-fields"), [["Branch", named(xid, "", "Branch")], ["Transaction", branch.gtrid], ["State", branch.state], [decided ? "Decided" : "Prepared", when(branch.since, shown.now, true)],
    ["Coordinator", branch.coordinator], ["By", decided?.by], ["Reason", decided?.reason], ["Damage", branch.damage.join("\n")]]);
  contents(branch, {});
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

function contents(branch, bodies) {
  const rows = [...branch.added.map((one) => ["+1 into", one]), ...branch.held.map((one) => ["\u22121 from", one])];
  fill($("branch-messages"), rows.map(([what, one]) => ({ key: one.queue + one.message_id, make: () => {
    const found = bodies[one.queue]?.rows.find((other) => other.message_id === one.message_id), bytes = found?.size_bytes ?? one.size_bytes;
    return node("tr", {}, head(`${what} ${one.queue}`), cell(named(one.message_id, "", "Message")), cell(bytes === null ? "" : size(bytes), "n"), cell(found ? content(found) : "", "id body"));
  } })));
}

async function dryRun(branch) {
  try {
    const found = await ask(`api/branch?xid=${encodeURIComponent(branch.xid)}`);
    if (open !== branch) return;
    contents(branch, found.bodies);
    fill($("dry-rows"), found.commit.rows.map((one) => ({ key: one.queue, make: () => node("tr", {}, head(one.queue), cell(effects([one])), number(one.messages), number(one.messages_after)) })));
    const refused = Object.values(found.bodies).map((one) => one.error);
    $("dry-note").textContent = [...new Set([found.commit.error, found.rollback.error, ...refused])].filter(Boolean).join(" ");
  } catch (error) {
    if (open === branch) $("dry-note").textContent = `Not shown: ${error.message}`;
  }
}

async function advise(branch) {
  const says = $("advice");
  try {
    const found = await ask(`api/advice?xid=${encodeURIComponent(branch.xid)}`);
    if (open !== branch) return;
    const detail = (text) => (text ? ` (${text.replace(/\S{40,}/g, short)})` : "");
    const said = node("dl");
    pairs(said, [["decision log", found.log.says], ...found.participants.map((one) => [one.name, one.says + detail(one.detail)])]);
    says.replaceChildren(node("p", {}, node("strong", { text: found.answer }), `: ${found.why}`), said);
  } catch (error) {
    if (open === branch) says.replaceChildren("None: ", ...told(error.message));
  }
}

async function decide(path, body, word, text) {
  const reason = $("reason").value.trim(), branch = open;
  if (!reason) {
    $("reason").focus();
    throw new Error("write a reason: it is recorded with who and when.");
  }
  const what = { Commit: effects(branch.queues), "Roll back": `what it adds is gone, what it holds is back in its place. It would be ${effects(branch.queues)}`, Forget: "its transaction manager is not told of it any more" }[word];
  if (!(await sure(`${word} ${word === "Forget" ? "the decision on " : ""}branch ${short(branch.xid)}?`, `${what}. ${word === "Forget" ? "" : "Its transaction manager may decide otherwise: the outcome is then mixed."}`, word))) return;
  await ask(path, { xid: branch.xid, reason, ...body });
  done(`Branch ${short(branch.xid)} ${text}.`);
  await poll();
  if (open === branch) $("branch").close();
}

// What buttons and forms do

const acts = {
  arrive,
  openQueue: async (name) => { location.hash = address(name); },
  openMessage: async (id) => openMessage(id),
  openBranch,
  requeue: (name) => requeue(name),
  requeueFound: (name) => requeue(name, looked.find, looked.find && `${looked.count.toLocaleString("en")}${looked.more ? " or more" : ""} with “${looked.find}”`),
  requeueOne: async () => {
    const message = open;
    if (await requeue(looked.queue, message.message_id, "one message") && open === message) $("message").close();
  },
  commit: () => decide("api/decide", { commit: true }, "Commit", "is committed"),
  rollback: () => decide("api/decide", { commit: false }, "Roll back", "is rolled back"),
  forget: () => decide("api/forget", {}, "Forget", "is forgotten"),
  agree: async () => $("sure").close("yes"),
  copy: async (text, from) => {
    if (!navigator.clipboard) { window.prompt("Copy it:", text); return; }  // the page came without TLS
    await navigator.clipboard.writeText(text);
    from.classList.add("copied");
    setTimeout(() => from.classList.remove("copied"), 1500);
  },
  close: async (_, from) => from.closest("dialog").close(),
  sign: async () => {
    if (!sessionStorage.getItem(TOKEN)) { $("secret").value = ""; show("token"); return; }
    sessionStorage.removeItem(TOKEN);
    shown = null;
    await arrive();
  },
  find: () => list(place()),
  findReason: (text) => { $("find-text").value = text; return list(place()); },
  useToken: async () => {
    const token = $("secret").value.trim();
    if (!/^[!-~]+$/.test(token)) throw new Error("a token is letters, digits and signs without spaces: write it as it was given to you.");
    await ask("api/overview", null, token);
    sessionStorage.setItem(TOKEN, token);
    $("secret").value = "";
    $("token").close();
    await arrive();
  },
};

const SENDING = new Set(["commit", "rollback", "forget", "requeue", "requeueFound", "requeueOne"]);

const busy = new WeakSet();  // no attribute says so: what differs is drawn anew, and has the focus no more

async function perform(name, from) {
  const sends = SENDING.has(name);
  if (sends && acting) return;
  acting ||= sends;
  const failure = from.closest("dialog")?.querySelector(".failure") || $("failure");
  failure.textContent = "";
  $("done").textContent = "";
  busy.add(from);
  try {
    await acts[name](from.dataset.of, from);
  } catch (error) {
    failure.replaceChildren(...told(error.message));
    failure.scrollIntoView({ block: "nearest" });
  } finally {
    busy.delete(from);
    if (sends) acting = false;
  }
}

function done(text) { $("done").textContent = text; }

// Whether somebody who was told how much it is about wants it.
function sure(question, text, word) {
  const box = $("sure");
  $("sure-title").textContent = question;
  $("sure-text").textContent = text;
  $("sure-yes").textContent = word;
  box.returnValue = "";
  box.showModal();
  return new Promise((ready) => { box.addEventListener("close", () => ready(box.returnValue === "yes"), { once: true }); });
}

function show(id) {
  $(id).querySelector(".failure").textContent = "";
  $(id).showModal();
}

document.addEventListener("click", (event) => {
  const from = event.target.closest("[data-do]");
  if (from && !busy.has(from)) perform(from.dataset.do, from);
});
document.addEventListener("submit", (event) => {
  event.preventDefault();
  perform(event.target.dataset.submit, event.target);
});

for (const [where, what] of [[document, "visibilitychange"], [window, "online"], [window, "offline"]])
  where.addEventListener(what, () => document.hidden || poll());

window.addEventListener("hashchange", () => perform("arrive", document.body));

(async () => {
  if (place() !== null) perform("arrive", document.body);
  for (;;) {
    if (!document.hidden) await poll();
    await new Promise((ready) => { setTimeout(ready, EVERY_MS); });
  }
})();
