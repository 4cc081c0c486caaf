document.getElementById("page").append(...head(), ...numbers(), ...charts(), ...timeSpent(), ...predictions(), ...facts(), ...config(),
  make("footer", {}, `${report.path} · made ${when(report.time)} by Maskwright ${report.version} · drag in a curve to zoom, double-click for the whole run`));
