"""The project's own files, for tests that look at the source as a whole."""

import ast
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"iop_edge": ROOT / "edge", "iop_node": ROOT / "node", "iop_shared": ROOT / "shared"}
GENERATED = ROOT / "shared" / "iop_shared" / "wire"


@dataclass(frozen=True)
class Module:
    """One module of the product: where it lies, its dotted name and its syntax tree."""

    path: Path
    name: str
    tree: ast.Module

    @property
    def shown(self) -> str:
        """The path as an editor opens it."""
        return str(self.path.relative_to(ROOT))


@cache
def product_modules() -> tuple[Module, ...]:
    """Returns every hand-written module of the three packages, sorted by path."""
    found = []
    for package, root in PACKAGES.items():
        for path in sorted((root / package).rglob("*.py")):
            if GENERATED in path.parents and path.name != "__init__.py":
                continue
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found.append(Module(path, name, ast.parse(path.read_text(encoding="utf-8"), str(path))))
    return tuple(found)


@cache
def tracked_files() -> tuple[Path, ...]:
    """Returns the files that git tracks; without git (an unpacked source archive), all files but hidden ones."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=30
        ).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        return tuple(
            path
            for path in sorted(ROOT.rglob("*"))
            if path.is_file() and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        )
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def texts() -> Iterator[tuple[str, str]]:
    """Yields the path, as shown, and the content of every tracked text file."""
    for path in tracked_files():
        try:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
