"""The question of a page, and its file name, which keeps pages of other questions.

The JSON file next to a page has its question: runs, options and settings. The same question
replaces its page. Any other question, also one that differs in an option, gets a new file name:
attack-2.html.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from fedlsg import bounded
from fedlsg.attacks.observation import ThreatModel
from fedlsg.simulations.attacks.target import Options
from fedlsg.simulations.report.pages.page import json_text

KEY = "question"
"""Key of the question in the JSON file."""
Question = Mapping[str, Any]
"""JSON values by name."""


def question_of(
    runs: Sequence[str], folder: Path, threat: ThreatModel, options: Options, **more: Any
) -> Question:
    """All that determines a page of attacks; ``more``: settings of the command.

    A run whose page is in its own directory is not named, because a directory may move. The device
    is left out, because it changes no answer.
    """
    paths = [Path(run).expanduser().resolve() for run in runs]
    values = asdict(options)
    del values["device"]
    others = [str(path) for path in paths if path != folder]
    return {"runs": others, "threat_model": asdict(threat), "options": values, **more}


def words_of_each(given: Mapping[str, Any]) -> dict[str, str]:
    """Settings with their values as text, as a question has them."""
    return {name: str(value) for name, value in given.items()}


def file_stem(folder: Path, kind: str, question: Question) -> str:
    """The name of a page's files without the suffix.

    It is the first of kind, kind-2, kind-3 and so on that is free or has the same question.
    """
    wanted = json.loads(json_text(question))
    names = (kind if number == 1 else f"{kind}-{number}" for number in count(1))
    return next(name for name in names if _may_write(folder, name, wanted))


def _may_write(folder: Path, name: str, wanted: Any) -> bool:
    """Whether no page has this name, or one of the same question."""
    path = folder / f"{name}.json"
    if not path.exists():
        return not path.with_suffix(".html").exists()
    try:
        return bool(bounded.read_json(path)[KEY] == wanted)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # damaged, or of another program
