"""Named sets of training options: small YAML files, the bundled ones or one's own."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from dflash.errors import InputInvalid, UsageError

FOLDER = Path(__file__).parent / "recipes"
NOT_IN_A_RECIPE = frozenset(
    {"target", "data", "out", "recipe"}
    | {"upload", "endpoint", "region", "addressing", "short_lived_only"}
)
"""What a recipe is applied to, and where its results go."""


def bundled() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_recipe(name: str, known: set[str]) -> dict[str, Any]:
    """The options of a bundled recipe, or of a file."""
    path = FOLDER / f"{name}.yaml"
    if name not in bundled():
        path = Path(name)
        if not path.is_file():
            near = difflib.get_close_matches(name, bundled(), n=1)
            ask = f"Did you mean {near[0]}? " if near else ""
            raise UsageError(
                f"there is no recipe {name!r}",
                f"{ask}Bundled: {', '.join(bundled())}; or name a YAML file.",
            )
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise InputInvalid(f"{path} cannot be read as a recipe: {said[:300]}") from error
    if not isinstance(values, dict):
        raise InputInvalid(f"{path} holds a {type(values).__name__}; a recipe is `option: value`")
    wrong = sorted(str(key) for key in values if key not in known - NOT_IN_A_RECIPE)
    if wrong:
        near = difflib.get_close_matches(wrong[0], known, n=1)
        ask = f" Did you mean {near[0]}?" if near else ""
        raise InputInvalid(
            f"{path} sets {', '.join(wrong)}, which is no option of a recipe.",
            f"Options are those of `dflash train`, with _ for -.{ask}",
        )
    return values
