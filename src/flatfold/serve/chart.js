"use strict";
// The histogram. In the page it precedes page.js in one script, which defines the formatting of numbers and the stream.
const BARS = 40;
const LAST_LABEL = 64; // pixels at the end of the axis for the label of the last bar

function axisOf({ edges, calibration, live, thresholds }) {
  // The first bin ends at the lowest scores of the calibration data: it is drawn as one bar.
  const inner = edges.slice(1).filter((edge) => edge !== null);
  const bottom = inner[0];
  const logarithmic = bottom > 0 && inner.at(-1) / bottom > 100;
  const filled = inner.filter((_, bin) => calibration[bin] || live[bin]); // by its upper edge
  const marks = thresholds.length === 1 ? thresholds.filter(Number.isFinite) : [];
  let top = logarithmic ? inner.at(-1) : Math.max(...filled, ...marks);
  if (!(top > bottom)) top = bottom + (Math.abs(bottom) || 1);
  const scale = logarithmic ? Math.log10 : Number;
  const [low, high] = [scale(bottom), scale(top)];
  const place = (value) => (logarithmic && value <= 0 ? -1 : (BARS * (scale(value) - low)) / (high - low));
  const value = (bar) => (logarithmic ? 10 ** (low + (bar * (high - low)) / BARS) : low + (bar * (high - low)) / BARS);
  return { logarithmic, low, high, place, value, beyond: edges.at(-1) === null };
}

function spread(counts, edges, axis) {
  const bars = new Array(BARS + 2).fill(0); // including one below and one beyond the axis
  counts.forEach((count, bin) => {
    if (bin === 0) bars[0] += count;
    else if (edges[bin + 1] === null) bars[BARS + 1] += count;
    else if (count) {
      const [from, to] = [axis.place(edges[bin]), axis.place(edges[bin + 1])];
      const first = Math.min(Math.max(Math.floor(from), 0), BARS - 1);
      const end = Math.min(Math.max(Math.ceil(to), first + 1), BARS);
      for (let bar = first; bar < end; bar += 1) {
        const inside = (Math.min(to, bar + 1) - Math.max(from, bar)) / (to - from);
        bars[bar + 1] += end - first === 1 ? count : count * inside;
      }
    }
  });
  const all = bars.reduce((sum, bar) => sum + bar, 0);
  return bars.map((bar) => (all ? bar / all : 0));
}

function roundStep(span, most) {
  const rough = span / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function ticksOf(axis, most) {
  const step = axis.logarithmic ? Math.ceil((axis.high - axis.low) / most) : roundStep(axis.high - axis.low, most);
  const first = Math.ceil(axis.low / step - 1e-9);
  const ticks = [];
  for (let number = first; number * step <= axis.high + 1e-9 * step; number += 1) {
    const at = number * step;
    if (!axis.logarithmic) ticks.push([Number(at.toPrecision(12)), figures(Number(at.toPrecision(12)), 6)]);
    else ticks.push([10 ** at, at >= -3 && at <= 3 ? figures(10 ** at, 1) : `10${superscript(at)}`]);
  }
  return ticks;
}

function shape(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const lastBar = (axis) => `≥ ${figures(axis.value(BARS), 3)}`; // of all scores beyond the axis

function describe(bar, axis) {
  if (bar === 0) return `up to ${figures(axis.value(0), 3)}`;
  if (bar === BARS + 1) return lastBar(axis);
  return `${figures(axis.value(bar - 1), 3)} to ${figures(axis.value(bar), 3)}`;
}

function frameOf(axis, shares, width, height) {
  const [left, right, top, bottom] = [38, width - 4, 20, height - 38];
  const bars = BARS + 1 + Number(axis.beyond);
  const peak = Math.max(...shares.calibration);
  // With few inputs some bars are high: these are cut off, so that the others stay visible.
  const most = Math.max(peak, Math.min(Math.max(...shares.live), 2.5 * peak)) * 1.05;
  const x = (place) => left + ((right - left) * (place + 1)) / bars; // place -1 begins the bar below the axis
  const y = (share) => bottom - ((bottom - top) * Math.min(share, most)) / most;
  return { width, height, left, right, top, bottom, bars, most, x, y };
}

function outline(shares, frame) {
  const steps = shares.slice(0, frame.bars).map((share, bar) => `V${frame.y(share)}H${frame.x(bar)}`);
  return `M${frame.x(-1)} ${frame.bottom}${steps.join("")}V${frame.bottom}Z`;
}

function gridShapes(axis, frame) {
  const made = [];
  const step = roundStep(frame.most, 3);
  for (let share = 0; share <= frame.most; share += step) {
    const y = frame.y(share);
    made.push(shape("path", { class: "rule", d: `M${frame.left} ${y}H${frame.right}` }));
    made.push(shape("text", { x: frame.left - 6, y: y + 4, "text-anchor": "end" }, percent(share, 2)));
  }
  for (const [value, text] of ticksOf(axis, Math.max(2, Math.floor(frame.width / 80)))) {
    const x = frame.x(axis.place(value));
    if (axis.beyond && x > frame.right - LAST_LABEL) continue;
    made.push(shape("path", { class: "tick", d: `M${x} ${frame.bottom}v5` }));
    made.push(shape("text", { x, y: frame.bottom + 18, "text-anchor": "middle" }, text));
  }
  if (axis.beyond) made.push(shape("text", { class: "beyond", x: frame.right, y: frame.bottom + 18, "text-anchor": "end" }, lastBar(axis)));
  const words = `score${axis.logarithmic ? ", logarithmic" : ""}: more OOD →`;
  made.push(shape("text", { x: frame.right, y: frame.height - 4, "text-anchor": "end" }, words));
  return made;
}

function liveShapes(frame, shares) {
  const made = [shape("path", { class: "live", d: outline(shares, frame) })];
  const peak = Math.max(...shares);
  if (peak <= frame.most) return made;
  const bar = shares.indexOf(peak);
  const before = frame.x(bar) > (frame.left + frame.right) / 2;
  const label = { class: "peak", x: before ? frame.x(bar - 1) - 5 : frame.x(bar) + 5, y: frame.top + 12 };
  return [...made, shape("text", { ...label, "text-anchor": before ? "end" : "start" }, `${percent(peak, 2)} ↑`)];
}

function thresholdShapes(axis, frame) {
  if (stream.thresholds.length !== 1 || stream.thresholds[0] === null) return []; // null: an infinite threshold
  const x = frame.x(axis.place(stream.thresholds[0]));
  const behind = x > (frame.left + frame.right) / 2;
  const label = { class: "alarm", x: x + (behind ? -6 : 6), y: frame.top - 7, "text-anchor": behind ? "end" : "start" };
  return [
    shape("rect", { class: "zone", x, y: frame.top, width: Math.max(0, frame.right - x), height: frame.bottom - frame.top }),
    shape("path", { class: "threshold", d: `M${x} ${frame.bottom}V${frame.top - 16}` }),
    shape("text", label, `alarm above ${figures(stream.thresholds[0], 3)}`),
  ];
}

function lastShapes(axis, frame) {
  if (!last) return [];
  const place = Math.min(Math.max(axis.place(last.score), -0.5), frame.bars - 1.5 + Number(!axis.beyond) / 2);
  return [shape("path", { class: `last ${last.verdict}`, d: `M${frame.x(place)} ${frame.bottom - 3}l7 12h-14z` })];
}

function hitShapes(axis, frame, shares) {
  return shares.live.slice(0, frame.bars).map((live, bar) => {
    const [x, width] = [frame.x(bar - 1), frame.x(bar) - frame.x(bar - 1)];
    const hit = shape("rect", { class: "hit", x, width, y: frame.top, height: frame.bottom - frame.top });
    const both = `calibration ${percent(shares.calibration[bar], 2)}, live ${percent(live, 2)}`;
    hit.append(shape("title", {}, `score ${describe(bar, axis)}: ${both}`));
    return hit;
  });
}

function fillTable(axis, frame, shares) {
  const rows = shares.live.slice(0, frame.bars).map((live, bar) => {
    const row = document.createElement("tr");
    const head = Object.assign(document.createElement("th"), { scope: "row", textContent: describe(bar, axis) });
    row.append(head);
    for (const share of [shares.calibration[bar], live]) row.insertCell().textContent = percent(share, 2);
    return row;
  });
  part("table").querySelector("tbody").replaceChildren(...rows);
}

let drawn = "";
function draw() {
  const chart = part("chart");
  const { width, height } = chart.getBoundingClientRect();
  const now = JSON.stringify([stream, last, width, height]);
  if (!stream || !width || now === drawn) return; // if unchanged, keep it, and the tooltip of a bar
  drawn = now;
  const axis = axisOf(stream);
  const shares = { calibration: spread(stream.calibration, stream.edges, axis), live: spread(stream.live, stream.edges, axis) };
  const frame = frameOf(axis, shares, width, height);
  chart.setAttribute("viewBox", `0 0 ${frame.width} ${frame.height}`);
  const seen = `${pluralise(stream.calibrated, "calibration input")} and ${grouped(stream.seen)} live`;
  chart.setAttribute("aria-label", `Histogram of the scores of ${seen}. The numbers are in the table below.`);
  chart.replaceChildren(
    ...gridShapes(axis, frame),
    shape("path", { class: "calibration", d: outline(shares.calibration, frame) }),
    ...(stream.seen ? liveShapes(frame, shares.live) : []),
    ...thresholdShapes(axis, frame),
    shape("path", { class: "base", d: `M${frame.left} ${frame.bottom}H${frame.right}` }),
    ...hitShapes(axis, frame, shares),
    ...lastShapes(axis, frame),
  );
  fillTable(axis, frame, shares);
  part("last-key").hidden = !last;
  part("threshold-key").lastChild.textContent = stream.thresholds.length === 1 ? "threshold" : "a threshold for each class";
  part("threshold-key").firstChild.classList.toggle("none", stream.thresholds.length > 1);
}
