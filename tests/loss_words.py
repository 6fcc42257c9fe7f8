"""Options of losses as one table: fields of LossOptions, and options of the loss itself."""

from rlpost.recipe.loss import LossOptions


def nested(options):
    """The options with those of the loss itself in `loss_options`."""
    fields = {name: x for name, x in options.items() if name in LossOptions.model_fields}
    others = {name: x for name, x in options.items() if name not in fields}
    return fields | ({"loss_options": others} if others else {})
