"""Opens every page of a site in a headless Chromium and searches for a word, as a reader would.

    browse.py SITE [CHROMIUM]

SITE is the folder that build.sh made. The site is served on a free port of this machine, since its search does not work
from files. The script fails if a page writes to the browser's console (a script that fails, a file that does not load),
shows no heading, asks for a file that is not there, or if the search finds no page for the word.
"""

import functools
import http.server
import json
import os
import pathlib
import select
import subprocess
import sys
import tempfile
import threading
import time

WORD = "checkpoint"
PATIENCE = 60  # seconds for an answer of the browser


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site without a log and keeps the paths of requests that could not be answered."""

    missing = []

    def log_message(self, *_):
        pass

    def send_error(self, code, message=None, explain=None):
        if self.path != "/favicon.ico":
            self.missing.append(self.path)
        super().send_error(code, message, explain)


class Server(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """The browser closes connections that it no longer needs; that is no fault of the site."""


class Browser:
    """A headless Chromium, driven over pipes by the DevTools protocol: JSON messages, each followed by a zero byte."""

    def __init__(self, command, profile):
        from_browser, to_us = os.pipe()
        from_us, to_browser = os.pipe()

        def descriptors_3_and_4():
            os.dup2(from_us, 103)
            os.dup2(to_us, 104)
            os.dup2(103, 3)
            os.dup2(104, 4)

        self.process = subprocess.Popen(
            [command, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe",
             f"--user-data-dir={profile}", "about:blank"],
            close_fds=False, preexec_fn=descriptors_3_and_4, stderr=subprocess.DEVNULL)
        os.close(from_us)
        os.close(to_us)
        self.input, self.output = os.fdopen(to_browser, "wb", 0), os.fdopen(from_browser, "rb", 0)
        self.last, self.rest, self.session, self.faults, self.loaded = 0, b"", None, [], False
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(domain + ".enable")

    def message(self):
        """Waits for the next message; errors of the page are kept."""
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.output], [], [], PATIENCE)
            data = os.read(self.output.fileno(), 1 << 16) if ready else b""
            if not data:
                sys.exit(f"Chromium does not answer ({PATIENCE} s), or ended")
            self.rest += data
        text, self.rest = self.rest.split(b"\0", 1)
        got = json.loads(text)
        what, rest = got.get("method"), got.get("params", {})
        self.loaded |= what == "Page.loadEventFired"
        if what == "Runtime.exceptionThrown":
            self.faults.append(rest["exceptionDetails"]["text"])
        elif what == "Log.entryAdded" and rest["entry"]["level"] == "error":
            self.faults.append(rest["entry"]["text"] + " " + rest["entry"].get("url", ""))
        elif what == "Runtime.consoleAPICalled" and rest["type"] in ("error", "assert"):
            self.faults.append(" ".join(str(a.get("value", a.get("description", ""))) for a in rest["args"]))
        return got

    def call(self, method, **parameters):
        self.last += 1
        request = {"id": self.last, "method": method, "params": parameters}
        if self.session:
            request["sessionId"] = self.session
        self.input.write(json.dumps(request).encode() + b"\0")
        while True:
            got = self.message()
            if got.get("id") == self.last:
                return got.get("result", {})

    def open(self, url):
        """Opens a page and returns the errors that it wrote to the console until it was loaded."""
        self.faults, self.loaded = [], False
        self.call("Page.navigate", url=url)
        while not self.loaded:
            self.message()
        self.value("0")  # scripts that were waiting for the page have run
        return self.faults

    def value(self, expression):
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True).get("result", {}).get("value")

    def close(self):
        self.process.kill()
        self.process.wait()


def main():
    site = pathlib.Path(sys.argv[1])
    server = Server(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    faults = []
    pages = sorted(page.name for page in site.glob("*.html") if page.name != "404.html")
    with tempfile.TemporaryDirectory() as profile:
        browser = Browser(sys.argv[2] if len(sys.argv) > 2 else "chromium", profile)
        for page in pages:
            faults += [f"{page}: {fault}" for fault in browser.open(f"{address}/{page}")]
            if not browser.value("document.querySelectorAll('h1').length"):
                faults.append(f"{page}: no heading is shown")
        faults += [f"the search: {fault}" for fault in browser.open(f"{address}/index.html?q={WORD}")]
        found, until = 0, time.monotonic() + PATIENCE
        while not found and time.monotonic() < until:
            time.sleep(0.1)
            found = browser.value("document.querySelectorAll('#mkdocs-search-results a').length") or 0
        if not found:
            faults.append(f"the search: nothing is found for {WORD!r}")
        browser.close()
    faults += [f"{path}: is not there" for path in sorted(set(Quiet.missing))]
    for fault in faults:
        print(fault)
    print(f"{len(pages)} pages opened, {found} found for {WORD!r}, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
