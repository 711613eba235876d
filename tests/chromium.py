"""Headless Chromium for the tests of pages; the fixture `browser` is in conftest.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


class Browser:
    """Headless Chromium, spoken to over its debugging pipe."""

    FLAGS = ("--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
             "--disable-component-update --disable-sync --remote-debugging-pipe").split()  # fmt: skip

    def __init__(self, program: str, home: Path):
        to_read, self._out = os.pipe()
        self._in, to_write = os.pipe()
        become = (  # Chromium wants the pipe's ends as 3 and 4
            "import fcntl, os, sys\n"
            f"a, b = (fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in ({to_read}, {to_write}))\n"
            "os.dup2(a, 3), os.dup2(b, 4), os.execv(sys.argv[1], sys.argv[1:])"
        )
        command = [sys.executable, "-c", become, program, *self.FLAGS, f"--user-data-dir={home}"]
        self.process = subprocess.Popen(
            command, pass_fds=(to_read, to_write), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(to_read)
        os.close(to_write)
        self._rest, self._number, self._session = b"", 0, {}
        self.events: list[dict] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = dict(sessionId=self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _next(self) -> dict:
        while b"\0" not in self._rest:
            piece = os.read(self._in, 1 << 16)
            assert piece, "Chromium went away"
            self._rest += piece
        message, self._rest = self._rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method: str, **parameters) -> dict:
        self._number += 1
        os.write(self._out, json.dumps(dict(id=self._number, method=method, params=parameters, **self._session)).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]
            self.events.append(message)

    def visit(self, path: Path, width: int, dark: bool) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 600)
        scheme = dict(name="prefers-color-scheme", value="dark" if dark else "light")
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.load("Page.navigate", url=path.as_uri())

    def load(self, method: str = "Page.reload", **parameters) -> None:
        self.events.clear()
        self.call(method, **parameters)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def ask(self, script: str):
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def cut(self) -> list[str]:
        """The beginnings of tables in sight that are wider than their place."""
        wide = "e.querySelector('table') && e.checkVisibility() && e.scrollWidth > e.clientWidth + 1"
        return self.ask(f"[...document.querySelectorAll('.scroll')].filter(e => {wide}).map(e => e.innerText.slice(0, 60))")

    def press(self, key: str) -> None:
        typed = dict(windowsVirtualKeyCode=dict(Enter=13, ArrowLeft=37, ArrowRight=39, ArrowDown=40).get(key, 0))
        typed |= dict(text="\r") if key == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **typed)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def move(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def complaints(self) -> list[dict]:
        return [
            e for e in self.events if e["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        ]

    def close(self) -> None:
        os.close(self._out)
        self.process.terminate()
        self.process.wait(20)
        os.close(self._in)
