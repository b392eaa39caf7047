// The playground: nothing is loaded before the first drawing. Kiln's own Python code computes, in Pyodide.
const form = document.getElementById("playground-form");
const place = new URL(".", import.meta.url);
const fields = ["operation", "layout", "operand"];
const shown = (id) => document.getElementById(`playground-${id}`);
let answer = null;

async function started() {
  const began = performance.now();
  shown("status").textContent = "Loading Python: 14 MB, once …";
  const [{ loadPyodide }, zip] = await Promise.all([
    import(new URL("pyodide/pyodide.mjs", place)),
    fetch(new URL("kiln.zip", place)).then((reply) => reply.arrayBuffer()),
  ]);
  const python = await loadPyodide({ indexURL: new URL("pyodide/", place).href });
  python.unpackArchive(zip, "zip");
  const found = python.pyimport("answer").answer;
  const seconds = ((performance.now() - began) / 1000).toFixed(1);
  shown("status").textContent = `Python and Kiln were loaded in ${seconds} s. Results now follow your typing.`;
  return found;
}

function describeOperand() {
  const words = form.operation.selectedOptions[0].dataset.operand;
  form.operand.disabled = !words;
  shown("operand-label").textContent = words || "No second operand";
}

function link() {
  const parts = fields.map((name) => `${name}=${encodeURIComponent(form[name].value)}`).join("&");
  return "#" + parts.replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%3C", "<").replaceAll("%3E", ">");
}

function fill(values) {
  for (const name of fields) form[name].value = values[name] ?? "";
  describeOperand();
}

function show({ text = "", about = "", python = "", svg = "", error = "" }) {
  shown("text").textContent = text;
  shown("about").textContent = about;
  shown("python").textContent = python;
  shown("error").textContent = error;
  shown("picture").innerHTML = svg;
  for (const id of ["result", "python", "error", "picture"]) {
    shown(id).hidden = !{ result: text, python, error, picture: svg }[id];
  }
}

async function draw() {
  try {
    answer = await (answer ?? (answer = started()));
    show(JSON.parse(answer(...fields.map((name) => form[name].value))));
    history.replaceState(null, "", link());
  } catch (error) {
    show({ error: String(error.message ?? error).trim().split("\n").at(-1) });
    if (typeof answer !== "function") {
      answer = null;
      shown("status").textContent = "Python could not be loaded.";
    }
  }
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  draw();
});
form.addEventListener("input", () => {
  describeOperand();
  if (typeof answer === "function") draw();
});
for (const preset of form.querySelectorAll("[data-layout]")) {
  preset.addEventListener("click", () => {
    fill(preset.dataset);
    draw();
  });
}
shown("copy").addEventListener("click", async () => {
  await navigator.clipboard.writeText(new URL(link(), location.href).href);
  shown("status").textContent = "The link to this drawing is in the clipboard.";
});

function follow() {
  const values = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  if (values.layout) fill({ operation: "draw", ...values });
  else describeOperand();
  if (typeof answer === "function") draw();
}
addEventListener("hashchange", follow);
follow();
