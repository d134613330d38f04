"""Programs that know no fedlsg: a fresh process in which none of its packages can be imported."""

import subprocess
import sys

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("fedlsg", "strategies", "simulations", "tests"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Blocked())
"""


def outside(code: str, *arguments: object) -> str:
    """What ``code`` prints, run with these arguments in ``sys.argv[1:]``; an error fails the
    test.
    """
    command = [sys.executable, "-P", "-c", BLOCKED + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
