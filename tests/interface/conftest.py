"""An enriched file, and the summary of its run."""

import pytest

import rlpost


@pytest.fixture(scope="module")
def enriched(tmp_path_factory):
    path = tmp_path_factory.mktemp("enriched") / "out.parquet"
    return path, rlpost.advantages("sample_data/arithmetic.parquet", path)
