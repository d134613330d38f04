"""The generated pages by name."""

from collections.abc import Callable

from docs._sphinx.reference.api import api
from docs._sphinx.reference.commands import commands
from docs._sphinx.reference.parts import codecs, models, workloads

PAGES: dict[str, Callable[[], str]] = {
    "workloads": workloads,
    "models": models,
    "codecs": codecs,
    "commands": commands,
    "api": api,
}
