"""Model families: from the fields of a config.json to every tensor and every layer's cache."""

from powerband.probes.families.decoder import read_decoder
from powerband.probes.keys import Keys
from powerband.probes.tensors import Shape


def read_shape(keys: Keys) -> Shape:
    """The shape of the language model described by ``keys``, by its model_type."""
    return read_decoder(keys)
