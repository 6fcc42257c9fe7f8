"""Two files of the same responses, by two estimators."""

from __future__ import annotations

import pytest
from compared_files import CALCULATOR, enriched


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compare")
    paths = [folder / "gae.parquet", folder / "rloo.parquet"]
    enriched(CALCULATOR, paths[0], "gae", unit="row", advantage_clip=0.4)
    enriched(CALCULATOR, paths[1], "rloo", unit="row", drop_truncated=True)
    return paths
