// Served, not opened from disk: ask now and then whether there are new cards, and show the page again if so.
let version;
setInterval(async () => {
  try {
    const now = await (await fetch("/version", { cache: "no-store" })).text();
    if (version !== undefined && now !== version && !document.querySelector("dialog[open]")) location.reload();
    version ??= now;
  } catch { /* the server has ended; the page stays as it is */ }
}, 2000);
