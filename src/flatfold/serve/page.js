// File names, class names and messages of the service are text, never markup: assign them to textContent only.
const AT_ONCE = 4; // concurrent requests: the service scores concurrent requests in one batch
const MOST_CARDS = 60;
const PAUSE = 2000; // milliseconds between two requests for the stream
const UNUSUAL = 2; // standard deviations above which a sign counts as unusual
const FULL_BAR = 10; // standard deviations of a full bar
const LARGEST_Z = 100; // larger numbers of standard deviations are not distinguished
const LEVEL = 0.01; // significance level of the p-values
const SMALLEST = 1e-300; // smaller p-values are shown as a bound
const UNREACHABLE = "The service cannot be reached. Check that it is running and that the network is up, then try again.";
const UNREADABLE = "This file cannot be read. Is it a folder, or was it moved? Choose image files.";
const CUT_OFF = "The service closed the connection during the upload. The file may be too large; try a smaller one.";
const REFUSED = "The service rejected this token. Check it and enter it again.";
const SPACED = "A token consists of printable ASCII characters without spaces. Enter it again.";
const NOUN = document.body.dataset.noun; // what one input is called
const DENSE = "dense" in document.body.dataset; // whether every pixel has a decision
const QUERY = DENSE ? "overlay=true" : "explain=true";
const SHOWN = 300; // characters of a text on its card
const part = (id) => document.getElementById(id);

// Numbers as text

function superscript(exponent) {
  return [...String(exponent)].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("");
}

function figures(value, most = 2) {
  if (value === null || !Number.isFinite(value)) return "–";
  const [factor, exponent] = value.toExponential(most - 1).split("e").map(Number);
  const small = value === 0 || (exponent >= -4 && exponent < 6);
  const text = small ? String(Number(value.toPrecision(most))) : `${factor}·10${superscript(exponent)}`;
  return text.replace("-", "−");
}

const percent = (share, most = 3) => `${figures(100 * share, most)}\u00a0%`; // never alone on the next line
const grouped = (number) => number.toLocaleString("en");
const pluralise = (number, what) => `${grouped(number)} ${what}${number === 1 ? "" : "s"}`;

function significance(p) {
  if (p > LEVEL) return `not enough evidence of a change yet (p = ${figures(p)}; significant at p <= ${LEVEL})`;
  return `significant change (p ${p < SMALLEST ? `< ${figures(SMALLEST, 1)}` : `= ${figures(p)}`})`;
}

// The service

let token = ""; // in memory only
let locked = false;

async function ask(path, options = {}) {
  const used = token;
  const headers = { ...options.headers, ...(used && { Authorization: `Bearer ${used}` }) };
  const answer = await fetch(path, { ...options, headers }).catch((error) => {
    throw error.name === "AbortError" ? error : Object.assign(new Error(UNREACHABLE), { status: 0 });
  });
  if (answer.status === 401 && used !== token) return ask(path, options); // the token was entered in the meantime
  const body = await answer.json().catch(() => null);
  if (answer.ok && body) return body;
  const sentence = body?.error ?? `The service returned status ${answer.status} without a message. Try again.`;
  throw Object.assign(new Error(sentence), { status: answer.status });
}

function lock() {
  if (locked) return;
  locked = true;
  part("unlock").hidden = false;
  part("token").focus();
  showWaiting();
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
  (part("files") ?? part("text")).focus();
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

// Images or texts and their cards

const waiting = []; // each a file, or a text with a name in its place, and, once it was first sent, its card
let running = 0;
let round = new AbortController(); // aborted when everything is cleared
let last = null; // the latest verdict

function showPicture(card, file) {
  const [image, picture] = [card.querySelector("img"), card.querySelector(".picture")];
  const address = URL.createObjectURL(file);
  image.addEventListener("load", () => {
    URL.revokeObjectURL(address); // a loaded picture stays visible
    image.classList.toggle("small", image.naturalWidth < 96);
  });
  image.addEventListener("error", () => {
    URL.revokeObjectURL(address);
    picture.classList.add("blank");
  });
  image.src = address;
}

function newCard({ file, text }) {
  const card = part("card").content.cloneNode(true).firstElementChild;
  if (text === undefined) showPicture(card, file);
  else card.querySelector(".picture").remove();
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

// Bars start at the mean of ID inputs; the mark is at two standard deviations, the end of a bar at ten.
function showSigns(card, signs) {
  const entries = Object.entries(signs ?? {}).map(([name, z]) => {
    const entry = document.createElement("div");
    const bar = Object.assign(document.createElement("span"), { className: z !== null && z < UNUSUAL ? "bar" : "bar unusual" });
    bar.style.setProperty("--share", z === null ? 1 : Math.min(1, Math.max(0, z / FULL_BAR)));
    const term = Object.assign(document.createElement("dt"), { textContent: name });
    const value = Object.assign(document.createElement("dd"), { title: "standard deviations above the mean of ID inputs" });
    value.append(bar, z === null ? "–" : z > LARGEST_Z ? `> ${LARGEST_Z}` : z.toFixed(1).replace("-", "−"));
    entry.append(term, value);
    return entry;
  });
  card.querySelector(".signs").replaceChildren(...entries);
}

// Mark the words of a text without which its score is lowest.
function showWords(card, tokens) {
  const place = card.querySelector(".file");
  const [text, words] = [place.textContent, (tokens ?? []).map((token) => token.text.toLowerCase())];
  const [lower, parts] = [text.toLowerCase(), []];
  if (lower.length !== text.length) return; // a few letters have a longer small form
  for (let start = 0; start < text.length; ) {
    const found = words.map((word) => [lower.indexOf(word, start), word.length]).filter(([at]) => at >= 0);
    const [at, length] = found.sort((one, other) => one[0] - other[0])[0] ?? [text.length, 0];
    parts.push(text.slice(start, at));
    if (length) parts.push(Object.assign(document.createElement("mark"), { textContent: text.slice(at, at + length) }));
    start = at + length;
  }
  place.replaceChildren(...parts);
}

function finish({ file, card }, row) {
  const verdict = row.is_ood ? "OOD" : "ID";
  const dense = row.share_ood !== undefined;
  const name = dense ? `alarms at ${percent(row.share_ood)} of its ${NOUN === "image" ? "pixels" : "tokens"}` : row.class ?? `class ${row.predicted}`;
  if (row.overlay) card.querySelector("img").src = `data:image/png;base64,${row.overlay}`;
  const numbers = `p = ${figures(row.p_value)} · score ${figures(row.score, 4)}`;
  const pairs = (row.explanation ?? "").replace(/^[^(:]*\(p = [^)]*\): /, ""); // verdict and p-value stand above it
  const why = pairs.replaceAll(" %", "\u00a0%").replaceAll("z = ", "z\u00a0=\u00a0");
  write(card, verdict, { "verdict b": verdict, class: row.is_ood && !dense ? `predicted: ${name}` : name, numbers, why });
  showSigns(card, row.signs);
  showWords(card, row.tokens);
  last = { score: row.score, verdict };
  part("status").textContent = `${file.name}: ${verdict}, ${name}, p = ${figures(row.p_value)}.`;
}

function fail(item, error) {
  write(item.card, "failed", { "verdict b": "not scored", why: error.message });
  const again = item.card.querySelector(".again");
  again.hidden = ![0, 408, 503].includes(error.status); // other requests would fail again
  again.onclick = () => {
    again.hidden = true;
    waiting.push(item);
    work();
  };
  part("status").textContent = `${item.file.name}: not scored. ${error.message}`;
}

async function canBeRead(file) {
  const reader = file.stream().getReader(); // a slice of a deleted file would be empty, without an error
  const read = await reader.read().then(() => true, () => false);
  reader.cancel().catch(() => {});
  return read;
}

async function whyCutOff(file, signal) {
  if (!(await canBeRead(file))) return new Error(UNREADABLE);
  const there = await fetch("healthz", { signal }).then((answer) => answer.ok, () => false);
  return there ? new Error(CUT_OFF) : null;
}

async function send({ file, text }, signal) {
  if (text !== undefined) {
    const headers = { "Content-Type": "application/json" };
    return ask("v1/score?explain=true&tokens=true", { method: "POST", body: JSON.stringify({ texts: [text] }), headers, signal });
  }
  // A file without a type would be parsed as features.
  const type = file.type && file.type !== "application/octet-stream" ? file.type : "image/x-unknown";
  try {
    return await ask(`v1/score?${QUERY}`, { method: "POST", body: file, headers: { "Content-Type": type }, signal });
  } catch (error) {
    throw (error.status === 0 && (await whyCutOff(file, signal))) || error;
  }
}

async function score(item) {
  const { signal } = round;
  running += 1;
  item.card ??= newCard(item);
  write(item.card, "waiting", { "verdict b": "scoring" });
  try {
    finish(item, (await send(item, signal)).rows[0]);
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

function showWaiting() {
  if (!waiting.length) return;
  part("status").textContent = `${pluralise(waiting.length, NOUN)} waiting${locked ? " for the token" : ""}.`;
}

function work() {
  while (!locked && running < AT_ONCE && waiting.length) score(waiting.shift());
  showWaiting();
}

function add(files) {
  waiting.push(...[...files].map((file) => ({ file })));
  work();
}

part("files")?.addEventListener("change", (event) => {
  add(event.target.files);
  event.target.value = ""; // allow choosing the same file again
});
part("write")?.addEventListener("submit", (event) => {
  event.preventDefault();
  const text = part("text").value;
  if (!text.trim()) return;
  waiting.push({ text, file: { name: text.length > SHOWN ? `${text.slice(0, SHOWN)}…` : text } });
  work();
});
part("clear").addEventListener("click", () => {
  round.abort();
  round = new AbortController();
  waiting.length = 0;
  last = null;
  part("cards").replaceChildren();
  part("none").hidden = false;
  part("clear").hidden = true;
  part("status").textContent = "Cleared. The counts of the service are unchanged.";
  (part("files") ?? part("text")).focus();
  draw();
});
addEventListener("paste", (event) => part("files") && add(event.clipboardData?.files ?? []));
// A file dropped outside the area must not replace the page.
addEventListener("dragover", (event) => {
  event.preventDefault();
  document.body.classList.add("over");
});
addEventListener("dragleave", (event) => event.relatedTarget ?? document.body.classList.remove("over"));
addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  if (part("files")) add(event.dataTransfer?.files ?? []);
});

// The stream of all inputs

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

function showGuarded({ guard, model, method, classes, calibrated, fpr, thresholds }) {
  const end = thresholds.length > 1 ? " raise an alarm, in each class." : " raise an alarm.";
  const network = `a network of ${grouped(classes)} classes. It was calibrated on `;
  part("guarded").replaceChildren(
    ...[strong(method), guard ? ` (${guard}) guards ` : " guards "],
    ...(model ? [strong(model), `, ${network}`] : [network]),
    ...[strong(pluralise(calibrated, "sample")), ": at most ", strong(percent(fpr)), ` of similar ${NOUN}s${DENSE ? ", and of the pixels of one," : ""}`, end],
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
    ? `${pluralise(now.seen, "input")}, ${pluralise(now.alarms, "alarm")}: ${percent(now.alarm_rate)}, ${percent(now.fpr)} allowed: ` +
      `${significance(now.alarm_p_value)}. Scores differ from calibration by ${figures(now.drift)}: ${significance(now.drift_p_value)}.` +
      (DENSE ? ` Alarms at ${percent(now.share_ood)} of the pixels of an image, on average.` : "")
    : "No inputs yet.";
  draw();
}

new ResizeObserver(draw).observe(part("chart"));
addEventListener("visibilitychange", refresh);
setInterval(refresh, PAUSE);
refresh();
