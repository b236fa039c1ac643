"""Prints what pyproject.toml depends on, so that an image can install it before the code is there."""

import tomllib
from pathlib import Path

print("\n".join(tomllib.loads(Path("pyproject.toml").read_text())["project"]["dependencies"]))
