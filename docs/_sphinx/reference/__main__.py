"""``python -m docs._sphinx.reference``: write the pages again."""

from pathlib import Path

from docs._sphinx.reference.pages import PAGES

FOLDER = Path(__file__).resolve().parents[2] / "reference"

if __name__ == "__main__":
    for name, make in PAGES.items():
        (FOLDER / f"{name}.md").write_text(make())
        print(FOLDER / f"{name}.md")
