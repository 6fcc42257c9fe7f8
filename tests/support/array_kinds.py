"""Arrays of the two libraries, for tests of formulas that take both."""

import numpy as np
import torch


def array_of(kind, values, dtype=None):
    """Numbers as an array of a kind, in a type of numpy; float64 and int64 by default."""
    array = np.array(values, dtype)
    if kind == "numpy":
        return array
    return torch.from_numpy(array).to("cuda" if kind == "cuda" else "cpu")


def kind_of(array):
    """The kind of an array."""
    if isinstance(array, (np.ndarray, np.generic)):
        return "numpy"
    return "cuda" if array.is_cuda else "torch"


def numbers_of(array):
    """An array of numpy with the numbers of any array."""
    return array if isinstance(array, np.ndarray) else array.detach().cpu().numpy()


def names_of(library):
    """The public names of `numpy_arrays` or `torch_arrays`: functions and types of numbers."""
    found = {*vars(library)} - {"np", "torch", "annotations", "Any", "TYPE_CHECKING"}
    return {name for name in found if not name.startswith("_")}
