// Names of files and classes, and messages of the service, are text and never markup: only textContent takes them.
const AT_ONCE = 4; // requests under way: the service scores together what comes together
const MOST_CARDS = 60;
const PAUSE = 2000; // milliseconds between two looks at the stream
const UNUSUAL = 2; // standard deviations from which a sign counts as unusual
const FULL_BAR = 10; // standard deviations of a full bar
const LEVEL = 0.01; // p-values up to this one are called more than chance
const SMALLEST = 1e-300; // smaller p-values are shown as one bound
const UNREACHABLE = "The service cannot be reached. Is it still running, and the network up? Then try again.";
const UNREADABLE = "This file cannot be read. Is it a folder, or was it moved? Choose the images themselves.";
const CUT_OFF = "The service closed the connection while this file was sent. Is it too large? Try a smaller one.";
const REFUSED = "The service refused this token. Check it and type it again.";
const SPACED = "A token consists of letters, digits and signs without spaces. Type it again.";
const part = (id) => document.getElementById(id);

// Numbers as text

function raised(exponent) {
  return [...String(exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
}

function figures(value, most = 2) {
  if (value === null || !Number.isFinite(value)) return "–";
  const [factor, exponent] = value.toExponential(most - 1).split("e").map(Number);
  const small = value === 0 || (exponent >= -4 && exponent < 6);
  const text = small ? String(Number(value.toPrecision(most))) : `${factor}·10${raised(exponent)}`;
  return text.replace("-", "−");
}

const percent = (share, most = 3) => `${figures(100 * share, most)}\u00a0%`; // never alone on the next line
const grouped = (number) => number.toLocaleString("en");
const counted = (number, what) => `${grouped(number)} ${what}${number === 1 ? "" : "s"}`;

function chance(p) {
  const value = p < SMALLEST ? `p < ${figures(SMALLEST, 1)}` : `p = ${figures(p)}`;
  return `${value}: ${p <= LEVEL ? "more than chance" : "no more than chance explains"}`;
}

// The service

let token = ""; // here and nowhere else
let locked = false;

async function ask(path, options = {}) {
  const used = token;
  const headers = { ...options.headers, ...(used && { Authorization: `Bearer ${used}` }) };
  const answer = await fetch(path, { ...options, headers }).catch((error) => {
    throw error.name === "AbortError" ? error : Object.assign(new Error(UNREACHABLE), { status: 0 });
  });
  if (answer.status === 401 && used !== token) return ask(path, options); // the right one came in between
  const body = await answer.json().catch(() => null);
  if (answer.ok && body) return body;
  const sentence = body?.error ?? `The service answered with status ${answer.status} without a message. Try again.`;
  throw Object.assign(new Error(sentence), { status: answer.status });
}

function lock() {
  if (locked) return;
  locked = true;
  part("unlock").hidden = false;
  part("token").focus();
  tellWaiting();
}

async function unlock() {
  const field = part("token");
  const given = field.value.trim();
  if (!/^[\x21-\x7e]+$/.test(given)) throw new Error(SPACED);
  token = given;
  const now = await ask("v1/stream").catch((error) => {
    throw error.status === 401 ? new Error(REFUSED) : error;
  });
  showStream(now);
  field.value = "";
  locked = false;
  part("unlock").hidden = true;
  part("files").focus();
  work();
}

part("unlock").addEventListener("submit", async (event) => {
  event.preventDefault();
  part("refused").textContent = "";
  await unlock().catch((error) => {
    part("refused").textContent = error.message;
    part("token").select();
  });
});

// Images and their cards

const waiting = []; // each a file and, once it was on its way, its card
let running = 0;
let round = new AbortController(); // ends when everything is cleared
let last = null; // the newest answer

function newCard(file) {
  const card = part("card").content.cloneNode(true).firstElementChild;
  const [image, picture] = [card.querySelector("img"), card.querySelector(".picture")];
  const address = URL.createObjectURL(file);
  image.addEventListener("load", () => {
    URL.revokeObjectURL(address); // a picture that was shown stays
    image.classList.toggle("small", image.naturalWidth < 96);
  });
  image.addEventListener("error", () => {
    URL.revokeObjectURL(address);
    picture.classList.add("blank");
  });
  image.src = address;
  Object.assign(card.querySelector(".file"), { textContent: file.name, title: file.name });
  part("cards").prepend(card);
  while (part("cards").children.length > MOST_CARDS) part("cards").lastElementChild.remove();
  part("none").hidden = true;
  part("clear").hidden = false;
  return card;
}

function write(card, state, texts) {
  card.className = `card ${state}`;
  card.querySelector(".signs").replaceChildren();
  for (const name of ["verdict b", "class", "numbers", "why"]) card.querySelector(`.${name}`).textContent = texts[name] ?? "";
}

// Bars from the mean of ID inputs to the right; the mark is at two standard deviations, the end of a bar at ten.
function showSigns(card, signs) {
  const entries = Object.entries(signs ?? {}).map(([name, z]) => {
    const entry = document.createElement("div");
    const bar = Object.assign(document.createElement("span"), { className: z !== null && z < UNUSUAL ? "bar" : "bar unusual" });
    bar.style.setProperty("--share", z === null ? 1 : Math.min(1, Math.max(0, z / FULL_BAR)));
    const term = Object.assign(document.createElement("dt"), { textContent: name });
    const value = Object.assign(document.createElement("dd"), { title: "standard deviations above the mean of ID inputs" });
    value.append(bar, z === null ? "–" : z.toFixed(1).replace("-", "−"));
    entry.append(term, value);
    return entry;
  });
  card.querySelector(".signs").replaceChildren(...entries);
}

function finish({ file, card }, row) {
  const verdict = row.is_ood ? "OOD" : "ID";
  const name = row.class ?? `class ${row.predicted}`;
  const numbers = `p = ${figures(row.p_value)} · score ${figures(row.score, 4)}`;
  const pairs = (row.explanation ?? "").replace(/^[^(:]*\(p = [^)]*\): /, ""); // verdict and p-value stand above it
  const why = pairs.replaceAll(" %", "\u00a0%").replaceAll("z = ", "z\u00a0=\u00a0");
  write(card, verdict, { "verdict b": verdict, class: row.is_ood ? `predicted: ${name}` : name, numbers, why });
  showSigns(card, row.signs);
  last = { score: row.score, verdict };
  part("status").textContent = `${file.name}: ${verdict}, ${name}, p = ${figures(row.p_value)}.`;
}

function fail(item, error) {
  write(item.card, "failed", { "verdict b": "not scored", why: error.message });
  const again = item.card.querySelector(".again");
  again.hidden = ![0, 408, 503].includes(error.status); // of the others the same would come again
  again.onclick = () => {
    again.hidden = true;
    waiting.push(item);
    work();
  };
  part("status").textContent = `${item.file.name}: not scored. ${error.message}`;
}

async function canBeRead(file) {
  const reader = file.stream().getReader(); // a slice of a file that is gone would be empty, and no error
  const read = await reader.read().then(() => true, () => false);
  reader.cancel().catch(() => {});
  return read;
}

async function whyCutOff(file, signal) {
  if (!(await canBeRead(file))) return new Error(UNREADABLE);
  const there = await fetch("healthz", { signal }).then((answer) => answer.ok, () => false);
  return there ? new Error(CUT_OFF) : null;
}

async function send(file, signal) {
  // Without a type of its own a file would count as features.
  const type = file.type && file.type !== "application/octet-stream" ? file.type : "image/x-unknown";
  try {
    return await ask("v1/score?explain=true", { method: "POST", body: file, headers: { "Content-Type": type }, signal });
  } catch (error) {
    throw (error.status === 0 && (await whyCutOff(file, signal))) || error;
  }
}

async function score(item) {
  const { signal } = round;
  running += 1;
  item.card ??= newCard(item.file);
  write(item.card, "waiting", { "verdict b": "scoring" });
  try {
    finish(item, (await send(item.file, signal)).rows[0]);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) {
      waiting.unshift(item);
      write(item.card, "waiting", { "verdict b": "waiting for the token" });
      lock();
    } else fail(item, error);
  } finally {
    running -= 1;
    work();
    refresh();
  }
}

function tellWaiting() {
  if (!waiting.length) return;
  part("status").textContent = `${counted(waiting.length, "image")} waiting${locked ? " for the token" : ""}.`;
}

function work() {
  while (!locked && running < AT_ONCE && waiting.length) score(waiting.shift());
  tellWaiting();
}

function add(files) {
  waiting.push(...[...files].map((file) => ({ file })));
  work();
}

part("files").addEventListener("change", (event) => {
  add(event.target.files);
  event.target.value = ""; // the same file may be chosen again
});
part("clear").addEventListener("click", () => {
  round.abort();
  round = new AbortController();
  waiting.length = 0;
  last = null;
  part("cards").replaceChildren();
  part("none").hidden = false;
  part("clear").hidden = true;
  part("status").textContent = "Cleared. The counts of the service are kept.";
  part("files").focus();
  draw();
});
addEventListener("paste", (event) => add(event.clipboardData?.files ?? []));
// A file that is dropped beside the area must not replace the page.
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  add(event.dataTransfer?.files ?? []);
});

// What the service has seen

let stream = null;
let looking = false;
let lookAgain = false;

async function refresh() {
  if (locked || document.hidden) return;
  lookAgain = looking;
  if (looking) return;
  looking = true;
  try {
    showStream(await ask("v1/stream"));
  } catch (error) {
    if (error.status === 401) lock();
    else part("unreachable").textContent = error.message;
  } finally {
    looking = false;
  }
  if (lookAgain) refresh();
}

function strong(text) {
  return Object.assign(document.createElement("b"), { textContent: text });
}

function showGuarded({ method, classes, calibrated, fpr, thresholds }) {
  const end = thresholds.length > 1 ? " raise an alarm, in each class." : " raise an alarm.";
  part("guarded").replaceChildren(
    ...[strong(method), ` guards a network of ${grouped(classes)} classes. It was calibrated on `],
    ...[strong(counted(calibrated, "sample")), ": of images like these at most ", strong(percent(fpr)), end],
  );
}

function showStream(now) {
  stream = now;
  showGuarded(now);
  part("counts").hidden = false;
  part("pending").hidden = true;
  part("unreachable").textContent = "";
  part("seen").textContent = grouped(now.seen);
  part("alarms").textContent = grouped(now.alarms);
  part("rate").textContent = now.alarm_rate === null ? "–" : percent(now.alarm_rate);
  part("allowed").textContent = `, ${percent(now.fpr)} allowed`;
  part("drift").textContent = figures(now.drift);
  part("rate").classList.toggle("much", now.alarm_p_value <= LEVEL);
  part("drift").classList.toggle("much", now.drift_p_value <= LEVEL);
  part("summary").textContent = now.seen
    ? `${counted(now.seen, "input")}, ${counted(now.alarms, "alarm")}: ${percent(now.alarm_rate)}, where ${percent(now.fpr)} ` +
      `were allowed (${chance(now.alarm_p_value)}). Scores differ from calibration by ${figures(now.drift)} (${chance(now.drift_p_value)}).`
    : "Nothing seen yet.";
  draw();
}

new ResizeObserver(draw).observe(part("chart"));
addEventListener("visibilitychange", refresh);
setInterval(refresh, PAUSE);
refresh();
