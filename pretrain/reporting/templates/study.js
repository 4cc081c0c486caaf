// The page of a study: conclusions, the table of all arms, and the picture of a measure over a key.
function studyHead() {
  const parts = [make("div", { class: "head" }, make("h1", {}, report.name)), make("p", { class: "soft" }, report.summary)];
  for (const words of report.notices) parts.push(make("div", { class: "card notice" }, words));
  return parts;
}

function results() {
  const [names, ...rows] = report.table, box = table("Means over the seeds", names, rows);
  box.classList.add("numeric");
  const verdict = ({ title, text }, number) =>
    make("div", { class: `card verdict${number ? "" : " primary"}` }, make("h3", {}, title), make("p", {}, text));
  return [make("h2", {}, "Results"), ...report.conclusions.map(verdict), box];
}

const howToRead = () => [make("h2", {}, "How to read it"), ...report.how.map(words => make("p", { class: "verdict" }, words))];

document.getElementById("page").append(...studyHead(), ...results(), ...charts(), ...howToRead(),
  make("footer", {}, `${report.path} · made ${when(report.time)} by Maskwright · intervals are at 95% · drag in the picture to zoom`));
