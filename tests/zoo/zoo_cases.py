"""All of the zoo, in the order of the table."""

from __future__ import annotations

from zoo_decoders import DECODERS
from zoo_encoders import ENCODERS
from zoo_images import IMAGES, SCENES
from zoo_pairs import PAIRS, SOUNDS

CASES = [*ENCODERS, *PAIRS, *DECODERS, *IMAGES, *SCENES, *SOUNDS]
