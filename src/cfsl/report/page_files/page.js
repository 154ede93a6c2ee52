// The page's own script: sort, filter, cards, figures, answers. All text goes in as text, never as HTML.
const read = (id) => JSON.parse(document.getElementById(id).textContent);
const unpacked = (id) => {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
};
const cards = await unpacked("data-cards"), charts = read("data-charts"), answered = read("data-answers");
const references = read("data-references");
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, text = "", name = "") => {
  const element = document.createElement(tag);
  if (text !== "") element.textContent = text;
  if (name) element.className = name;
  return element;
};

// Sorting: a button a column; numbers from high to low first, cells without a card last.
for (const header of all(".leaderboard thead th")) {
  header.querySelector("button").addEventListener("click", () => {
    const table = header.closest("table"), place = header.cellIndex, isName = place === 0;
    const now = header.getAttribute("aria-sort");
    const down = now === "none" ? !isName : now === "ascending";
    for (const other of all("thead th", table)) other.setAttribute("aria-sort", "none");
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => isName ? row.dataset.learner.toLowerCase() : parseFloat(row.cells[place].dataset.value);
    const rows = all("tbody tr", table).sort((a, b) => {
      const [x, y] = [key(a), key(b)];
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return (x < y ? -1 : x > y ? 1 : 0) * (down ? -1 : 1);
    });
    table.tBodies[0].append(...rows);
  });
}

// Filters.
const byId = (id) => document.getElementById(id);
const filter = () => {
  const wanted = byId("filter-learner").value.trim().toLowerCase();
  const profile = byId("filter-profile").value, looks = byId("filter-transductive").value;
  const columns = new Set(all(".choose input:checked").map((box) => box.value));
  let shown = 0;
  for (const board of all("section.board")) {
    board.hidden = profile !== "" && board.dataset.profile !== profile;
    board.classList.toggle("no-published", byId("filter-published")?.checked === false);
    board.querySelector("table").classList.toggle("inductive", looks === "no");
    for (const row of all("tbody tr", board)) {
      const fits = row.dataset.learner.toLowerCase().includes(wanted);
      const right = looks === "" || (looks === "only") === (row.dataset.transductive === "yes");
      row.hidden = !(fits && right);
      shown += !row.hidden && !board.hidden;
    }
    for (const cell of all("[data-column]", board)) cell.hidden = !columns.has(cell.dataset.column);
  }
  byId("filter-state").textContent = `${shown} row${shown === 1 ? "" : "s"}`;
};
if (byId("filter-learner")) {
  const form = document.querySelector(".filters");
  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("click", (event) => {
    const open = document.querySelector(".choose[open]");
    if (open && !open.contains(event.target)) open.open = false;
  });
  document.addEventListener("keydown", (event) => {
    const open = document.querySelector(".choose[open]");
    if (open && event.key === "Escape") { open.open = false; open.querySelector("summary").focus(); }
  });
}

// Cards and reasons, in one dialog.
const dialog = byId("card"), body = dialog.querySelector(".dialog-body");
const copyable = (label, text) => {
  const box = make("div", "", "copyable"), pre = make("pre", text), button = make("button", "copy", "copy");
  button.type = "button";
  button.setAttribute("aria-label", `copy ${label}`);
  pre.tabIndex = 0;
  box.append(button, pre);
  return box;
};
const listed = (rows) => {
  const list = make("dl");
  for (const [name, value] of rows) list.append(make("dt", name), make("dd", value));
  return list;
};
const open = (title, parts) => {
  byId("card-title").textContent = title;
  dialog.classList.toggle("large", parts[0] instanceof HTMLImageElement);
  body.replaceChildren(...parts);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
};
const showCard = (id, siblings = []) => {
  const card = cards[id];
  if (!card) return false;
  const parts = [make("p", card.what, "note")];
  if (siblings.length > 1) {
    const links = make("p", "training seeds: ", "siblings");
    for (const other of siblings) {
      const link = make("a", `seed ${cards[other].seed}`);
      link.href = `#${other}`;
      if (other === id) link.setAttribute("aria-current", "true");
      link.addEventListener("click", (event) => { event.preventDefault(); showCard(other, siblings); });
      links.append(link);
    }
    parts.push(links);
  }
  for (const section of card.sections) {
    parts.push(make("h3", section.heading), listed(section.rows));
    for (const [label, text] of section.texts ?? []) {
      if (label !== "command") parts.push(make("p", label, "note"));
      parts.push(copyable(label, text));
    }
  }
  parts.push(make("h3", "File"), listed([["card", card.path]]), make("h3", "BibTeX"));
  parts.push(copyable("BibTeX", card.cite.map((key) => references[key]).join("\n\n")));
  open(card.title, parts);
  return true;
};
document.addEventListener("click", (event) => {
  const number = event.target.closest("a.num"), why = event.target.closest("button.published");
  const copy = event.target.closest(".copy"), zoom = event.target.closest(".zoom");
  if (number) {
    event.preventDefault();
    const id = number.getAttribute("href").slice(1);
    history.replaceState(null, "", `#${id}`);
    showCard(id, (number.dataset.cards ?? id).split(" "));
  } else if (why) {
    const words = { sound: "sound: a correct run should reach it", superseded: "superseded: a defect changed what was measured", trend: "trend only: order and direction may be compared, the number may not" };
    open(why.dataset.why, [listed([["status", words[why.dataset.status]], ["reason", why.dataset.reason || "none"], ["ours", why.dataset.apart]])]);
  } else if (zoom) {
    const image = zoom.querySelector("img").cloneNode();
    open(zoom.dataset.title, [image]);
  } else if (copy) {
    const text = copy.parentElement.querySelector("pre").textContent;
    const done = () => { copy.textContent = "copied"; setTimeout(() => { copy.textContent = "copy"; }, 1500); };
    navigator.clipboard?.writeText(text).then(done, () => getSelection().selectAllChildren(copy.nextElementSibling));
  }
});
dialog.querySelector(".close").addEventListener("click", () => dialog.close());
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => { if (location.hash.startsWith("#card-")) history.replaceState(null, "", location.pathname + location.search); });
const fromAddress = () => showCard(location.hash.slice(1));
addEventListener("hashchange", fromAddress);
fromAddress();

// Figures: Vega-Lite in SVG, whose colours are CSS. The number of panels beside each other follows the width.
const ink = "currentColor";
const axis = { labelColor: ink, titleColor: ink, gridColor: ink, gridOpacity: 0.12, domainColor: ink, domainOpacity: 0.45, tickColor: ink, tickOpacity: 0.45, titleFontWeight: 500, labelFontSize: 11, titleFontSize: 12 };
const config = (columns) => ({
  background: null, font: "system-ui, sans-serif", axis, view: { stroke: null },
  header: { labelColor: ink, titleColor: ink, labelFontSize: 13 },
  legend: { labelColor: ink, titleColor: ink, orient: "bottom", columns, labelFontSize: 12, labelLimit: 220, symbolSize: 70 },
});
const drawn = new Map();
const laidOut = (chart, width) => {
  const spec = structuredClone(chart.spec);
  if (!spec.facet) return spec;
  const small = chart.small, least = small ? (width < 500 ? 108 : 132) : 215, edge = small ? 40 : 60, gap = 20;
  const across = Math.max(1, Math.min(chart.panels, small ? 8 : 4, Math.floor((width - edge + gap) / (least + gap))));
  const own = chart.own_axes ? edge : 0;
  const room = Math.floor((width - (own ? 0 : edge) - 8 - gap * (across - 1)) / across) - own;
  const inner = Math.max(small ? 90 : 150, Math.min(small ? 150 : 620, room));
  spec.columns = across;
  if (small) Object.assign(spec.facet.header, { labelLimit: inner + 16, labelFontSize: 11 });
  spec.spec.width = inner;
  spec.spec.height = small ? Math.round(inner * 0.8) : Math.max(190, Math.min(340, Math.round(inner * 0.7)));
  return spec;
};
const draw = async (place) => {
  const box = document.querySelector(`[data-chart="${place}"]`), width = box.clientWidth;
  const legend = Math.max(1, Math.floor(width / 165));
  const options = { actions: false, renderer: "svg", ast: true, config: config(legend), tooltip: { theme: "custom" } };
  const holder = make("div");
  holder.style.width = "100%";
  box.replaceChildren(holder);
  const { view } = await window.vegaEmbed(holder, laidOut(charts[place], width), options);
  const chooser = document.querySelector(`[data-choose="${charts[place].id}"]`);
  if (chooser) await view.signal("column", chooser.value).runAsync();
  drawn.set(place, { view, width });
};
const drawAll = async () => { for (const place of charts.keys()) if (drawn.get(place)?.width !== document.querySelector(`[data-chart="${place}"]`).clientWidth) await draw(place); document.documentElement.dataset.drawn = "yes"; };
for (const chooser of all("[data-choose]")) chooser.addEventListener("change", () => draw(charts.findIndex((chart) => chart.id === chooser.dataset.choose)));
let waiting;
addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 200); });
await drawAll();

// The numbers behind a figure, as a table, when somebody asks.
for (const details of all("[data-numbers]")) details.addEventListener("toggle", () => {
  if (!details.open || details.querySelector("table")) return;
  const { fields, rows } = charts[details.dataset.numbers].numbers;
  const table = make("table"), head = table.createTHead().insertRow(), lines = table.createTBody();
  for (const name of fields) { const cell = make("th", name); cell.scope = "col"; head.append(cell); }
  for (const row of rows) { const line = lines.insertRow(); for (const value of row) line.insertCell().textContent = value; }
  const box = make("div");
  box.tabIndex = 0;
  box.append(table);
  details.append(box);
});

// What a learner took for what.
const columnOf = byId("answers-column"), learnerOf = byId("answers-learner");
const picture = (uri, alt) => { const image = make("img"); image.src = uri; image.alt = alt; return image; };
const strip = (label, one, name) => {
  const box = make("div", "", "strip");
  for (const uri of one.supports[label] ?? []) box.append(picture(uri, `${name} ${label}`));
  return box;
};
const showAnswers = () => {
  const one = answered[columnOf.value], said = one.said[learnerOf.value];
  const right = one.targets.filter((target, place) => said[place] === target.label).length;
  byId("answers-note").textContent = `Task ${one.task}, in which the best learner erred most: ${one.what}. ${right} of these ${one.targets.length} targets right. Beside each: the support images of the label it was given, and of the right one.`;
  byId("answers-grid").replaceChildren(...one.targets.map((target, place) => {
    const label = said[place], isRight = label === target.label;
    const box = make("div", "", isRight ? "target" : "target wrong");
    box.append(picture(target.image, `target of label ${target.label}`));
    box.append(make("p", isRight ? `✓ right: label ${label}` : label < 0 ? "✗ no answer" : `✗ taken for label ${label}`, "verdict"));
    if (!isRight && label >= 0) box.append(strip(label, one, "support image of label"));
    const truth = make("div");
    if (!isRight) truth.append(make("p", `is label ${target.label}`));
    truth.append(strip(target.label, one, "support image of label"));
    box.append(truth);
    return box;
  }));
};
const chooseLearners = () => {
  const before = learnerOf.value, names = Object.keys(answered[columnOf.value].said);
  learnerOf.replaceChildren(...names.map((name) => make("option", name)));
  if (names.includes(before)) learnerOf.value = before;
  showAnswers();
};
if (columnOf) {
  columnOf.addEventListener("change", chooseLearners);
  learnerOf.addEventListener("change", showAnswers);
  chooseLearners();
}
