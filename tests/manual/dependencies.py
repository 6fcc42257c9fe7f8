"""Measure the dependencies, for the manual: `python -m tests.manual.dependencies`.

It rewrites what stands between `<!-- measured -->` and `<!-- end -->` in install.md: what each
library is for, its size on disk and its import time, in the environment that runs this (with all
extras). The numbers depend on the machine, so no test compares them.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import textwrap
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

sys.path.insert(0, str(Path(__file__).parents[1]))

from manual.program import ROOT
from manual.tables import code, table

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PAGE = ROOT / "rlpost" / "manual" / "install.md"
ROUNDS = 5
USES = {
    "altair": "the report's charts",
    "botocore": "settings of S3, its large uploads",
    "datasets": "reads the output, in tests",
    "fsspec": "URLs; torch needs it, too",
    "huggingface-hub": "`hf://`",
    "msgspec": "reads JSONL dumps",
    "numpy": "all arithmetic on the CPU",
    "obstore": "`s3://`, `gs://`, `az://`, `https://`",
    "polars": "the statistics of `inspect`",
    "pyarrow": "reads and writes Parquet",
    "pydantic": "recipes and their errors",
    "ray": "`--engine ray`, `rlpost.ray`",
    "rich": "tables, charts and help on the screen; typer needs it, too",
    "sqlglot": "conditions of `--where`",
    "textual": "`rlpost browse`",
    "tokenizers": "`--tokenizer`",
    "torch": "arithmetic on devices, gradients, training",
    "typer": "the command line",
    "vl-convert-python": "charts as pictures inside the page",
}
"""What a direct dependency is for; a new one needs a line."""
MODULES = {"ray": "ray.data", "vl-convert-python": "vl_convert"}
"""Modules with another name than their package."""
LEFT_OUT = ("test", "nightly")  # extras of tests


def needed(names: list[str]) -> set[str]:
    """The packages that these need, themselves included, as they are installed here."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        found.add(name)
        try:
            requires = distribution(name).requires or []
        except PackageNotFoundError:  # the CUDA libraries, where torch is the CPU build
            found.discard(name)
            continue
        for text in requires:
            needs = Requirement(text)
            extras = [*one.extras, ""]
            if any(not needs.marker or needs.marker.evaluate({"extra": x}) for x in extras):
                key = canonicalize_name(needs.name)
                waiting += [needs] if key not in found else []
    return found


def megabytes(names: set[str]) -> float:
    """The size on disk of the files of these packages, without compiled bytecode."""
    files = [Path(one.locate()) for x in names for one in distribution(x).files or ()]
    return sum(x.stat().st_size for x in files if x.suffix != ".pyc" and x.is_file()) / 1e6


def milliseconds(module: str) -> float:
    """The median time that Python needs to import a module, in a new process."""
    words = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    line = re.compile(rf"\|\s*(\d+) \| *{re.escape(module)}$", re.MULTILINE)
    done = (
        subprocess.run(words, capture_output=True, text=True, check=True) for _ in range(ROUNDS)
    )
    return statistics.median(int(line.findall(one.stderr)[-1]) for one in done) / 1000


def cpu() -> str:
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return re.search(r"^model name\s*: (.*)$", text, re.MULTILINE)[1]


def measured() -> str:
    """The table, and the list of what is installed without extras."""
    lean = needed(PROJECT["dependencies"])
    extras = {
        name: texts
        for name, texts in PROJECT["optional-dependencies"].items()
        if name not in LEFT_OUT
    }
    rows = []
    for extra, texts in {"": PROJECT["dependencies"], **extras}.items():
        for text in texts:
            one = Requirement(text)
            name = canonicalize_name(one.name)
            own = megabytes({name})
            brought = megabytes(needed([text]) - lean if extra else needed([text]))
            time = milliseconds(MODULES.get(name, name.replace("-", "_")))
            sizes = (f"{own:.0f}", f"{brought:.0f}")
            rows.append((name, USES[name], code(extra), *sizes, f"{time:.0f}"))
    headings = ("library", "what for", "extra", "MB", "MB in all", "import, ms")
    sizes = {name: megabytes({name}) for name in lean}
    rest = {name: size for name, size in sizes.items() if name != "torch"}
    ordered = sorted(rest, key=rest.__getitem__, reverse=True)
    listed = ", ".join(f"{name} {rest[name]:.0f}" for name in ordered if rest[name] >= 1)
    small = ", ".join(sorted(name for name in ordered if rest[name] < 1))
    torch = distribution("torch").version
    packages = (
        f"Without extras, pip installs {len(lean)} packages, {sum(sizes.values()):.0f} MB: "
        f"torch {torch} {sizes['torch']:.0f}, {listed}, and below 1 MB each {small}."
    )
    how = (
        f"Measured on {cpu()}, with Python {sys.version.split()[0]} and the locked versions; "
        f"the import time is the median of {ROUNDS} new processes."
    )
    prose = (textwrap.fill(x, 100, break_on_hyphens=False) for x in (packages, how))
    return "\n\n".join((table(headings, rows), *prose))


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    parts = re.compile(r"(<!-- measured -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(
        parts.sub(lambda found: f"{found[1]}\n{measured()}\n\n{found[2]}", text), encoding="utf-8"
    )
