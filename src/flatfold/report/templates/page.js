"use strict";
// Sort, filter and choose a metric. Without this script the page shows the same numbers, sorted by the average.
document.documentElement.classList.add("js");
for (const form of document.querySelectorAll("form.controls")) {
  form.hidden = false;
  form.addEventListener("submit", (event) => event.preventDefault());
}

const metric = new WeakMap(); // by table: the number of the displayed metric, and whether lower is better

function metricsOf(cell) {
  return cell.dataset.metrics ? JSON.parse(cell.dataset.metrics) : null;
}

function keyOf(row, column) {
  const cell = row.cells[column];
  const metrics = metricsOf(cell);
  if (metrics) return metrics[metric.get(row.closest("table")).number][0];
  const text = cell.dataset.sort ?? cell.textContent.trim();
  return text !== "" && Number.isFinite(Number(text)) ? Number(text) : text;
}

function compare(a, b) {
  if (typeof a === typeof b) return typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true });
  return typeof a === "number" ? -1 : 1;
}

function sort(table, column, direction) {
  const body = table.tBodies[0];
  for (const row of body.rows) row.classList.remove("rest");
  const sign = direction === "ascending" ? 1 : -1;
  const rows = [...body.rows].map((row) => [keyOf(row, column), row]);
  rows.sort(([a], [b]) => {
    if (a === "" || b === "") return (a === "") - (b === ""); // empty cells are last in either order
    return sign * compare(a, b);
  });
  body.append(...rows.map(([, row]) => row));
  [...table.tHead.rows[0].cells].forEach((head, number) => {
    if (number === column) head.setAttribute("aria-sort", direction);
    else head.removeAttribute("aria-sort");
  });
  const form = table.id && document.querySelector(`form[data-for="${table.id}"]`);
  if (form) filter(table, form);
}

function hasMetrics(table, column) {
  return [...table.tBodies[0].rows].some((row) => row.cells[column]?.dataset.metrics);
}

// A long table shows its first ten rows in the current order until all are requested or a name is typed.
const FIRST = 10;

function limit(table, rows, searching) {
  const button = document.querySelector(`.all[aria-controls="${table.id}"]`);
  const all = searching || button.getAttribute("aria-expanded") === "true";
  rows.forEach((row, number) => row.classList.toggle("rest", !all && number >= FIRST));
  button.hidden = searching || rows.length <= FIRST;
  button.textContent = all ? `Show the first ${FIRST}` : `Show all ${rows.length} methods`;
  return all ? rows.length : Math.min(FIRST, rows.length);
}

function bestFirst(table, column) {
  if (!hasMetrics(table, column)) return "ascending";
  return metric.get(table).lowIsGood ? "ascending" : "descending";
}

for (const table of document.querySelectorAll("table.sortable")) {
  metric.set(table, { number: 0, lowIsGood: false });
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const other = now === "ascending" ? "descending" : "ascending";
      sort(table, column, now ? other : bestFirst(table, column));
    });
  });
}

function show(table, choice) {
  const number = Number(choice.value);
  metric.set(table, { number, lowIsGood: "low" in choice.dataset });
  table.classList.toggle("other", number !== 0); // the marks refer to the AUROC
  for (const cell of table.querySelectorAll("td[data-metrics]")) {
    const [, value, below] = metricsOf(cell)[number];
    const strong = document.createElement("b");
    strong.textContent = value;
    cell.replaceChildren(strong);
    if (below) cell.append(Object.assign(document.createElement("small"), { textContent: below }));
  }
  const heads = [...table.tHead.rows[0].cells];
  const column = heads.findIndex((head) => head.hasAttribute("aria-sort"));
  if (hasMetrics(table, column)) sort(table, column, bestFirst(table, column));
}

function filter(table, form) {
  const words = form.querySelector("[type=search]")?.value.trim().toLowerCase() ?? "";
  const group = form.querySelector(".group input:checked")?.value ?? "all";
  const rows = [...table.tBodies[0].rows];
  for (const row of rows) {
    const inside = row.dataset.groups.split(" ").includes(group);
    row.hidden = !inside || !row.cells[0].textContent.toLowerCase().includes(words);
  }
  const shown = rows.filter((row) => !row.hidden);
  const count = limit(table, shown, words !== "");
  form.querySelector("output").textContent = `${count} of ${rows.length} methods`;
  const none = words ? "No method matches." : "No method is in this group.";
  form.querySelector(".nothing").textContent = count ? "" : none;
}

for (const form of document.querySelectorAll("form.controls")) {
  const table = document.getElementById(form.dataset.for);
  if (table?.tagName !== "TABLE") continue;
  form.reset(); // browsers keep choices when a page is reloaded
  form.querySelector(".group")?.addEventListener("change", () => filter(table, form));
  form.querySelector("[type=search]")?.addEventListener("input", () => filter(table, form));
  const button = form.querySelector(".all");
  table.closest(".scroll").after(button);
  button.addEventListener("click", ({ target }) => {
    target.setAttribute("aria-expanded", target.getAttribute("aria-expanded") !== "true");
    filter(table, form);
  });
  form.querySelector(".metric").addEventListener("change", (event) => show(table, event.target));
  show(table, form.querySelector(".metric input:checked"));
}

// In a box that scrolls sideways, sticky heads stay at the top of the box, not of the window. If the table fits, the box
// need not scroll and the style suffices; otherwise the heads are moved to the top of the window.
const boxes = [...document.querySelectorAll(".scroll")];
function settle(box) {
  const table = box.querySelector("table");
  const fits = table.offsetWidth <= box.clientWidth;
  box.classList.toggle("fits", fits);
  box.classList.toggle("more", !fits && box.scrollLeft + box.clientWidth < box.scrollWidth - 1);
  const room = table.offsetHeight - table.tHead.offsetHeight;
  const down = fits ? 0 : Math.max(0, Math.min(-box.getBoundingClientRect().top, room));
  table.tHead.style.setProperty("--down", `${down}px`);
}
const watch = new ResizeObserver(() => boxes.forEach(settle));
for (const box of boxes) {
  for (const part of [box, box.querySelector("table")]) watch.observe(part);
  box.addEventListener("scroll", () => settle(box), { passive: true });
}
addEventListener("scroll", () => boxes.forEach(settle), { passive: true });

const gallery = document.getElementById("gallery");
if (gallery) {
  const { methods, pictures } = JSON.parse(document.getElementById("wrong-data").textContent);
  for (const image of gallery.querySelectorAll("img")) pictures[image.dataset.key] = image.src;
  const template = document.getElementById("card").content;
  const select = document.querySelector("form[data-for=gallery] select");
  const card = (entry) => {
    const copy = template.cloneNode(true);
    const image = copy.querySelector("img");
    if (pictures[entry.key]) image.src = pictures[entry.key];
    Object.assign(image, { alt: entry.name, title: entry.name });
    for (const name of ["file", "place", "score", "share", "classes"]) copy.querySelector(`.${name}`).textContent = entry[name];
    return copy;
  };
  const fill = () => {
    for (const shelf of gallery.children) {
      const entries = methods[select.value][shelf.dataset.dataset] ?? [];
      shelf.hidden = entries.length === 0;
      shelf.querySelector(".cards").replaceChildren(...entries.map(card));
    }
  };
  select.form.reset();
  select.addEventListener("change", fill);
}

addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details:not(.card *)")) details.open = true;
});
