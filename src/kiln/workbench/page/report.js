// Figures of `kiln report` in the page's colours.
"use strict";
const figures = JSON.parse(document.getElementById("figures").textContent);
const root = document.documentElement;

function colour(name) { // of a variable, as a colour that Plotly understands
  const probe = Object.assign(document.createElement("i"), { style: `color: var(${name})` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

function themed(layout) {
  const ink = colour("--ink"), soft = colour("--soft"), edge = colour("--edge");
  const axis = (given) => ({ automargin: true, zeroline: false, gridcolor: edge, linecolor: edge, tickcolor: edge, exponentformat: "power", ...given, title: { standoff: 8, font: { size: 12, color: soft }, ...given?.title } });
  const axes = Object.fromEntries(Object.keys({ xaxis: 1, yaxis: 1, ...layout }).filter((name) => /axis\d?$/.test(name)).map((name) => [name, axis(layout[name])]));
  return {
    ...layout, ...axes, font: { family: "system-ui, sans-serif", size: 12, color: ink }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    margin: { l: 56, r: 14, t: 12, b: 44 }, legend: { orientation: "h", y: 1.03, yanchor: "bottom", x: 0, font: { color: soft } }, hovermode: "closest", modebar: { bgcolor: "rgba(0,0,0,0)", color: edge, activecolor: soft },
    hoverlabel: { bgcolor: colour("--panel"), bordercolor: edge, font: { color: ink } },
  };
}

function draw() {
  for (const [name, figure] of Object.entries(figures))
    Plotly.react(name, figure.data, themed(figure.layout), { displaylogo: false, responsive: true, displayModeBar: innerWidth < 700 ? false : "hover", modeBarButtonsToRemove: ["lasso2d", "select2d"] });
  root.dataset.drawn = Object.keys(figures).length;
}

document.getElementById("theme").onclick = () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  draw();
};
const theme = new URLSearchParams(location.search).get("theme");
if (theme) root.dataset.theme = theme;
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
draw();
