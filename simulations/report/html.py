"""The frame of every report.html: one file that asks nobody for anything, readable on screen and on paper.

All values pass through Jinja's autoescaping; only the figures' data URIs, made here, go into attributes as they are.
"""

from collections.abc import Mapping
from typing import Any

CSS = """
:root { color-scheme: light; }
body { font: 15px/1.5 "Source Sans 3", "Helvetica Neue", Arial, sans-serif; color: #1b1b1b; background: #fff;
  max-width: 60rem; margin: 2.5rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p.lead { color: #555; margin: 0 0 1.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; }
th { text-align: right; font-weight: 600; border-bottom: 1.5px solid #1b1b1b; }
td { text-align: right; border-bottom: 1px solid #e4e4e4; }
th, td { padding: .28rem .9rem .28rem 0; vertical-align: top; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
tr.section td { border-bottom: 0; padding-top: .9rem; font-weight: 600; }
tr.probe td { background: #f3f3f3; }
tr.open td { color: #8a3b00; }
table.facts td { text-align: left; white-space: normal; overflow-wrap: anywhere; }
table.facts td:first-child { white-space: nowrap; color: #555; }
.dot { display: inline-block; width: .65em; height: .65em; border-radius: 50%; margin-right: .5em; }
.warning { border-left: 4px solid #b00020; padding: .5rem .9rem; background: #fdf3f4; margin: 1rem 0; }
.note { color: #444; font-size: .9rem; }
img { width: 100%; max-width: 46rem; display: block; margin: .4rem 0 1.2rem; }
figcaption { color: #444; font-size: .9rem; }
figure { margin: 1rem 0; break-inside: avoid; }
code, pre { font: .86em/1.45 "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: #f6f6f6; padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; font-size: 10.5pt; } h2 { break-after: avoid; }
  tr, .warning { break-inside: avoid; } table { font-size: 8pt; } th, td { padding-right: .5rem; } }
"""

LAYOUT = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>{{ css }}</style>
</head>
<body>
{% block content %}{% endblock %}
</body>
</html>
"""


def render(content: str, values: Mapping[str, Any]) -> str:
    """A page from a template's ``content`` block. Raises jinja2.UndefinedError for a value that is not given."""
    from jinja2 import DictLoader, Environment, StrictUndefined
    from markupsafe import Markup

    loader = DictLoader({"layout": LAYOUT, "page": content})
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page").render({**values, "css": Markup(CSS)})
