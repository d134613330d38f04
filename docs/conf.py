"""The site: ``python -m sphinx -W --keep-going docs build/site``. It needs no network, while it is
built or read.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from fedlsg.user_code.digest import version as version_of_code  # noqa: E402

project = "fedlsg"
author = "The fedlsg authors"
project_copyright = "The fedlsg authors, Apache-2.0"
version = release = version_of_code()
html_title = f"fedlsg {version}"

extensions = [
    "myst_parser",
    "sphinx_copybutton",
    *(f"docs._sphinx.{name}" for name in ("navigation", "sources", "notebooks", "pictures")),
]
exclude_patterns = ["_sphinx", "results/*.toml"]
myst_heading_anchors = 4
myst_url_schemes = ["http", "https", "mailto", "repository"]  # the last: docs/_sphinx/sources.py
myst_enable_extensions = ["deflist"]
nitpicky = True
highlight_language = "text"  # of blocks that name no language
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"

copybutton_prompt_text = r">>> |\.\.\. |\$ "  # what a shell or Python shows is not copied
copybutton_prompt_is_regexp = True

html_theme = "furo"
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_search_summary = False  # it fetches the pages found, which browsers refuse for files
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True, "sidebar_hide_name": False}
