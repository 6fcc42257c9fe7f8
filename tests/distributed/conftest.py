"""A cluster of Ray."""

import os

import pytest


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one core each, one with what Ray takes for two GPUs, and a connected driver."""
    import ray  # noqa: PLC0415 - it may be absent
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    made.add_node(num_cpus=1, num_gpus=2)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()
