"""Values of several parts: written, read and refused, in text, TOML, JSON and Python."""

import json
import math
import tomllib
from contextlib import suppress

import pytest
from pydantic import ValidationError

from rlpost.errors import RlpostError, UsageError
from rlpost.recipe.base import Clamp, Offsets, OptionModel, Parsed, Range, Symmetric, as_typed
from rlpost.recipe.loss import LossOptions
from rlpost.recipe.numerics import Numerics
from rlpost.recipe.recipe import Recipe

INF = math.inf


class KlClamp(Clamp):
    """A clamp of all estimators of KL, or of k3."""

    choices = ("all", "k3")


class Options(OptionModel):
    """A value of each type."""

    range: Parsed[Range] | None = None
    symmetric: Parsed[Symmetric] | None = None
    offsets: Parsed[Offsets] | None = None
    clamp: Parsed[KlClamp] = KlClamp("k3", 10.0)


@pytest.mark.parametrize(
    ("field", "written", "parts", "plain"),
    [
        ("range", "0.1:0.95", (0.1, 0.95), "0.1:0.95"),
        ("range", " -1 : 2.50 ", (-1, 2.5), "-1:2.5"),
        ("range", ":0.95", (-INF, 0.95), ":0.95"),
        ("range", "1e-30:", (1e-30, INF), "1e-30:"),
        ("range", (0.1, None), (0.1, INF), "0.1:"),
        ("range", [0.1 + 0.2, 1], (0.1 + 0.2, 1), "0.30000000000000004:1"),
        ("symmetric", 5, (-5, 5), 5),
        ("symmetric", "5", (-5, 5), 5),
        ("symmetric", "-5:5", (-5, 5), 5),
        ("symmetric", "-1:5", (-1, 5), "-1:5"),
        ("symmetric", (-1, 5), (-1, 5), "-1:5"),
        ("symmetric", "0:", (0, INF), "0:"),
        ("offsets", 0.2, (0.2, 0.2), 0.2),
        ("offsets", "0.2:0.28", (0.2, 0.28), "0.2:0.28"),
        ("offsets", ":4", (INF, 4), ":4"),
        ("offsets", "3:", (3, INF), "3:"),
        ("offsets", "never", (INF, INF), "never"),
        ("clamp", 40, ("all", 40), 40),
        ("clamp", "all:40", ("all", 40), 40),
        ("clamp", "k3:1e-3", ("k3", 0.001), "k3:0.001"),
        ("clamp", ("k3", 2.5), ("k3", 2.5), "k3:2.5"),
        ("clamp", "never", ("all", INF), "never"),
        ("clamp", "k3:never", ("all", INF), "never"),
    ],
    ids=str,
)
def test_a_value_survives_text_toml_json_and_python(field, written, parts, plain):
    options = Options(**{field: written})
    value = getattr(options, field)
    assert value == parts
    assert options.model_dump(mode="json")[field] == plain
    assert Options(**{field: as_typed(value)}) == options
    assert Options(**options.model_dump()) == options
    assert Options(**options.model_dump(mode="json")) == options
    assert Options.model_validate_json(options.model_dump_json()) == options
    assert Options(**tomllib.loads(f"{field} = {json.dumps(plain)}")) == options


@pytest.mark.parametrize(
    ("field", "wrong", "needed"),
    [
        *(("range", wrong, "must be LOW:HIGH") for wrong in (
            "1", 1, ":", "2:1", "1:1", "a:b", "0:1:2", "nan:1", "", [], {}, ("a", 1)
        )),
        *(("symmetric", wrong, "must be C above 0") for wrong in (0, -5, "5:-5", "x", ":", INF)),
        *(("offsets", wrong, "must be C, or LOW:HIGH") for wrong in (0, -0.2, "0:1", "a", "-1:")),
        *(("clamp", wrong, "must be a BOUND above 0, k3:BOUND, or never") for wrong in (
            0, -1, "k1:10", "k3:", "k3", "10:k3", "k3:10:1", math.nan
        )),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_value_is_refused_in_words(field, wrong, needed):
    with pytest.raises(UsageError) as refused:
        Options.of({field: wrong}, "recipe.toml")
    text = str(refused.value)
    assert text.startswith("recipe.toml: ")
    assert field in text
    assert needed in text


def test_help_and_schema_show_how_values_are_written():
    metavars = [kind.metavar for kind in (Range, Symmetric, KlClamp)]
    assert metavars == ["LOW:HIGH", "C|LOW:HIGH", "BOUND|never|k3:BOUND"]
    schema = Options.model_json_schema()["properties"]
    kinds = [kind["type"] for kind in schema["range"]["anyOf"]]
    assert kinds == ["number", "string", "array", "null"]
    assert schema["clamp"]["default"] == "k3:10"


JUNK = (3, {"a": 1}, [1], [{}], (), "", ":", "x:y:z:w", "token:ratio:1:2:any:7", None, b"x", True)


@pytest.mark.parametrize("model", [Recipe, LossOptions, Numerics])
def test_no_value_of_a_field_is_a_traceback(model):
    for field in model.model_fields:
        for value in JUNK:
            with suppress(RlpostError, ValidationError):
                model(**{field: value})
