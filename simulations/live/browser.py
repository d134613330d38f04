"""Open a page of this machine in the user's browser. What is opened is a file: its name is all that a process shows."""

import os
import sys
import webbrowser
from pathlib import Path


def has_browser() -> bool:
    """Whether there is a screen for a browser, or the user named one.

    Without a screen ``webbrowser`` would start a browser of the terminal, which waits for keys.
    """
    if "BROWSER" not in os.environ and sys.platform.startswith("linux"):
        if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def open_file(path: Path) -> bool:
    """Open a file in the browser; False where that could not be done."""
    try:
        return has_browser() and webbrowser.open(path.resolve().as_uri())
    except (webbrowser.Error, OSError):
        return False
