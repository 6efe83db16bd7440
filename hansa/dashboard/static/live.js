// Puts the parts of a page that the server sends in place. The server escapes every name; without this script a reload
// shows the same.
"use strict";
(function () {
  const main = document.querySelector("[data-events]");
  const said = document.getElementById("connection");
  if (!main || !window.EventSource) return;
  const source = new EventSource(main.dataset.events);
  source.addEventListener("parts", function (event) {
    const parts = JSON.parse(event.data);
    for (const id of Object.keys(parts)) {
      const element = document.getElementById(id);
      if (!element || element.innerHTML.trim() === parts[id]) continue;
      if (element.contains(document.activeElement)) continue; // do not take the focus away; the next event updates it
      const open = Array.from(element.querySelectorAll("details[open]"), (one) => one.dataset.key);
      element.innerHTML = parts[id];
      for (const one of element.querySelectorAll("details")) if (open.includes(one.dataset.key)) one.open = true;
    }
  });
  source.addEventListener("open", function () { said.textContent = "live"; said.className = "good"; });
  source.addEventListener("error", function () { said.textContent = "not connected, trying again"; said.className = "bad"; });
})();
