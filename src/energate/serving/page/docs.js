// The reference of the server, fetched with the key where it asks for one: a link alone cannot bring it.

import { fetched, hasKey, useKey } from "./api.js";

const at = (id) => document.getElementById(id);
const address = new URL("../docs", document.baseURI);

async function start() {
  at("trouble").hidden = true;
  try {
    const found = new DOMParser().parseFromString(await (await fetched(address)).text(), "text/html");
    // Its links are meant from where it was fetched.
    for (const link of found.querySelectorAll("a[href]")) link.href = new URL(link.getAttribute("href"), address);
    document.title = found.title;
    at("reference").replaceChildren(...found.querySelector("main").childNodes);
    at("key").hidden = true;
  } catch (error) {
    at("reference").textContent = "";
    at("key").hidden = error.status !== 401;
    at("key-wrong").hidden = !hasKey();
    at("trouble").hidden = error.status === 401;
    at("trouble").textContent = error.message;
    if (error.status === 401) at("key-field").focus();
  }
}

at("key").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(at("key-field").value);
  start();
});

start();
