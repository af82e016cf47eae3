"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;

  // -- small helpers: nothing from the data ever becomes markup ---------------------------------------------------
  function make(tag, properties, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(properties || {})) {
      if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, value);
      else node[name] = value;
    }
    node.append(...children.filter((child) => child !== null && child !== undefined));
    return node;
  }
  function short(value, digits = 4) {
    if (value === null || value === undefined || Number.isNaN(value)) return "none";
    const rounded = Number(value.toPrecision(digits));
    return Math.abs(rounded) < 1e-4 && rounded !== 0 ? rounded.toExponential() : String(rounded);
  }

  function numbers(text, Kind) {
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let at = 0; at < raw.length; at++) bytes[at] = raw.charCodeAt(at);
    return new Kind(bytes.buffer);
  }

  // -- samples ----------------------------------------------------------------------------------------------------
  const KINDS = { mask: Uint8Array, versions: Uint16Array };
  class Sample {
    constructor(row) {
      Object.assign(this, row);
      this.kept = {};
    }
    get words() {
      if (typeof this.kept.words === "undefined")
        this.kept.words = numbers(this.packed, data.wide ? Uint32Array : Uint16Array);
      return this.kept.words;
    }
    /** Value of a column at a shown token; undefined where the column is not known. */
    value(name, at) {
      const packed = this.columns[name];
      if (packed === undefined) return undefined;
      if (typeof packed === "number") return packed;
      if (!this.kept[name]) this.kept[name] = numbers(packed, KINDS[name] || Float32Array);
      return this.kept[name][at];
    }
    gap(at) {
      const engine = this.value("log_probs", at), trainer = this.value("old", at);
      return engine === undefined || trainer === undefined ? undefined : trainer - engine;
    }
    version(at) {
      const place = this.value("versions", at);
      return place === undefined ? undefined : data.versions[place];
    }
    /** Place in the whole response of a shown token. */
    position(at) {
      return this.cut && at >= this.cut[0] ? this.length - this.words.length + at : at;
    }
    /** [number of tokens, text] of the piece that begins at a shown token; a token inside a piece has none. */
    pieces() {
      if (!this.kept.pieces) {
        const words = this.words;
        const found = new Array(words.length);
        for (let at = 0; at < words.length; at++) found[at] = [1, data.texts ? data.texts[words[at]] : String(data.ids[words[at]])];
        for (const [start, count, text] of this.joined || []) {
          found[start] = [count, text];
          for (let at = start + 1; at < start + count; at++) found[at] = null;
        }
        this.kept.pieces = found;
      }
      return this.kept.pieces;
    }
    get text() {
      const parts = this.pieces().map((piece) => (piece ? piece[1] : ""));
      return data.texts ? parts.join("") : this.response;
    }
    get searched() {
      if (this.kept.searched === undefined) {
        const own = [this.sample_id, this.label || "", data.groups[this.group_id], this.text];
        this.kept.searched = own.join("\n").toLowerCase();
      }
      return this.kept.searched;
    }
  }
  const samples = data.samples.map((row) => new Sample(row));
  const has = (name) => samples.some((sample) => sample.columns[name] !== undefined);

  // -- colours ----------------------------------------------------------------------------------------------------
  const { above, below, neutral, versions: palette, strongest } = data.colours;
  const CLEAR = "";
  const rgb = (colour, alpha) => (alpha > 0 ? `rgb(${colour.join(" ")} / ${Number(alpha.toFixed(4))})` : CLEAR);
  function diverging(value, bound) {
    if (value === undefined || !Number.isFinite(value) || !bound) return CLEAR;
    return rgb(value > 0 ? above : below, strongest * Math.min(1, Math.abs(value) / bound));
  }
  const made = data.versions.filter((version) => version >= 0);
  const ofVersion = (version) =>
    version < 0 ? rgb(neutral, strongest) : rgb(palette[made.indexOf(version) % palette.length], strongest / 2);
  const MODES = {
    gap: {
      label: "log-prob gap", there: has("log_probs") && has("old"),
      colour: (sample, at) => diverging(sample.gap(at), data.bounds.gap),
      legend: () => ramp(data.bounds.gap, "trainer less sure than the engine", "surer", "trainer − engine; "),
    },
    advantage: {
      label: "advantage", there: has("advantages"),
      colour: (sample, at) => diverging(sample.value("advantages", at), data.bounds.advantages),
      legend: () => ramp(data.bounds.advantages, "made less likely", "made more likely", ""),
    },
    mask: {
      label: "loss mask", there: has("mask"),
      colour: (sample, at) => {
        const value = sample.value("mask", at);
        return value === undefined ? CLEAR : value ? rgb(above, strongest / 2) : rgb(neutral, strongest);
      },
      legend: () => [swatch(rgb(above, strongest / 2), "1: trained on"), swatch(rgb(neutral, strongest), "0: not")],
    },
    version: {
      label: "weight version", there: has("versions"),
      colour: (sample, at) => (sample.version(at) === undefined ? CLEAR : ofVersion(sample.version(at))),
      legend: () => data.versions.map((v) => swatch(ofVersion(v), v < 0 ? "no engine" : `version ${v}`)),
    },
    probability: {
      label: "probability", there: has("log_probs"),
      colour: (sample, at) => {
        const value = sample.value("log_probs", at);
        return value === undefined || !Number.isFinite(value) ? CLEAR : rgb(below, strongest * (1 - Math.min(1, Math.exp(value))));
      },
      legend: () => bar(["0: unlikely", "1: sure"], (share) => rgb(below, strongest * (1 - share))),
    },
    none: { label: "nothing", there: true, colour: () => CLEAR, legend: () => [] },
  };
  function swatch(colour, text) {
    const mark = make("i");
    mark.style.backgroundColor = colour;
    return make("span", {}, mark, text);
  }
  function bar([from, to], colour) {
    const canvas = make("canvas", { width: 120, height: 1, "aria-hidden": "true" });
    const paint = canvas.getContext("2d");
    for (let at = 0; at < 120; at++) {
      paint.fillStyle = colour(at / 119) || "transparent";
      paint.fillRect(at, 0, 1, 1);
    }
    return [make("span", {}, from), canvas, make("span", {}, to)];
  }
  function ramp(bound, lower, upper, what) {
    if (!bound) return [make("span", {}, `${what}0 everywhere`)];
    const ends = [`${what}−${short(bound)} ${lower}`, `+${short(bound)} ${upper}`];
    return bar(ends, (share) => diverging((2 * share - 1) * bound, bound));
  }

  // -- what is chosen ---------------------------------------------------------------------------------------------
  const SORTS = {
    reward: (sample) => sample.reward,
    length: (sample) => sample.length,
    gap: (sample) => sample.gap_max,
    advantage: (sample) => sample.advantage,
  };
  const start = ["gap", "probability", "none"].find((name) => MODES[name].there && (name !== "gap" || data.bounds.gap));
  const chosen = { mode: start, sort: data.sort, ascending: data.ascending, view: "groups", text: "", status: "", mixed: false };

  function select(label, id, options, value, act) {
    const node = make("select", { id });
    for (const [name, text, off] of options) node.append(make("option", { value: name, disabled: Boolean(off) }, text));
    node.value = value;
    node.addEventListener("change", () => act(node.value));
    return make("label", { for: id }, label, node);
  }

  const legend = make("span", { className: "legend", id: "legend" });
  const count = make("span", { className: "count", id: "count", role: "status" });
  const status = make("div", { className: "status", id: "status", role: "status" }, "Point at a token, or press Tab and the arrow keys.");
  const main = make("main", { id: "main" });

  const direction = make("button", { id: "direction", type: "button" });
  function showDirection() {
    direction.textContent = chosen.ascending ? "↑ smallest first" : "↓ largest first";
  }
  direction.addEventListener("click", () => {
    chosen.ascending = !chosen.ascending;
    showDirection();
    draw();
  });
  const search = make("input", { id: "text", type: "search", placeholder: "prompt, response, id" });
  let waiting = 0;
  search.addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => { chosen.text = search.value.toLowerCase(); draw(); }, 150);
  });
  const mixed = make("input", { id: "mixed", type: "checkbox" });
  mixed.addEventListener("change", () => { chosen.mixed = mixed.checked; draw(); });

  const modes = Object.entries(MODES).map(([name, mode]) => [name, mode.there ? mode.label : `${mode.label} (not recorded)`, !mode.there]);
  const statuses = [...new Set(samples.map((sample) => sample.status))].sort();
  const controls = make("div", { className: "bar", role: "group", "aria-label": "What is shown" },
    select("Colour", "mode", modes, chosen.mode, (value) => { chosen.mode = value; recolour(); }),
    select("Sort", "sort", Object.keys(SORTS).map((name) => [name, name, samples.every((sample) => SORTS[name](sample) === null)]), chosen.sort, (value) => { chosen.sort = value; draw(); }),
    direction,
    select("View", "view", [["groups", "groups"], ["samples", "samples"]], chosen.view, (value) => { chosen.view = value; draw(); }),
    select("Ended", "ended", [["", "any way"], ...statuses.map((name) => [name, name])], "", (value) => { chosen.status = value; draw(); }),
    make("label", { for: "text" }, "Find", search),
    make("label", { for: "mixed" }, mixed, "mixed groups only"),
    select("Theme", "theme", [["", "system"], ["light", "light"], ["dark", "dark"]], "", (value) => { root.dataset.theme = value; }),
    legend, count);

  // -- drawing ----------------------------------------------------------------------------------------------------
  const CHUNK = 400; // tokens of a response that are drawn at once; the rest when the reader scrolls there
  const bodies = new Map(); // element -> sample, of tokens that are drawn when they come into sight
  const drawn = new Map(); // element -> how many are
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const body = entry.target;
      if (entry.isIntersecting && !body.firstChild) fill(body);
      else if (!entry.isIntersecting && body.firstChild && !body.contains(document.activeElement) && body !== document.activeElement) {
        body.style.minHeight = `${body.offsetHeight}px`; // so that nothing moves
        body.replaceChildren();
        drawn.delete(body);
      }
    }
  }, { rootMargin: "400px" });

  function fill(body) {
    do extend(body);
    while (drawn.get(body) < bodies.get(body).words.length && atEnd(body));
    body.style.minHeight = "";
  }
  function atEnd(body) {
    return body.scrollTop + body.clientHeight > body.scrollHeight - 200;
  }
  main.addEventListener("scroll", (event) => {
    if (bodies.has(event.target) && atEnd(event.target)) extend(event.target);
  }, true);

  /** Draw the next tokens of a response. */
  function extend(body) {
    const sample = bodies.get(body), pieces = sample.pieces(), from = drawn.get(body) || 0;
    const to = Math.min(pieces.length, from + CHUNK);
    const { colour } = MODES[chosen.mode];
    const nodes = [];
    let start = from;
    while (start > 0 && !pieces[start]) start--; // a chunk may begin inside a piece
    let piece = pieces[start];
    for (let at = from; at < to; at++) {
      const own = pieces[at];
      piece = own || piece;
      const node = make("span", { className: "t", title: details(sample, at, piece) });
      node.dataset.at = at;
      if (own) node.textContent = own[1];
      else node.classList.add("part");
      if (own && own[1] === "") node.classList.add("empty");
      if (own && own[1].startsWith("\n")) node.classList.add("newline");
      if (sample.value("mask", at) === 0) node.classList.add("out");
      node.style.backgroundColor = colour(sample, at);
      if (sample.cut && at === sample.cut[0])
        nodes.push(make("span", { className: "cut" }, `… ${sample.length - sample.words.length} tokens left out …`));
      nodes.push(node);
    }
    body.append(...nodes);
    drawn.set(body, to);
  }

  function recolour() {
    const { colour } = MODES[chosen.mode];
    for (const [body, sample] of bodies)
      for (const node of body.children)
        if (node.dataset.at !== undefined) node.style.backgroundColor = colour(sample, Number(node.dataset.at));
    legend.replaceChildren(...MODES[chosen.mode].legend());
  }

  function details(sample, at, piece) {
    const word = sample.words[at];
    const lines = [`token ${sample.position(at)}`, `id ${data.ids[word]}`];
    if (data.texts) {
      const bytes = data.parts[word];
      lines.push(`text ${JSON.stringify(piece[1])}${piece[0] > 1 ? ` (of ${piece[0]} tokens)` : ""}${bytes ? `, bytes ${bytes}` : ""}`);
    }
    const add = (label, value, more = "") => { if (value !== undefined) lines.push(`${label} ${short(value)}${more}`); };
    const engine = sample.value("log_probs", at);
    add("engine log-prob", engine, engine === undefined ? "" : ` (p ${short(Math.exp(engine), 3)})`);
    add("trainer log-prob", sample.value("old", at));
    add("gap", sample.gap(at));
    add("reference log-prob", sample.value("ref", at));
    add("value", sample.value("values", at));
    add("advantage", sample.value("advantages", at));
    const mask = sample.value("mask", at), version = sample.version(at);
    if (mask !== undefined) lines.push(mask ? "trained on" : "not trained on");
    if (version !== undefined) lines.push(version < 0 ? "no engine made it" : `weight version ${version}`);
    return lines.join("\n");
  }

  /** A text whose options are not broken at a line's end. */
  function unbroken(text) {
    return text.split(/(--[a-z-]+)/).map((part, at) => (at % 2 ? make("code", {}, part) : part));
  }
  function fact(label, value) {
    return make("span", { className: "fact" }, `${label} `, make("b", {}, value));
  }

  function card(sample, withPrompt) {
    const facts = [fact("tokens", String(sample.length)), fact("ended", sample.finish_reason || sample.status)];
    if (sample.label !== null) facts.push(fact("label", sample.label));
    for (const [name, value] of Object.entries(sample.parts))
      facts.push(fact(name, typeof value === "number" ? short(value) : String(JSON.stringify(value)).slice(0, 120)));
    if (sample.advantage !== null) facts.push(fact("advantage", short(sample.advantage)));
    if (sample.gap_max !== null) facts.push(fact("gap", `mean ${short(sample.gap_mean, 3)}, max ${short(sample.gap_max, 3)}`));
    if (sample.weight_versions.length) facts.push(fact(sample.weight_versions.length > 1 ? "versions" : "version", sample.weight_versions.join(", ")));
    if (sample.abort_count) facts.push(fact("broken off", `${sample.abort_count}×`));
    if (sample.trained === false || sample.remove_sample) facts.push(fact("not", "trained on"));
    const score = sample.reward === null ? `no score${sample.outcome ? ` (${sample.outcome})` : ""}` : `reward ${short(sample.reward)}`;
    const body = make("div", { className: "tokens", tabIndex: 0, role: "group", "aria-label": `Response of ${sample.sample_id}` });
    if (!data.texts) body.classList.add("ids");
    body.style.minHeight = `${Math.min(384, 22 * Math.ceil(sample.words.length / 14) + 2)}px`;
    bodies.set(body, sample);
    sight.observe(body);
    const node = make("article", { className: "card", id: `sample-${sample.sample_id}` },
      make("header", {}, make("span", { className: "reward" }, score), ...facts, make("span", { className: "id" }, sample.sample_id)),
      sample.error ? make("p", { className: "error" }, sample.error) : null,
      withPrompt ? prompt(sample.group_id) : null,
      body,
      data.texts ? null : more("response as text", sample.response),
      sample.judge_output ? more("what the judge said", sample.judge_output) : null);
    return node;
  }
  function more(title, text) {
    return make("details", {}, make("summary", {}, title), make("pre", {}, text));
  }
  function prompt(group) {
    return make("div", { className: "prompt", tabIndex: 0, role: "group", "aria-label": `Prompt of ${group}` }, data.groups[group]);
  }

  function ordered() {
    const value = SORTS[chosen.sort], sign = chosen.ascending ? 1 : -1;
    const rewards = new Map();
    for (const sample of samples) {
      if (!rewards.has(sample.group_id)) rewards.set(sample.group_id, new Set());
      if (sample.reward !== null) rewards.get(sample.group_id).add(sample.reward);
    }
    const kept = samples.filter((sample) =>
      (!chosen.status || sample.status === chosen.status) &&
      (!chosen.mixed || rewards.get(sample.group_id).size > 1) &&
      (!chosen.text || sample.searched.includes(chosen.text)));
    return kept.sort((a, b) => {
      const x = value(a), y = value(b);
      const known = x === null || y === null ? Number(x === null) - Number(y === null) : sign * (x - y);
      return known || Math.abs(b.advantage || 0) - Math.abs(a.advantage || 0) || (a.sample_id < b.sample_id ? -1 : 1);
    });
  }

  function draw() {
    sight.disconnect();
    bodies.clear();
    drawn.clear();
    const kept = ordered();
    if (chosen.view === "samples") {
      main.replaceChildren(make("div", { className: "cards" }, ...kept.map((sample) => card(sample, true))));
    } else {
      const groups = new Map();
      for (const sample of kept) {
        if (!groups.has(sample.group_id)) groups.set(sample.group_id, []);
        groups.get(sample.group_id).push(sample);
      }
      main.replaceChildren(...[...groups].map(([id, its]) => make("section", { className: "group", "aria-label": `Group ${id}` },
        make("header", {}, make("h2", {}, `group ${id}`),
          make("span", { className: "spread" }, `rewards ${its.map((sample) => short(sample.reward, 3)).join(", ")}`)),
        prompt(id),
        make("div", { className: "cards" }, ...its.map((sample) => card(sample, false))))));
    }
    count.textContent = `${kept.length} of ${samples.length} samples`;
    recolour();
  }

  // -- one token --------------------------------------------------------------------------------------------------
  let pointed = null;
  function point(node) {
    if (pointed) pointed.classList.remove("at");
    pointed = node;
    if (!node) return;
    node.classList.add("at");
    status.textContent = node.title.replaceAll("\n", "  ·  ");
  }
  main.addEventListener("pointerover", (event) => {
    if (event.target.dataset.at !== undefined) point(event.target);
  });
  main.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !bodies.has(event.target)) return;
    event.preventDefault();
    if (pointed && !pointed.nextSibling && step > 0) extend(event.target);
    const tokens = [...event.target.querySelectorAll(".t")];
    const at = pointed && event.target.contains(pointed) ? tokens.indexOf(pointed) + step : step > 0 ? 0 : tokens.length - 1;
    if (tokens[at]) { point(tokens[at]); tokens[at].scrollIntoView({ block: "nearest" }); }
  });

  // -- the page ---------------------------------------------------------------------------------------------------
  const notes = [...data.missing, ...(data.left_out ? [data.left_out] : [])];
  document.body.prepend(
    make("h1", {}, `${data.run.replace(/\/+$/, "").split("/").pop()} · ${data.title}`),
    make("p", { className: "run" }, data.run),
    make("ul", { className: "facts" }, ...Object.entries(data.facts).map(([name, value]) => make("li", {}, make("b", {}, value), make("span", {}, name)))),
    notes.length ? make("ul", { className: "notes" }, ...notes.map((text) => make("li", {}, ...unbroken(text)))) : "",
    controls, main, status);
  showDirection();
  draw();
})();
