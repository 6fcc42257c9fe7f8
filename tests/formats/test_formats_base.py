"""What a format declares: the sources of columns and roles that a map changes."""

from rlpost.formats import FORMATS
from rlpost.formats.base import ReadOptions, ReadStats
from rlpost.recipe.roles import ROLES


def test_a_role_may_be_left_out_by_its_name_or_its_column():
    options = ReadOptions(map={"group": "none", "reward": "score", "response": "none"})
    names = {*ROLES["group"].aliases, *ROLES["response"].aliases}
    assert options.omitted_columns == names


def test_the_map_has_precedence_over_fields_that_the_dump_set_and_these_over_the_formats():
    verl = FORMATS["verl"]
    assert verl.fields["reward"] == "score"
    stats = ReadStats(sources={"reward": "scores.total", "prompt_id": "uid"})
    options = ReadOptions(map={"reward": "own"}, stats=stats)
    assert (
        verl.sources(ReadOptions(stats=ReadStats()))["prompt_id"] == "uid | input (the same text)"
    )
    sources = verl.sources(options)
    assert (sources["prompt_id"], sources["reward"], sources["step"]) == ("uid", "own", "step")
