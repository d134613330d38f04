"""What every page has in common: the scripts, which are the project's own, and the policy that
names them.
"""

import re

from fedlsg.simulations.report.pages.template import scripts

POLICY = re.compile(
    r'<meta http-equiv="Content-Security-Policy" content="default-src &#39;none&#39;; [^"]*">'
)


def without_scripts(source: str) -> str:
    """The page without them; a page without the policy fails."""
    for text in scripts(drawn=True):
        source = source.replace(f"<script>{text}</script>", "")
    rest, found = POLICY.subn("", source)
    assert found == 1
    return rest
