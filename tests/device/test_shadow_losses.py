"""Policy losses on the shadow: the CPU's bits, and one wait a chunk."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import rlpost
from rlpost.analysis.loss.run import loss
from rlpost.errors import DataError
from rlpost.losses import LOSSES
from rlpost.losses.config import LossConfig
from rlpost.recipe.loss import LossOptions
from tests.device.inputs import rollouts

COVARIANCE = {"loss_options": {"cov": "-0.5:0.5", "share": 0.02}}
OWN = {"kl_cov": {"loss_options": {"share": 0.02}}, "clip_cov": COVARIANCE}
KL = {"kl_loss_coef": 0.1, "kl_loss_ratio": True}
OPTIONS = {name: {"loss": name, **OWN.get(name, {})} for name in LOSSES} | {
    "k4": {**KL, "kl_loss_estimator": "k4"},
    "product": {**KL, "kl_loss_clamp": "k3-product:0.1"},
    "engine": {"loss": "clip_cov", "behaviour": "infer", **COVARIANCE},
    "clamped": {"ratio_clamp": 0.05, "dual_clip": 1.1, "aggregation": "seq-mean-token-mean"},
}
CONFIGS = {name: LossConfig(LossOptions(**one), one) for name, one in OPTIONS.items()}
CORRECTED = {"is_weight": "token", "is_cap": 1.05, "is_filter": ("token:ratio:0.9:1.1",)}
RUN = {"chunk_tokens": 4000, "workers": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file without observations and one with them, of four row groups."""
    folder = tmp_path_factory.mktemp("losses")
    for observations in (False, True):
        table = rollouts(observations=observations)
        pq.write_table(table, folder / f"{observations}.parquet", row_group_size=24)
    return folder


def check(measure, file, configs, recipe, out=None):
    """Run on the CPU and on the shadow: equal results, and one wait a chunk."""
    outs, options = (out and out / "cpu", out and out / "card"), rlpost.Options
    expected = loss(file, outs[0], recipe, configs, options(device="torch:cpu", **RUN))
    with measure.measured() as found:
        summary = loss(file, outs[1], recipe, configs, options(device="shadow:0", **RUN))
    other = {"outputs": None}
    assert measure.same_results({**summary, **other}, {**expected, **other})
    whole_files = any(one.loss.grouped for one in configs)
    assert whole_files or min(map(len, found.passes)) > 2
    # The first chunk of a pass sends what all chunks read: means and floors of batches.
    later = [chunk.counts.waits for chunks in found.passes for chunk in chunks[1:]]
    assert max(later) <= 1, found.counts.waited_for


@pytest.mark.parametrize("observations", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_all_losses_have_the_bits_of_the_cpu_and_wait_once_a_chunk(observations, measure, files):
    for grouped in (False, True):
        some = [one for one in CONFIGS.values() if one.loss.grouped == grouped]
        check(measure, files / f"{observations}.parquet", some, rlpost.Recipe())


@pytest.mark.parametrize("name", ["geo_mean", "clip_cov"])
def test_a_written_loss_has_the_bits_of_the_cpu(name, measure, files, tmp_path):
    recipe = rlpost.Recipe(**CORRECTED)
    check(measure, files / "True.parquet", [CONFIGS[name]], recipe, tmp_path)
    assert pq.read_table(tmp_path / "card").equals(pq.read_table(tmp_path / "cpu"))


@pytest.mark.usefixtures("shadow")
def test_a_loss_that_is_not_finite_is_the_error_of_the_cpu(tmp_path):
    table, column = rollouts(observations=False), "old_log_probs"
    lists = table[column].combine_chunks()
    far = pa.ListArray.from_arrays(lists.offsets, pa.array(lists.values.to_numpy() - 800))
    table = table.set_column(table.column_names.index(column), column, far)
    pq.write_table(table, tmp_path / "far.parquet")
    texts = []
    for device in ("cpu", "shadow:0"):
        config = LossConfig(LossOptions(ratio_clamp="never"))
        with pytest.raises(DataError, match=r"loss ppo: .* up to 800\.\d nats") as caught:
            loss(tmp_path / "far.parquet", None, None, [config], rlpost.Options(device=device))
        texts.append(str(caught.value))
    assert texts[0] == texts[1]
