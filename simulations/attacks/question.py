"""What a page answers, and its file name: no page of another question is written over.

The JSON file next to a page holds its question. The same question replaces its page; another one,
also the same with other options, gets a name of its own: attack-2.html.
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
"""Of the JSON file."""
Question = Mapping[str, Any]


def question_of(
    runs: Sequence[str], folder: Path, threat: ThreatModel, options: Options, **more: Any
) -> Question:
    """All that was asked of recorded updates. A run that has its page in its own directory is not
    named, because a directory may move; nor is the device, which changes no answer.
    """
    paths = [Path(run).expanduser().resolve() for run in runs]
    asked = asdict(options)
    del asked["device"]
    others = [str(path) for path in paths if path != folder]
    return {"runs": others, "threat_model": asdict(threat), "options": asked, **more}


def words_of_each(given: Mapping[str, Any]) -> dict[str, str]:
    """Settings as JSON has them."""
    return {name: str(value) for name, value in given.items()}


def file_stem(folder: Path, kind: str, question: Question) -> str:
    """The name of a page's files without their ends: ``kind``, or the first of kind-2, kind-3 and
    so on that is free, or of the same question.
    """
    asked = json.loads(json_text(question))
    names = (kind if number == 1 else f"{kind}-{number}" for number in count(1))
    return next(name for name in names if _is_free(folder, name, asked))


def _is_free(folder: Path, name: str, asked: Any) -> bool:
    path = folder / f"{name}.json"
    if not path.exists():
        return not path.with_suffix(".html").exists()
    try:
        return bool(bounded.read_json(path)[KEY] == asked)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # damaged, of an older version, or not of fedlsg
