"""Stages of rewards: scopes of the normalisation, single and equal rewards, running moments."""

import pytest
from stage_runs import close, credit, row


@pytest.mark.parametrize(
    ("single", "scopes", "want"),
    [
        ("zero", ("group", "group"), 0),
        ("zero", ("group", "none"), 0),
        ("zero", ("batch", "none"), 2),
        ("zero_always", ("batch", "none"), 0),
        ("raw", ("group", "group"), 5),
        ("normalise", ("group", "group"), 0),
        ("normalise", ("none", "group"), 5e6),
    ],
)
def test_a_group_of_one(single, scopes, want):
    rows = [row(1.0, group="a"), row(3.0, group="a"), row(5.0, group="b")]
    mean, std = scopes
    got = credit(rows, {"single": single}, norm_mean=mean, norm_std=std, estimator="raw")
    assert got[2] == [want]


def test_a_group_of_equal_rewards():
    rows = [row(3.0, group="a"), row(3.0, group="a"), row(1.0, group="b"), row(2.0, group="b")]
    scopes = {"norm_mean": "batch", "norm_std": "group", "estimator": "raw"}
    assert credit(rows, {"constant": "zero"}, **scopes)[:2] == [[0], [0]]
    close(credit(rows, {"constant": "divide"}, **scopes)[0], [0.75e6])
